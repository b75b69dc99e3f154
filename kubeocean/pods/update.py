"""Sends the changes of virtual pods to their physical pods.

Invariant: the generation is recorded on the physical pod last, so a partly sent change is sent again; an ephemeral container or a resize
that the worker rejects blocks no other change.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from attrs import define, field

from kubeocean.model.identity import in_virtual_names
from kubeocean.pods.changes import DEFERRED, INFEASIBLE, Changed, Pending, Room, unmet_resize
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import PODS, Json, Pod
from vkubelet.api.quantity import sum_resources
from vkubelet.api.scheduling import effective_requests
from vkubelet.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable

_REFUSAL_RETRIED_AFTER = 60.0
_ROOM_CHECKED_AFTER = 5.0
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


@define(kw_only=True, eq=False)
class PodUpdater:
    """Sends patches; `ensure` creates the objects in the worker that the containers of a pod refer to."""

    scope: WorkerScope
    ensure: Callable[[Pod], Awaitable[None]]
    _resizing: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    """Two pods that grow at the same time must not both use the same room."""

    async def send(self, pod: Pod, changed: Changed) -> None:
        """Sends the changes; nothing is written when there are none.

        Raises Unavailable when the worker does not accept them, EphemeralRefused or ResizePending when all else was done.
        """
        worker, physical = self.scope.worker, changed.physical
        try:
            refused = await self._add_ephemeral(pod, physical, changed.ephemeral) if changed.ephemeral else None
            pending = await self._resize(pod, physical, changed.resize) if changed.resize is not None else None
            if refused is not None:
                changed = changed.without_generation()
            if pending is not None:
                changed = changed.without_resize(pending.pending)
            if changed.main is not None:
                await worker.client.patch(PODS, physical.key, changed.main)
        except Invalid as error:
            text = f"the worker cluster does not accept the change of pod {pod.key}: {_message(pod, physical, error)}"
            raise Unavailable(text, retry_after=_REFUSAL_RETRIED_AFTER) from error
        except (NotFound, Conflict) as error:
            text = f"the physical pod of {pod.key} has just changed in the worker cluster; the change is sent again"
            raise Unavailable(text, retry_after=1.0) from error
        if refused is not None:
            raise refused
        if pending is not None:
            raise pending

    async def _add_ephemeral(self, pod: Pod, physical: Pod, patches: Mapping[str, Json]) -> EphemeralRefused | None:
        """Adds the containers one by one.

        No client can remove an ephemeral container in the hub, so one that is rejected must not block those after it.
        """
        try:
            await self.ensure(pod)
        except Unavailable as error:
            return EphemeralRefused({name: str(error) for name in patches}, error.retry_after or _REFUSAL_RETRIED_AFTER)
        problems: dict[str, str] = {}
        for name, patch in patches.items():
            try:
                await self.scope.worker.client.patch(PODS, physical.key, patch, subresource="ephemeralcontainers")
            except (Forbidden, Invalid) as error:
                problems[name] = f"the worker cluster refuses the container: {_message(pod, physical, error)}"
        return EphemeralRefused(problems, _REFUSAL_RETRIED_AFTER) if problems else None

    async def _resize(self, pod: Pod, physical: Pod, patch: Json) -> ResizePending | None:
        """Sends a resize if the lease has room for it; returns why the physical pod does not have the new amounts. Raises Conflict."""
        async with self._resizing:
            room = self._room(pod, physical)
            unmet = unmet_resize(pod.spec, physical.spec, room) if room is not None else None
            if unmet is not None:
                return ResizePending(unmet, _ROOM_CHECKED_AFTER)
            try:
                # The next check for room must include the new amounts at once.
                worker = self.scope.worker
                worker.pods.adopt(await worker.client.patch(PODS, physical.key, patch, subresource="resize"))
            except NotFound:
                # If it is the pod that is missing, the next patch reports it.
                unmet = Pending(INFEASIBLE, "the worker cluster cannot resize pods in place; it needs Kubernetes 1.33 or later")
            except (Forbidden, Invalid) as error:
                # A quota may have room for it later; an invalid request stays invalid.
                unmet = Pending(
                    DEFERRED if isinstance(error, Forbidden) else INFEASIBLE,
                    f"the worker cluster refuses the resize: {_message(pod, physical, error)}",
                )
        return ResizePending(unmet, _REFUSAL_RETRIED_AFTER) if unmet is not None else None

    def _room(self, pod: Pod, physical: Pod) -> Room | None:
        """Returns the room for a pod on its virtual node; None when the node is not declared."""
        allocatable = self.scope.virtual.allocatable(pod.node)
        if allocatable is None:
            return None
        on_node = self.scope.worker.pods_of(pod.node)
        others = (other for other in on_node if other.metadata.uid != physical.metadata.uid and not other.terminal)
        return Room(allocatable, sum_resources(effective_requests(other.spec) for other in others))


def _message(pod: Pod, physical: Pod, error: Forbidden | Invalid) -> str:
    return in_virtual_names(error.message, pod.key, physical.key)
