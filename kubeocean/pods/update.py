"""Sends the changes of a virtual pod to its physical pod.

Invariant: the generation is recorded on the physical pod last, so a partly sent change is sent again; an ephemeral container or a resize
that the worker rejects blocks no other change.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from kubeocean.model.identity import in_virtual_names
from kubeocean.pods.changes import Changes, with_pending, without_generation
from kubeocean.pods.resize import DEFERRED, INFEASIBLE, Pending
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json
from vkubelet.client.resources import PODS
from vkubelet.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable

log = logging.getLogger(__name__)

_TRIED_AGAIN_AFTER = 60.0
_ROOM_LOOKED_FOR_AFTER = 5.0
"""Seconds until a resize that waits for room in the lease is rechecked; unless there is some, no request is sent to the worker."""


class EphemeralRefused(Unavailable):
    """Raised when a change was applied except for some ephemeral containers; `problems` has the reasons by name.

    It is retried, because rights and objects in the worker may change.
    """

    def __init__(self, problems: Mapping[str, str], retry_after: float) -> None:
        super().__init__("; ".join(f"ephemeral container {name}: {problem}" for name, problem in problems.items()), retry_after=retry_after)
        self.problems = problems


class ResizePending(Unavailable):
    """Raised when a change was applied except for a resize; the caller reports it in the pod's condition and retries it later."""

    def __init__(self, pending: Pending, retry_after: float) -> None:
        super().__init__(str(pending), retry_after=retry_after, event="", waiting="")
        self.pending = pending


async def bring_up_to_date(
    worker: WorkerCluster, pod: Pod, physical: Pod, *, wanted: Changes, ensure: Callable[[], Awaitable[None]]
) -> None:
    """Sends the changes; nothing is written when there are none. `ensure` creates the objects that the containers of the pod refer to.

    Raises Unavailable when the worker does not accept them, EphemeralRefused or ResizePending when all else was done.
    """
    main, pending = wanted.main, wanted.pending
    try:
        refused = await _add_ephemeral(worker, pod, physical, wanted=wanted.ephemeral, ensure=ensure) if wanted.ephemeral else None
        if wanted.resize is not None:
            pending = await _resize(worker, pod, physical, wanted.resize)
        if refused is not None:
            main = without_generation(main)
        if pending is not None:
            main = with_pending(main, physical, pending)
        if main is not None:
            await worker.client.patch(PODS, physical.key, main)
    except Invalid as error:
        raise Unavailable(f"the worker cluster does not accept the change: {error.message}", retry_after=_TRIED_AGAIN_AFTER) from error
    except (NotFound, Conflict) as error:
        raise Unavailable("the physical pod has just changed", retry_after=1.0) from error
    if refused is not None:
        raise refused
    if pending is not None:
        raise ResizePending(pending, _ROOM_LOOKED_FOR_AFTER if wanted.pending else _TRIED_AGAIN_AFTER)


async def _add_ephemeral(
    worker: WorkerCluster, pod: Pod, physical: Pod, *, wanted: Mapping[str, Json], ensure: Callable[[], Awaitable[None]]
) -> EphemeralRefused | None:
    """Adds the containers one by one.

    No client can remove an ephemeral container in the hub, so one that is rejected must not block those after it.
    """
    try:
        await ensure()
    except Unavailable as error:
        return EphemeralRefused({name: str(error) for name in wanted}, error.retry_after or _TRIED_AGAIN_AFTER)
    problems: dict[str, str] = {}
    for name, change in wanted.items():
        try:
            await worker.client.patch(PODS, physical.key, change, subresource="ephemeralcontainers")
        except (Forbidden, Invalid) as error:
            problems[name] = f"the worker cluster refuses it: {in_virtual_names(error.message, pod.key, physical.key)}"
    return EphemeralRefused(problems, _TRIED_AGAIN_AFTER) if problems else None


async def _resize(worker: WorkerCluster, pod: Pod, physical: Pod, change: Json) -> Pending | None:
    """Sends a resize; returns why the worker did not accept it. Raises Conflict."""
    try:
        # The next check for room must include the new amounts at once.
        worker.pods.adopt(await worker.client.patch(PODS, physical.key, change, subresource="resize"))
    except NotFound:
        # If it is the pod that is missing, the next patch reports it.
        return Pending(INFEASIBLE, "the worker cluster can not resize pods in place; it needs Kubernetes 1.33")
    except (Forbidden, Invalid) as error:
        # A quota may have room for it later; an invalid request stays invalid.
        reason = DEFERRED if isinstance(error, Forbidden) else INFEASIBLE
        return Pending(reason, f"the worker cluster refuses it: {in_virtual_names(error.message, pod.key, physical.key)}")
    return None
