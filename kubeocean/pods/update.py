"""Sends to a physical pod what changed on its virtual one.

Invariant: the generation is noted on the physical pod last, so a half-sent change is sent again; an ephemeral container or a resize that
the worker refuses holds up nothing else.
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
"""Seconds until a resize that waits for room in the lease is looked at again; unless there is some, nothing is asked of the worker."""


class EphemeralRefused(Unavailable):
    """All of a change arrived but some ephemeral containers; why, by name, in `problems`. Rights and objects there may yet change."""

    def __init__(self, problems: Mapping[str, str], retry_after: float) -> None:
        super().__init__("; ".join(f"ephemeral container {name}: {problem}" for name, problem in problems.items()), retry_after=retry_after)
        self.problems = problems


class ResizePending(Unavailable):
    """All of a change arrived but a resize; whoever sends it says so by the pod's condition, and may find room for it later."""

    def __init__(self, pending: Pending, retry_after: float) -> None:
        super().__init__(str(pending), retry_after=retry_after, event="", waiting="")
        self.pending = pending


async def bring_up_to_date(
    worker: WorkerCluster, pod: Pod, physical: Pod, *, wanted: Changes, ensure: Callable[[], Awaitable[None]]
) -> None:
    """Send the changes; nothing is written when there are none. `ensure` makes what the containers of the pod refer to.

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
    """One by one: nobody can take a container back at home, so one that is refused must not keep out those that come after it."""
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
    """Why the worker does not have the new amounts. Raises Conflict."""
    try:
        # Whoever asks for room next has to know of it at once.
        worker.pods.adopt(await worker.client.patch(PODS, physical.key, change, subresource="resize"))
    except NotFound:
        # If it is the pod that is gone, the next patch says so.
        return Pending(INFEASIBLE, "the worker cluster can not resize pods in place; it needs Kubernetes 1.33")
    except (Forbidden, Invalid) as error:
        # A quota may have room for it later; what is not valid stays so.
        reason = DEFERRED if isinstance(error, Forbidden) else INFEASIBLE
        return Pending(reason, f"the worker cluster refuses it: {in_virtual_names(error.message, pod.key, physical.key)}")
    return None
