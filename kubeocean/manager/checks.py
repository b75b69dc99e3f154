"""Checks whether a worker cluster can serve a binding: whether it responds, the namespace is ours, and we have the rights.

Invariant: nothing is written in the worker but dry runs; what only the process of the binding may claim is read, never claimed.
"""

import asyncio
from collections.abc import Iterable, Sequence

from attrs import frozen

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, RIGHTS_MISSING, VALIDATION_FAILED, Failure
from kubeocean.manager.binding_status import rights_text
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.ownership import Mark, Ownership, classify
from kubeocean.rbac import permissions
from kubeocean.rbac.guards import Trial, trials
from kubeocean.rbac.tenants import wide_rules
from kubeocean.worker.cluster import Mount
from kubeocean.worker.connect import Target, answers, find_target, taken_mount
from vkubelet.api.objects import NAMESPACES
from vkubelet.api.rbac import Check, checks_of
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.control.rights import lacking_rights
from vkubelet.errors import ApiError, Forbidden, Invalid, NotFound

_WORKER_TIMEOUT = 25.0
"""Timeout of all requests to one worker, in seconds."""
_TRIALS_TIMEOUT = 10.0
"""Timeout of the trials, in seconds: admission webhooks take part in them."""


@frozen(kw_only=True)
class Findings:
    """Result of the checks. `connected` None: the worker was not queried; `missing` None: it was not queried for our rights."""

    problem: Failure | None = None
    connected: bool | None = None
    missing: Sequence[Check] | None = None
    unguarded: Sequence[str] | None = None
    """What the hub could do in the worker beyond its lease; None: not tried."""

    @property
    def rejected(self) -> bool:
        """Whether the binding itself is invalid: no object may be created for it."""
        return self.problem is not None and self.problem.reason == VALIDATION_FAILED

    @property
    def lacking(self) -> Failure | None:
        """The missing rights without which no pod can run."""
        essential = [check for check in self.missing or () if check.essential]
        return Failure(RIGHTS_MISSING, rights_text(essential)) if essential else None


async def check_worker(hub: Client, binding: ClusterBinding, hub_uid: str, *, clock: Clock) -> Findings:
    """Performs all checks. Raises ApiError when a request to this cluster fails."""
    target = await find_target(hub, binding, hub_uid)
    if isinstance(target, Failure):
        return Findings(problem=target, connected=False if target.reason == CONNECTIVITY_FAILED else None)
    try:
        async with asyncio.timeout(_WORKER_TIMEOUT):
            return await _check(target, hub, clock)
    except TimeoutError:
        text = f"spec.secretRef: the worker cluster did not respond within {_WORKER_TIMEOUT:g} s"
        text += "; check the server in the kubeconfig and the network"
        return Findings(problem=Failure(CONNECTIVITY_FAILED, text), connected=False)


async def _check(target: Target, hub: Client, clock: Clock) -> Findings:
    async with Client(target.connection, field_manager=hub.field_manager, clock=clock) as worker:
        failure = await answers(worker)
        if failure is not None:
            return Findings(problem=failure, connected=False)
        try:
            wide = () if target.mount.is_shared else checks_of(wide_rules(target.mount.namespace))
            missing = await lacking_rights(worker, (*permissions.worker_checks(target.mount.namespace), *wide))
            problem = await _foreign_mount(worker, target.mount)
        except ApiError as error:
            text = f"spec.secretRef: the worker cluster responds, but a check failed: {error}; check its API server"
            return Findings(problem=Failure(CONNECTIVITY_FAILED, text), connected=False)
        return Findings(problem=problem, connected=True, missing=missing, unguarded=await unguarded(worker, target.mount.namespace))


async def unguarded(worker: Client, mount_namespace: str) -> Sequence[str] | None:
    """Returns what this user gains beyond the lease. None when that stays open: a failing webhook is no failure of the connection."""
    try:
        async with asyncio.timeout(_TRIALS_TIMEOUT):
            return await accepted_trials(worker, trials(mount_namespace))
    except (ApiError, TimeoutError):
        return None


async def accepted_trials(worker: Client, tried: Iterable[Trial]) -> tuple[str, ...]:
    """Returns the gains of trials that the worker's admission does not refuse; persists nothing. Raises ApiError for other failures."""
    dry = worker.dry_run()
    gained = []
    for trial in tried:
        try:
            if trial.name:
                await dry.patch(trial.resource, trial.name, trial.body, kind=PatchKind.MERGE)
            else:
                await dry.create(trial.resource, trial.body)
        except (Forbidden, Invalid, NotFound):
            continue
        gained.append(trial.gains)
    return tuple(gained)


async def _foreign_mount(worker: Client, mount: Mount) -> Failure | None:
    """Checks for a mount namespace that is missing or another binding's; one that we may not read is left to the checks of rights."""
    try:
        namespace = (await worker.get(NAMESPACES, mount.namespace)).metadata
    except NotFound:
        text = f"spec.mountNamespace: the worker cluster has no namespace {mount.namespace}; create it, or name another namespace"
        return Failure(VALIDATION_FAILED, text)
    except Forbidden:
        return None
    return taken_mount(namespace) if classify(namespace, mount.owner, mark=Mark.MOUNT) is Ownership.ANOTHERS else None
