"""Logs of virtual pods, read through the worker's API server.

Invariant: the worker applies every option and its bytes pass untouched; its errors reach the user with the virtual pod's names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from attrs import frozen

from vkubelet.api.objects import Key, Pod
from vkubelet.client.resources import PODS
from vkubelet.client.rest import Client
from vkubelet.clock import rfc3339_micro
from vkubelet.errors import ApiError, BadRequest, Invalid, NoSuchContainer, NoSuchPod, NotFound, ServerError, Unavailable, Unreachable
from vkubelet.provider import LogOptions


@frozen
class Backing:
    """A virtual pod and the name of the physical pod behind it."""

    client: Client
    virtual: Pod
    physical: Key

    def in_virtual_names(self, text: str) -> str:
        """What the worker said, with our names in the place of its own."""
        virtual = self.virtual.key
        text = text.replace(str(self.physical), str(virtual)).replace(self.physical.name, virtual.name)
        return text.replace(f'namespace "{self.physical.namespace}"', f'namespace "{virtual.namespace}"')


def log_params(container: str, options: LogOptions) -> list[tuple[str, str]]:
    """The query of `pods/log` (core v1 PodLogOptions)."""
    params = [("container", container)]
    flags = (("follow", options.follow), ("previous", options.previous), ("timestamps", options.timestamps))
    params += [(name, "true") for name, wanted in flags if wanted]
    if options.tail is not None:
        params.append(("tailLines", str(options.tail)))
    if options.since is not None:
        params.append(("sinceTime", rfc3339_micro(options.since)))
    if options.limit_bytes is not None:
        params.append(("limitBytes", str(options.limit_bytes)))
    return params


def container_names(pod: Pod) -> set[str]:
    """Containers of every kind."""
    spec = pod.spec
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return {container["name"] for kind in kinds for container in spec.get(kind) or ()}


async def stream_logs(backing: Backing, container: str, options: LogOptions) -> AsyncIterator[bytes]:
    """Chunks as they come from the worker.

    Raises NoSuchContainer, NoSuchPod, BadRequest with the worker's own text, Unavailable.
    """
    if container not in container_names(backing.virtual):
        raise NoSuchContainer(f"container {container} is not valid for pod {backing.virtual.key.name}")
    path = PODS.path(backing.physical.namespace, backing.physical.name, "log")
    try:
        async with backing.client.stream(path, log_params(container, options)) as chunks:
            async for chunk in chunks:
                yield chunk
    except ApiError as error:
        raise _translated(error, backing) from error


def _translated(error: ApiError, backing: Backing) -> Exception:
    text = backing.in_virtual_names(error.message)
    if isinstance(error, NotFound):
        return NoSuchPod(text)
    if isinstance(error, Invalid):
        return BadRequest(text)
    if isinstance(error, (Unreachable, ServerError)):
        return Unavailable(f"the worker cluster can not give the logs: {text}")
    return Unavailable(f"the worker cluster refused the logs: {text}")
