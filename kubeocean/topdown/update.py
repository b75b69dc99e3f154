"""Sends to a physical pod what changed on its virtual one.

Invariant: the generation is noted on the physical pod last, so a half-sent change is sent again.
"""

from __future__ import annotations

import logging

from kubeocean.topdown.changes import changes
from kubeocean.topdown.identity import Target
from vkubelet.api.objects import Pod
from vkubelet.api.quantity import Resources
from vkubelet.client.resources import PODS
from vkubelet.client.rest import Client
from vkubelet.errors import Conflict, Invalid, NotFound, Unavailable

log = logging.getLogger(__name__)


async def bring_up_to_date(worker: Client, pod: Pod, physical: Pod, *, target: Target, allocatable: Resources | None) -> None:
    """Patch what differs; nothing is written when nothing does.

    Raises PodRejected when a new part can not be translated, Unavailable when the worker does not accept it.
    """
    wanted = changes(pod, physical, target, allocatable=allocatable)
    try:
        if wanted.ephemeral is not None:
            await worker.patch(PODS, physical.key, wanted.ephemeral, subresource="ephemeralcontainers")
        if wanted.resize is not None:
            await _resize(worker, physical, wanted.resize)
        if wanted.main is not None:
            await worker.patch(PODS, physical.key, wanted.main)
    except Invalid as error:
        raise Unavailable(f"the worker cluster does not accept the change: {error.message}", retry_after=60.0) from error
    except (NotFound, Conflict) as error:
        raise Unavailable("the physical pod has just changed", retry_after=1.0) from error


async def _resize(worker: Client, physical: Pod, change: dict[str, object]) -> None:
    try:
        await worker.patch(PODS, physical.key, change, subresource="resize")
    except NotFound:
        # Workers before Kubernetes 1.33 know no resize; the condition at home says that it is pending.
        log.debug("the worker cluster can not resize pods in place")
