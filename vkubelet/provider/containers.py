"""What a provider has that leaves the life of its pods to the runtime: it starts and stops containers, and says how they end.

Invariant: the runtime decides what runs when; the provider carries it out and reports facts by `host.report`, restarts included as told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from attrs import field, frozen

from vkubelet.api.objects import Pod, PodRef
from vkubelet.api.shapes import JsonView
from vkubelet.provider.contract import Host, PodReport
from vkubelet.provider.resolved import ResolvedContainer, ResolvedPod


@frozen
class Sandbox:
    """What the containers of one pod share: addresses, first the primary one, and where its volumes are written (None: nowhere)."""

    ips: Sequence[str] = ()
    files: Path | None = field(default=None, kw_only=True)


@runtime_checkable
class ContainerProvider(Protocol):
    """Instead of `Provider`: the runtime puts its own `sync_pod`, `delete_pod` and `list_pods` on top of these calls.

    Calls for one container never overlap, but for `stop_container`, which may hasten an earlier one. Probes and hooks that run commands
    need SupportsExec; those that dial go to the pod's address. Every report of a container tells the `restarts` of the run it speaks of.
    What a container left at its terminationMessagePath is the message of its Terminated; when that is empty, and the policy says so, the
    runtime takes the end of its log.

    Any call may raise. Unavailable means "not now"; its `retry_after` sets the seconds until the next try. Any other exception is repeated
    in the same way, and logged with its traceback unless it is a VKubeletError.
    """

    async def run(self, host: Host) -> None:
        """As of every provider; `host.report` takes what containers do, in complete reports of a pod or of some of its containers."""
        ...

    async def prepare_pod(self, pod: Pod) -> Sandbox:
        """Make what containers share; again after a restart, and after a failure.

        Raises PodRejected to fail the pod, Unavailable to be called again with back-off (0.2 s, doubled up to 60 s). It has no time limit;
        a deletion cancels it.
        """
        ...

    async def start_container(self, pod: ResolvedPod, container: ResolvedContainer, *, restarts: int) -> None:
        """Start it for the `restarts`-th time after the first (0: the first); it returns when it was started.

        One value of `restarts` is one run: a call for a run that has begun, and may have ended, has no effect. Raises Unavailable with its
        waiting reason (CreateContainerError, ErrImagePull, …) when it did not start: it is called again after 1 s, doubled up to 10 s
        (images: 10 s, up to 300 s). Unavailable without a reason, and any other exception, leaves open whether it started: the
        containers are listed before it is called again. A report of the run ends the tries, and after 30 s also a call that has not
        returned; else it has no time limit. PodRejected fails the pod for good. A deletion cancels it; what it has started by then is
        stopped by the next call.
        """
        ...

    async def stop_container(self, pod: PodRef, container: str, *, grace: float) -> None:
        """Ask it to end, and kill it `grace` seconds later; returns at once. Its end comes by `host.report`.

        A second call with less grace hastens it. One that does not run is left alone, or NoSuchPod or NoSuchContainer is raised: it then
        counts as ended. A call that fails, or does not return within 30 s, is repeated within 10 s until it succeeds; one that succeeded
        is repeated every 30 s while the container is still reported to run after its grace.
        """
        ...

    async def remove_pod(self, pod: PodRef) -> None:
        """Everything of the pod goes: containers that still run, files, logs. Returns when nothing is left, or raises NoSuchPod.

        A call that fails, or does not return within 120 s, is repeated within 10 s.
        """
        ...

    async def list_containers(self, node: str) -> Iterable[PodReport]:
        """Every pod that the backend holds for the node, with its containers' states. Raises when the list is not complete.

        A container that ran before and is missing has ended with 137. A call that fails, or does not return within 30 s, is repeated
        within the interval (`poll_interval`, or the setting `pods.list_interval`).
        """
        ...


@runtime_checkable
class SupportsResize(Protocol):
    """For a ContainerProvider that can give a running container other resources. Without it every such wish is Infeasible."""

    async def resize_container(self, pod: PodRef, container: str, resources: JsonView) -> None:
        """Let it run with these `resources` (requests and limits, as in a spec) from now on.

        Raises Unavailable when it can not be done now: tried again with back-off, and told by the condition PodResizeInProgress.
        """
        ...
