"""Logs, exec, attach and port-forward of virtual pods, through the worker's API server.

Invariant: the worker applies every option and its bytes pass unchanged; its errors reach the user with the virtual pod's names.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import frozen

from kubeocean.model.identity import in_virtual_names
from vkubelet import errors
from vkubelet.api.objects import PODS, Key, Pod
from vkubelet.api.podspec import containers
from vkubelet.client.remote import port_forward as forward_port
from vkubelet.client.remote import remote_command
from vkubelet.client.rest import Client
from vkubelet.clock import rfc3339_micro
from vkubelet.provider import ByteStream, ContainerIO, LogOptions

# Prefixes that an API server adds to the error of a kubelet, and a kubelet to that of a container runtime: our own server repeats them.
_SAID_AGAIN: Final = re.compile(r"\A(Internal error occurred: (?=Internal error occurred: )|error forwarding port \d+ to pod [^:]*: )")


@frozen
class Backing:
    """A virtual pod and the name of the physical pod behind it."""

    client: Client
    virtual: Pod
    physical: Key

    def in_virtual_names(self, text: str) -> str:
        """Replaces the worker's names in a text by the virtual ones."""
        return in_virtual_names(text, self.virtual.key, self.physical)

    def path(self, subresource: str) -> str:
        """Returns the path of a subresource in the worker's API."""
        return PODS.path(self.physical.namespace, self.physical.name, subresource)


def log_params(container: str, options: LogOptions) -> list[tuple[str, str]]:
    """Returns the query of `pods/log` (core v1 PodLogOptions)."""
    params = [("container", container)]
    flags = (("follow", options.follow), ("previous", options.previous), ("timestamps", options.timestamps))
    params += [(name, "true") for name, wanted in flags if wanted]
    if options.tail is not None:
        params.append(("tailLines", str(options.tail)))
    if options.since_seconds is not None:
        params.append(("sinceSeconds", str(options.since_seconds)))
    elif options.since is not None:
        params.append(("sinceTime", rfc3339_micro(options.since)))
    if options.limit_bytes is not None:
        params.append(("limitBytes", str(options.limit_bytes)))
    return params


def container_names(pod: Pod) -> set[str]:
    """Returns the names of containers of every kind."""
    return {container["name"] for container in containers(pod.spec)}


async def stream_logs(backing: Backing, container: str, options: LogOptions) -> AsyncIterator[bytes]:
    """Yields chunks as they arrive from the worker.

    Raises NoSuchContainer, NoSuchPod, BadRequest with the worker's own text, Unavailable.
    """
    _check_container(backing, container)
    with _in_virtual_names(backing, "the logs"):
        async with backing.client.stream(backing.path("log"), log_params(container, options)) as chunks:
            async for chunk in chunks:
                yield chunk


async def execute(backing: Backing, container: str, command: Sequence[str], *, io: ContainerIO) -> int:
    """Returns the exit code. Raises as `stream_logs`, and Unavailable with the worker's own text when it cannot run the command."""
    _check_container(backing, container)
    params = [("container", container), *(("command", word) for word in command)]
    with _in_virtual_names(backing, "the streams of the command"):
        return await remote_command(backing.client, backing.path("exec"), params, console=io)


async def attach(backing: Backing, container: str, io: ContainerIO) -> None:
    """Connects the streams until the container terminates. Raises as `execute`."""
    _check_container(backing, container)
    with _in_virtual_names(backing, "the streams of the container"):
        await remote_command(backing.client, backing.path("attach"), [("container", container)], console=io)


async def port_forward(backing: Backing, port: int, stream: ByteStream) -> None:
    """Forwards bytes until one side closes the connection. Raises as `execute`, also when no process listens on the port."""
    with _in_virtual_names(backing, "the connection"):
        await forward_port(backing.client, backing.path("portforward"), port, stream=stream)


def _check_container(backing: Backing, container: str) -> None:
    if container not in container_names(backing.virtual):
        raise errors.NoSuchContainer(f"container {container} is not valid for pod {backing.virtual.key.name}")


@contextmanager
def _in_virtual_names(backing: Backing, what: str) -> Iterator[None]:
    try:
        yield
    except errors.ApiError as error:
        raise translated(error, what, names=backing.in_virtual_names) from error


def translated(error: errors.ApiError, what: str, *, names: Callable[[str], str]) -> errors.ProviderError:
    """Translates the worker's error for the user who requested `what`."""
    text = _SAID_AGAIN.sub("", names(error.message))
    if isinstance(error, errors.NotFound):
        return errors.NoSuchPod(text)
    if isinstance(error, errors.Invalid):
        return errors.BadRequest(text)
    if error.status == 500:
        # The text is from the worker's kubelet or container runtime.
        return errors.Unavailable(text)
    if isinstance(error, (errors.Unreachable, errors.ServerError)):
        return errors.Unavailable(f"cannot read {what} from the worker cluster: {text}")
    return errors.Unavailable(f"the worker cluster refused {what}: {text}")
