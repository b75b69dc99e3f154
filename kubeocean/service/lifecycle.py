"""The lifecycle of one binding, from serving to undone, and what remains of a binding that is being deleted. Pure.

Invariant: a stage belongs to one binding, by its UID: a binding that was created again under the same name starts with its own stage.
Every stage after UNBINDING is entered by an event of this process; no message and no error text decides.
"""

import enum
from typing import Final, Self

from attrs import evolve, field, frozen

from kubeocean.model import keys


class Stage(enum.Enum):
    """What this process does about the binding."""

    SERVING = "serving"
    """The worker is connected, and its nodes are leased."""
    UNBINDING = "unbinding"
    """The binding is being deleted and waits for us: everything of it is removed in both clusters."""
    GIVEN_UP = "given up"
    """As UNBINDING, but without the worker: it gets no more requests, and its pods count as deleted."""
    UNDONE = "undone"
    """Everything of the binding is removed, or nothing waits for us any more after the worker was given up."""
    LEFT = "left"
    """The binding was deleted without waiting for us; what exists stays as it is, until it is created again."""


@frozen
class Observed:
    """The binding as it was last seen: `deleted` or being deleted, and whether it `waits` for us with our finalizer."""

    uid: str
    deleted: bool = False
    waits: bool = False


class Done(enum.Enum):
    """What this process has done about a binding that is being deleted."""

    GAVE_UP = "gave up"
    """Abandoned the worker, as a user or `spec.forceUnbindAfter` demands."""
    UNDID = "undid"
    """Removed everything, and our finalizer."""


@frozen
class BindingLifecycle:
    """The stage of the binding with this UID; "" before one was seen."""

    stage: Stage = Stage.SERVING
    uid: str = ""

    @property
    def unbinds(self) -> bool:
        """Whether steps of unbinding are to be performed."""
        return self.stage in (Stage.UNBINDING, Stage.GIVEN_UP)

    @property
    def connects(self) -> bool:
        """Whether a connection to the worker is to be made, or renewed."""
        return self.stage in (Stage.SERVING, Stage.UNBINDING)

    @property
    def has_pods(self) -> bool:
        """Whether the worker may have pods of the binding."""
        return self.stage not in (Stage.GIVEN_UP, Stage.UNDONE)


def observed(now: BindingLifecycle, seen: Observed) -> BindingLifecycle:
    """Returns the lifecycle after the binding was seen."""
    if not seen.deleted:
        return BindingLifecycle(Stage.SERVING, seen.uid)
    stage = now.stage if now.uid == seen.uid else Stage.SERVING
    if stage is Stage.UNDONE:
        return now
    if stage is Stage.GIVEN_UP:
        return now if seen.waits else evolve(now, stage=Stage.UNDONE)
    return BindingLifecycle(Stage.UNBINDING if seen.waits else Stage.LEFT, seen.uid)


def after(now: BindingLifecycle, done: Done, *, uid: str) -> BindingLifecycle:
    """Returns the lifecycle after something was done about the binding with this UID; another one has taken its place otherwise."""
    if now.uid != uid or now.stage is Stage.SERVING:
        return now
    if done is Done.UNDID or now.stage is Stage.LEFT:
        # No client waits for a binding that was deleted meanwhile, and the runtime has to be free to drop its pods.
        return evolve(now, stage=Stage.UNDONE)
    return evolve(now, stage=Stage.GIVEN_UP) if now.stage is Stage.UNBINDING else now


class Awaited(enum.Enum):
    """What unbinding waits for before anything can be removed."""

    NOTHING = ""
    CONNECTION = "the connection to the worker cluster is being opened"
    SCAN = "the objects in the worker cluster are being listed"
    PERMISSION = "cannot list the objects in the worker cluster"
    WORKER = "cannot clean up the worker cluster"
    DELETION = "the ClusterBinding exists again and is not being deleted"


@frozen(kw_only=True)
class Remaining:
    """What is left of a binding. Equal values mean that nothing has changed; a failed attempt changes nothing, whatever its error."""

    awaited: Awaited = Awaited.NOTHING
    nodes: int = 0
    pods: int = 0
    """Pods on these virtual nodes."""
    objects: tuple[tuple[str, int], ...] = ()
    """Pods and copies in the worker, as pairs of plural and count."""
    failing: bool = field(default=False, eq=False)
    """Whether the last attempt failed; the rest is from the attempt before."""
    problem: str = field(default="", eq=False)
    """Why it failed, or why what is awaited does not come."""
    stuck: bool = field(default=False, eq=False)
    """Whether nothing has changed for long."""

    @property
    def is_nothing(self) -> bool:
        """Whether everything is removed."""
        return self == _NOTHING and not self.failing

    def failed(self, error: Exception) -> Self:
        """Returns what is left after an attempt that failed."""
        return evolve(self, failing=True, problem=str(error))


_NOTHING: Final = Remaining()
GIVE_UP: Final = f"annotate the ClusterBinding {keys.FORCE_UNBIND}=true to give up the objects in the worker cluster"


def message(left: Remaining, *, namespace: str) -> str:
    """Renders what is left for users, with the remedy when nothing changes any more; `namespace` is that of the objects in the worker."""
    if left.is_nothing:
        return "everything of this binding is removed"
    text = _counts(left, namespace)
    if left.failing:
        text = f"the last attempt failed and is repeated: {left.problem}" + (f"; left: {text}" if text else "")
    elif left.awaited is Awaited.WORKER:
        return f"{blocked(left)}; left: {text or 'marks on ConfigMaps, Secrets and volumes'}"
    elif left.awaited is not Awaited.NOTHING:
        text = f"{left.awaited.value}: {left.problem}" if left.problem else left.awaited.value
    return f"{text}; if nothing changes, {GIVE_UP}" if left.stuck else text


def blocked(left: Remaining) -> str:
    """Renders why a worker that does not respond cannot be cleaned up, with the remedies."""
    return f"{left.awaited.value}: {left.problem}; restore the connection, or {GIVE_UP}"


def _counts(left: Remaining, namespace: str) -> str:
    if left.nodes:
        return f"{left.nodes} virtual nodes with {left.pods} pods"
    objects = ", ".join(f"{count} {plural}" for plural, count in left.objects)
    return f"{objects} in namespace {namespace} of the worker cluster" if objects else ""
