"""ContainerProvider: for backends that start and stop single containers, while the runtime implements the pod lifecycle.

Invariant: the runtime decides what runs when; the provider executes that and reports facts by `host.report`, with the given `restarts`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from attrs import field, frozen

from vkubelet.api.objects import JsonView, Pod, PodRef
from vkubelet.provider.contract import Host, PodReport
from vkubelet.provider.resolved import ResolvedContainer, ResolvedPod


@frozen
class Sandbox:
    """Shared resources of the containers of one pod: addresses, the primary one first, and the directory of its volumes (None: none)."""

    ips: Sequence[str] = ()
    files: Path | None = field(default=None, kw_only=True)


@runtime_checkable
class ContainerProvider(Protocol):
    """Alternative to `Provider`: the runtime implements `sync_pod`, `delete_pod` and `list_pods` with these calls.

    Calls for one container never overlap, except `stop_container`, which may shorten an earlier one. Probes and hooks that run commands
    need SupportsExec; those that dial use the pod's address. Every report of a container contains the `restarts` of the run it describes.
    The content of the terminationMessagePath is the message of Terminated; when that is empty, and the policy requires it, the runtime uses
    the last part of the log.

    Any call may raise. Unavailable means "not now"; its `retry_after` sets the seconds until the next attempt. Any other exception is
    retried in the same way, and logged with its traceback unless it is a VKubeletError.
    """

    async def run(self, host: Host) -> None:
        """Runs as `Provider.run`; `host.report` accepts the states of containers, in complete reports of a pod or of some of its
        containers."""
        ...

    async def prepare_pod(self, pod: Pod) -> Sandbox:
        """Creates what the containers share; called again after a restart, and after a failure.

        Raises PodRejected to fail the pod, Unavailable to be called again with back-off (0.2 s, doubled up to 60 s). It has no timeout; a
        deletion cancels it.
        """
        ...

    async def start_container(self, pod: ResolvedPod, container: ResolvedContainer, *, restarts: int) -> None:
        """Starts the container for the `restarts`-th time after the first (0: the first); returns when it was started.

        One value of `restarts` is one run: a call for a run that has started, and may have terminated, has no effect. Raises Unavailable
        with its waiting reason (CreateContainerError, ErrImagePull, …) when it did not start: it is called again after 1 s, doubled up to
        10 s (images: 10 s, up to 300 s). Unavailable without a reason, and any other exception, leaves open whether it started: the
        containers are listed before it is called again. A report of the run stops the retries, and after 30 s also a call that has not
        returned; otherwise it has no timeout. PodRejected fails the pod permanently. A deletion cancels it; what it has started by then is
        stopped by the next call.
        """
        ...

    async def stop_container(self, pod: PodRef, container: str, *, grace: float) -> None:
        """Asks the container to terminate, and kills it `grace` seconds later; returns at once. `host.report` reports the termination.

        A second call with less grace shortens it. One that does not run is ignored, or NoSuchPod or NoSuchContainer is raised: it then
        counts as terminated. A call that fails, or does not return within 30 s, is retried within 10 s until it succeeds; one that
        succeeded is repeated every 30 s while the container is still reported to run after its grace period.
        """
        ...

    async def remove_pod(self, pod: PodRef) -> None:
        """Removes everything of the pod: running containers, files, logs. Returns when nothing is left, or raises NoSuchPod.

        A call that fails, or does not return within 120 s, is retried within 10 s.
        """
        ...

    async def list_containers(self, node: str) -> Iterable[PodReport]:
        """Lists every pod that the backend has for the node, with its containers' states. Raises when the list is not complete.

        A container that ran before and is missing has terminated with 137. A call that fails, or does not return within 30 s, is retried
        within the interval (`poll_interval`, or the setting `pods.list_interval`).
        """
        ...


@runtime_checkable
class SupportsResize(Protocol):
    """Capability of a ContainerProvider to change the resources of a running container. Without it every resize is Infeasible."""

    async def resize_container(self, pod: PodRef, container: str, resources: JsonView) -> None:
        """Applies these `resources` (requests and limits, as in a spec) to the container from now on.

        Raises Unavailable when that cannot be done now: retried with back-off, and reported by the condition PodResizeInProgress.
        """
        ...
