"""Pod lifecycle controller: syncs each pod to the provider, terminates it in the backend, and deletes its API object last.

Invariant: calls for one UID never overlap, a deletion cancels a running sync first, and every pod is tracked by its UID until neither the
API nor the backend has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from attrs import frozen

from vkubelet.api.objects import Pod, PodRef
from vkubelet.client.resources import PODS
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.answered import answered
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Conflict, NoSuchPod, NotAdmitted, NotFound, PodRejected, Unavailable, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.pods.admission import Admission
from vkubelet.pods.board import StatusBoard
from vkubelet.pods.dispatch import Dispatch
from vkubelet.pods.slots import Slots
from vkubelet.pods.status import End
from vkubelet.pods.steps import ORPHAN_GRACE, Content, Life, Situation, Step, next_step
from vkubelet.provider import Provider, Waiting

log = logging.getLogger(__name__)

IN_FLIGHT = 200
"""Maximum number of syncs running in the provider at the same time; a slow one does not block the others."""

WORKERS = 2000
"""More workers than syncs, and a pod that waits for its sync occupies none, so that deletions continue while the provider hangs in all
syncs."""

FINAL_STATUS = 10.0
"""Seconds for the final status to be accepted; after that the API object is deleted without it."""

CONFIRM_AGAIN = 5.0
"""Seconds until a pod that a list missed, but that exists, is checked again."""

_TERMINATED = End("Terminated", "Pod was terminated in response to imminent node shutdown.", failed=True, disrupts=True)
_NOT_ADMITTED = "Pod was rejected: "
"""Prefix of the reason in the message of a pod that was not admitted; its event has the reason alone (rejectPod)."""
_REFUSED = End("NodeShutdown", f"{_NOT_ADMITTED}Pod was rejected as the node is shutting down.", failed=True)

GONE_EARLY = 1000
"""Number of reports of missing workloads kept for pods that the watch has not delivered yet."""


@frozen(kw_only=True)
class LifecycleParts:
    """Collaborators of the lifecycle controller."""

    provider: Provider
    dispatch: Dispatch
    node_client: Callable[[str], Client]
    recorder: Recorder
    clock: Clock
    metrics: Metrics | None = None
    admission: Admission | None = None
    """None: the provider admits or rejects pods itself."""


class Lifecycle:
    """Lifecycle controller of all pods; `on_drop(node)` is called when a pod of that node is dropped."""

    def __init__(self, parts: LifecycleParts, *, on_drop: Callable[[str], None]) -> None:
        self._parts = parts
        self._on_drop = on_drop
        self._lives: dict[str, Life] = {}
        self._by_node: dict[str, set[str]] = {}
        self._gone_early: dict[str, None] = {}
        self._working = False
        self._round = 0
        self.slots = Slots(IN_FLIGHT, wake=lambda uid, priority: self.controller.add(uid, priority=priority))
        self.controller: Controller[str] = Controller("pods", self._reconcile, workers=WORKERS, clock=parts.clock, metrics=parts.metrics)
        self.board: StatusBoard

    async def run(self) -> None:
        """Runs the controller until cancelled."""
        self._working = True
        try:
            await self.controller.run()
        finally:
            self._working = False

    # --- input; nothing here waits ---

    def observe(self, change: Change[Pod]) -> None:
        """Handles the creation, change or deletion of a pod of a known node."""
        if change.new is not None:
            self._observe_pod(change, change.new)
        elif change.old is not None:
            self._observe_end(change, change.old)

    def _observe_pod(self, change: Change[Pod], pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._parts.admission is not None:
            self._parts.admission.observe(pod)
        life = self._lives.get(uid)
        if life is None:
            # Only a pod whose creation we watched is known not to have been started by a previous process.
            held = change.initial or not self._working
            life = self._begin(Life(pod.ref, held, gone=uid in self._gone_early))
            self._gone_early.pop(uid, None)
        life.suspected = False
        if not life.removed:
            # Our own deletion sets the grace period to zero too; the deadline that the provider has remains valid.
            life.note(pod, now=self._parts.clock.monotonic(), wall=self._parts.clock.now())
        if pod.terminating and life.syncing:
            self.controller.cancel_running(uid)
        if _concerns(change.old, pod):
            self.controller.add(uid, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _observe_end(self, change: Change[Pod], old: Pod) -> None:
        uid = old.metadata.uid
        life = self._lives.get(uid)
        if life is None:
            return
        life.suspected = change.suspected
        if not change.suspected:
            self._object_gone(life)
        self.controller.add(uid)

    def _object_gone(self, life: Life) -> None:
        """Handles the deletion of the object: unless the runtime deleted it, this was a forced deletion, and the grace period is over."""
        life.suspected = False
        if not life.removed:
            life.end_by(self._parts.clock.monotonic())
        if life.syncing:
            self.controller.cancel_running(life.ref.uid)

    def gone(self, ref: PodRef) -> None:
        """Records that the backend has nothing left of this pod."""
        life = self._lives.get(ref.uid)
        if life is not None:
            life.gone = True
            self.controller.add(ref.uid)
            return
        self._gone_early[ref.uid] = None
        if len(self._gone_early) > GONE_EARLY:
            self._gone_early.pop(next(iter(self._gone_early)))

    def end_orphan(self, ref: PodRef) -> None:
        """Terminates the workload of a pod that the API does not have."""
        if ref.uid in self._lives:
            return
        life = self._begin(Life(ref, held=True))
        life.end_by(self._parts.clock.monotonic() + ORPHAN_GRACE)
        self.controller.add(ref.uid)

    def revisit(self, node: str) -> None:
        """Requeues all pods of a node whose dispatch mode changed."""
        for uid in self._by_node.get(node, ()):
            self.controller.add(uid, priority=Priority.LOW)

    def resync(self) -> None:
        """Requeues every pod after a restart of the provider, including pods that it is syncing and pods that are terminating."""
        self._round += 1
        for uid, life in self._lives.items():
            life.synced = life.told = life.told_zero = None
            self.controller.add(uid, priority=Priority.LOW)

    def resync_pod(self, uid: str) -> None:
        """Hands one pod to the provider again, whether or not it has changed."""
        life = self._lives.get(uid)
        if life is not None:
            # A sync that is in progress may have used the previous state.
            life.synced, life.outdated = None, True
            self.controller.add(uid)

    def drain(self, grace: float) -> None:
        """Terminates all pods because the process stops; each has its own grace period, but no more than `grace` seconds."""
        now = self._parts.clock.monotonic()
        for uid, life in self._lives.items():
            pod = self._parts.dispatch.store.by_uid(uid)
            own = pod.spec.get("terminationGracePeriodSeconds", grace) if pod is not None else 0.0
            life.end_by(now + min(own, grace))
            if life.syncing:
                self.controller.cancel_running(uid)
            self.controller.add(uid)

    @property
    def drained(self) -> bool:
        """Whether no pod runs any more and the API shows it."""
        pods = (self._parts.dispatch.store.by_uid(uid) for uid in self._lives)
        return all(pod is None or pod.terminal for pod in pods)

    def forget(self, node: str) -> None:
        """Drops a node that this process no longer serves, and its pods."""
        for uid in list(self._by_node.get(node, ())):
            if self._lives[uid].syncing:
                self.controller.cancel_running(uid)
            self._drop(self._lives[uid])

    def touch(self, uid: str) -> None:
        """Requeues a pod because something that may matter to it has changed."""
        if uid in self._lives:
            self.controller.add(uid)

    def life(self, uid: str) -> Life | None:
        """Returns the record of a pod, or None when it was never seen or is dropped."""
        return self._lives.get(uid)

    def lives(self, node: str) -> Sequence[Life]:
        """Returns the records of the pods of a node that are not dropped yet."""
        return [self._lives[uid] for uid in self._by_node.get(node, ())]

    def holds(self, node: str) -> bool:
        """Checks whether the backend may have something of a pod of this node."""
        return any(life.held for life in self.lives(node))

    def _begin(self, life: Life) -> Life:
        self._lives[life.ref.uid] = life
        self._by_node.setdefault(life.ref.node, set()).add(life.ref.uid)
        return life

    # --- one step ---

    async def _reconcile(self, uid: str) -> float | None:
        life = self._lives.get(uid)
        if life is None:
            return None
        pod = self._parts.dispatch.store.by_uid(uid)
        step, number = self._next(life, pod)
        if step is Step.SYNC and not self.slots.take(uid, self.controller.queue.priority(uid)):
            return None
        if step is not Step.SYNC:
            self.slots.drop(uid)
        with bind(node=life.ref.node, pod=str(life.ref.key), uid=life.ref.uid):
            match step:
                case Step.REST:
                    return number
                case Step.END:
                    return await self._end(life, number or 0.0)
                case Step.CONFIRM:
                    return await self._confirm(life)
                case Step.DROP:
                    self._drop(life)
                    return None
            assert pod is not None
            match step:
                case Step.SYNC:
                    return await self._sync(pod, life)
                case Step.LOSE:
                    return self._lose(pod)
                case Step.SHUT:
                    return self._shut(pod, life)
                case _:
                    return await self._close(pod, life)

    def _next(self, life: Life, pod: Pod | None) -> tuple[Step, float | None]:
        ours = self.board.annotations(life.ref.uid)
        situation = Situation(
            pod=pod,
            terminal=pod is not None and self.board.terminal(pod),
            standing=self._parts.dispatch.standing(life.ref.node),
            current=pod is not None and life.synced is not None and Content.of(pod).same_as(life.synced, ours=ours),
        )
        return next_step(life, situation, now=self._parts.clock.monotonic())

    async def _sync(self, pod: Pod, life: Life) -> float | None:
        life.syncing = True
        try:
            if self._parts.admission is not None and life.handed_at is None:
                self._parts.admission.admit(pod)
            life.held, life.outdated, told_in = True, False, self._round
            operation = "create" if life.handed_at is None else "sync"
            with self._timed(life.ref.node, operation), _ReportedCall(self, pod, "FailedSync"):
                await self._parts.provider.sync_pod(pod)
        except PodRejected as error:
            life.over = True
            self._parts.recorder.event(ObjectReference.of(PODS, pod), error.reason, error.message, warning=True)
            # The kubelet's message for a pod that it did not admit (rejectPod); a provider's own message is used unchanged.
            refused = isinstance(error, NotAdmitted)
            message = f"{_NOT_ADMITTED}{error.message}" if refused else error.message
            if refused and self._parts.metrics is not None:
                self._parts.metrics.admission_rejections.labels(error.reason).inc()
            self.board.end(life.ref.uid, End(error.reason, message, failed=True))
            log.info("pod rejected")
            return None
        finally:
            life.syncing = False
            self.slots.free(life.ref.uid)
        current = told_in == self._round and not life.outdated
        life.synced, life.handed_at = Content.of(pod) if current else None, self._parts.clock.monotonic()
        self.board.synced(life.ref.uid, pod.metadata.generation)
        return None

    def failed(self, pod: Pod, reason: str, message: str, *, waiting: str = "") -> None:
        """Emits an event for a failed call to the provider that will be retried, and shows why the containers are `waiting`."""
        if reason:
            # The kubelet's format of an event for a container that cannot be created.
            text = f"Error: {message}" if reason == "Failed" else message
            self._parts.recorder.event(ObjectReference.of(PODS, pod), reason, text, warning=True)
        if waiting:
            self.board.sync_failed(pod.metadata.uid, Waiting(waiting, message))

    @contextmanager
    def _timed(self, node: str, operation: str) -> Iterator[None]:
        began, failed = self._parts.clock.monotonic(), True
        try:
            yield
            failed = False
        except asyncio.CancelledError:
            failed = False
            raise
        finally:
            if self._parts.metrics is not None:
                self._parts.metrics.pod_worker.observe(node, operation, self._parts.clock.monotonic() - began, failed=failed)

    async def _end(self, life: Life, grace: float) -> float | None:
        now, told_in = self._parts.clock.monotonic(), self._round
        pod = self._parts.dispatch.store.by_uid(life.ref.uid)
        try:
            with self._timed(life.ref.node, "kill"), _ReportedCall(self, pod, "FailedKillPod"):
                call = self._parts.provider.delete_pod(life.ref, grace)
                await answered(call, "delete_pod", clock=self._parts.clock)
        except NoSuchPod:
            life.gone = True
        if pod is not None and pod.terminating:
            self.board.observed(life.ref.uid, pod.metadata.generation)
        life.handed_at = self._parts.clock.monotonic()
        if told_in == self._round:
            life.told, life.told_zero = now + grace, now if grace <= 0 else life.told_zero
        return 0.0

    async def _confirm(self, life: Life) -> float | None:
        """Asks the API for the pod itself before its workload is terminated, because a list without the pod may have been wrong."""
        if await exists(self._parts.node_client(life.ref.node), life.ref):
            return CONFIRM_AGAIN
        if life.suspected:
            self._object_gone(life)
        return 0.0

    def _lose(self, pod: Pod) -> float | None:
        text = "the provider's backend does not hold this pod any more, although nobody deleted it"
        self._parts.recorder.event(ObjectReference.of(PODS, pod), "ProviderLost", text, warning=True)
        self.board.end(pod.metadata.uid, End("ProviderLost", text, failed=True))
        log.info("pod lost by the provider")
        life = self._lives.get(pod.metadata.uid)
        if life is not None:
            life.over = True
        return None

    def _shut(self, pod: Pod, life: Life) -> float | None:
        """Fails the pod as a kubelet does at a graceful node shutdown (KEP-2000)."""
        end = _TERMINATED if life.held else _REFUSED
        self._parts.recorder.event(ObjectReference.of(PODS, pod), end.reason, end.message.removeprefix(_NOT_ADMITTED), warning=True)
        self.board.end(life.ref.uid, end)
        life.over = True
        return None

    async def _close(self, pod: Pod, life: Life) -> float | None:
        now = self._parts.clock.monotonic()
        if not self.board.terminal(pod):
            life.closing = now if life.closing is None else life.closing
            self.board.end(life.ref.uid, End())
            left = life.closing + FINAL_STATUS - now
            if left > 0:
                return left
        # The watch may deliver the deletion before the response arrives; it must not be mistaken for one by another client.
        life.removed = True
        try:
            await self._parts.node_client(pod.node).delete(PODS, pod.ref, grace=0, uid=pod.metadata.uid)
        except (NotFound, Conflict):
            log.debug("pod was removed already")
        except VKubeletError:
            life.removed = False
            raise
        return None

    def _drop(self, life: Life) -> None:
        del self._lives[life.ref.uid]
        self.slots.drop(life.ref.uid)
        left = self._by_node[life.ref.node]
        left.discard(life.ref.uid)
        if not left:
            del self._by_node[life.ref.node]
        self.board.forget(life.ref.uid)
        if self._parts.admission is not None:
            self._parts.admission.forget(life.ref.uid)
        self._on_drop(life.ref.node)


class _ReportedCall:
    """Context of a call to the provider that reports the error, whatever it is, and lets it propagate."""

    def __init__(self, lifecycle: Lifecycle, pod: Pod | None, reason: str) -> None:
        self._lifecycle = lifecycle
        self._pod = pod
        self._reason = reason

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pod is None or error is None or isinstance(error, PodRejected | NoSuchPod | asyncio.CancelledError):
            return
        # The text of an unknown error may contain anything, so it is only logged.
        message = str(error) if isinstance(error, VKubeletError) else f"the provider raised {type(error).__name__}"
        if self._reason != "FailedSync":
            self._lifecycle.failed(self._pod, self._reason, message)
        elif isinstance(error, Unavailable):
            self._lifecycle.failed(self._pod, error.event, message, waiting=error.waiting)
        else:
            self._lifecycle.failed(self._pod, self._reason, message, waiting="ProviderFailed")


async def exists(client: Client, ref: PodRef) -> bool:
    """Checks whether the API still has exactly this incarnation. Raises ApiError when the API server does not answer that."""
    try:
        found = await client.get(PODS, ref)
    except NotFound:
        return False
    return found.metadata.uid == ref.uid


def _concerns(old: Pod | None, new: Pod) -> bool:
    """Checks whether anything but the running status changed."""
    if old is None or old.metadata.uid != new.metadata.uid:
        return True
    before, after = old.metadata, new.metadata
    return (
        old.spec_json != new.spec_json
        or before.labels != after.labels
        or before.annotations != after.annotations
        or before.deletion_timestamp != after.deletion_timestamp
        or before.deletion_grace_period_seconds != after.deletion_grace_period_seconds
        or old.terminal != new.terminal
    )
