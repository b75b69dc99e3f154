"""The contract between the runtime and whoever runs the pods of a virtual node.

Invariant: commands go down as awaited calls that may be repeated; state comes up by synchronous calls that never wait and never fail.

A provider's life is one coroutine, `run(host)`: it declares nodes with `host.set_node` once it knows what its backend holds for them, says
`host.nodes_complete()` once, reports what containers do, and returns when `host.until_stopped()` does. Calls for one pod uid never overlap.
A deletion cancels a running `sync_pod`, and `sync_pod` is never called for that uid afterwards.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from attrs import field, frozen

from vkubelet.api.objects import KubeObject, Pod, PodRef
from vkubelet.api.shapes import Json, JsonView
from vkubelet.client.resources import Resource
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import Recorder
from vkubelet.metrics import Metrics
from vkubelet.provider.resolved import ResolvedPod

T = TypeVar("T", bound=KubeObject)

# --- Nodes -----------------------------------------------------------------------------------------------------------------------------


@frozen
class Taint:
    """One entry of a Node's `spec.taints`; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: str = field(default="", kw_only=True)


@frozen
class NodeDescription:
    """What a provider says of one virtual node; only name and capacity are needed.

    Quantities are Kubernetes strings ("4", "8Gi"). `allocatable` defaults to the capacity. `conditions` are complete condition objects;
    without one of type Ready the node is Ready. `addresses` are `{"type", "address"}` objects; without any, the runtime publishes the
    InternalIP it listens on. `info` is merged over the runtime's own `status.nodeInfo`; `features` is `status.features`, by which pods are
    admitted that ask for one of them.
    """

    name: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str] = field(factory=dict, kw_only=True)
    labels: Mapping[str, str] = field(factory=dict, kw_only=True)
    annotations: Mapping[str, str] = field(factory=dict, kw_only=True)
    taints: Sequence[Taint] = field(default=(), kw_only=True)
    conditions: Sequence[JsonView] = field(default=(), kw_only=True)
    addresses: Sequence[JsonView] = field(default=(), kw_only=True)
    os: str = field(default="linux", kw_only=True)
    arch: str = field(default="amd64", kw_only=True)
    provider_id: str = field(default="", kw_only=True)
    info: Mapping[str, str] = field(factory=dict, kw_only=True)
    features: Mapping[str, bool] = field(factory=dict, kw_only=True)


# --- Pods ------------------------------------------------------------------------------------------------------------------------------


@frozen
class Waiting:
    """The container does not run yet, or waits to be started again."""

    reason: str = "ContainerCreating"
    message: str = ""


@frozen
class Running:
    """The container runs since `started_at` (UTC; None: since the runtime first heard of it)."""

    started_at: datetime | None = None


@frozen
class Terminated:
    """The container ended with `exit_code`; the reason defaults to Completed or Error."""

    exit_code: int
    reason: str = ""
    message: str = ""
    started_at: datetime | None = field(default=None, kw_only=True)
    finished_at: datetime | None = field(default=None, kw_only=True)


ContainerState = Waiting | Running | Terminated


@frozen
class ContainerReport:
    """What one container of a pod (of any kind: init, app, ephemeral) does now.

    `ready` None means: ready as soon as it runs, and so does `started`. `last` is how it ended the time before, when it was restarted.
    `resources` are those that it runs with, `allocated` the requests it was granted; None: nothing is known of them.
    """

    name: str
    state: ContainerState
    id: str = field(default="", kw_only=True)
    image_id: str = field(default="", kw_only=True)
    restarts: int = field(default=0, kw_only=True)
    ready: bool | None = field(default=None, kw_only=True)
    started: bool | None = field(default=None, kw_only=True)
    last: Terminated | None = field(default=None, kw_only=True)
    resources: JsonView | None = field(default=None, kw_only=True)
    allocated: JsonView | None = field(default=None, kw_only=True)


@frozen
class PodFailure:
    """Why a pod has failed as a whole, whatever its containers ended with."""

    reason: str
    message: str = ""


@frozen
class PodReport:
    """What all containers of a pod do now, and its addresses, first the primary one.

    `failure` makes the pod Failed as soon as no container of the report runs. `conditions` are those about a resize (PodResizePending,
    PodResizeInProgress) that hold now; None: they are left as they are.
    """

    pod: PodRef
    containers: Sequence[ContainerReport] = ()
    ips: Sequence[str] = ()
    failure: PodFailure | None = field(default=None, kw_only=True)
    conditions: Sequence[JsonView] | None = field(default=None, kw_only=True)


def all_running(pod: Pod, *, ips: Sequence[str] = ()) -> PodReport:
    """A report in which every app container of `pod` runs, for providers that start everything at once.

    Init containers are reported as completed, so that the pod counts as initialised.
    """
    spec = pod.spec
    done = [ContainerReport(c["name"], Terminated(0)) for c in spec.get("initContainers", ()) if c.get("restartPolicy") != "Always"]
    sidecars = [ContainerReport(c["name"], Running()) for c in spec.get("initContainers", ()) if c.get("restartPolicy") == "Always"]
    apps = [ContainerReport(c["name"], Running()) for c in spec["containers"]]
    return PodReport(pod.ref, (*done, *sidecars, *apps), ips)


class PodStore(Protocol):
    """The pods bound to our nodes, as last seen in the cluster; read-only."""

    def get(self, ref: PodRef) -> Pod | None:
        """The pod with exactly this uid."""
        ...

    def by_uid(self, uid: str) -> Pod | None: ...

    def by_name(self, namespace: str, name: str) -> Pod | None: ...

    def on_node(self, node: str) -> Sequence[Pod]: ...

    def __iter__(self) -> Iterator[Pod]: ...


@runtime_checkable
class TakesSettings(Protocol):
    """For providers that follow a change of their section of the settings file without a restart."""

    def take_settings(self, settings: object) -> Iterable[str]:
        """Take over what can be; the names of these settings. `settings` is of the provider's class `Settings`."""
        ...


# --- What the runtime lends to the provider -----------------------------------------------------------------------------------------------


class Host(Protocol):
    """The runtime as its provider sees it. The `set_*` and `report` calls never wait and never fail; the latest value wins."""

    @property
    def client(self) -> Client:
        """The cluster in which the virtual nodes appear."""
        ...

    @property
    def pods(self) -> PodStore: ...

    @property
    def events(self) -> Recorder: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def metrics(self) -> Metrics:
        """The instruments of this process; series of a provider's own go onto its registry `provider`."""
        ...

    def node_client(self, node: str) -> Client:
        """The client for writes in the name of one node; the same as `client` unless set otherwise."""
        ...

    def informer(self, resource: Resource[T], where: Selection = ...) -> Informer[T]:
        """A shared informer on the hub, started on first use."""
        ...

    def set_node(self, node: NodeDescription) -> None:
        """Declare a node, or change what was said of it."""
        ...

    def nodes_complete(self) -> None:
        """Say once: every node known so far is declared. Until then a Node of ours that was not declared is unknown, not gone."""
        ...

    def remove_node(self, name: str) -> None:
        """Retire a node: it takes no new pods, and when it is empty its Node and Lease are deleted."""
        ...

    def report(self, report: PodReport) -> None:
        """Container states in; phase, conditions, times and restart counts are computed."""
        ...

    def set_pod_status(self, pod: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        """For backends that hold a true PodStatus: publish it as it is. Annotations travel with it; None changes none."""
        ...

    def pod_gone(self, pod: PodRef) -> None:
        """The backend holds nothing of this pod any more."""
        ...

    def resync(self, pod: PodRef) -> None:
        """Call `sync_pod` again although the pod has not changed: something else has that decides about it."""
        ...

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        """Everything the pod refers to: variables, commands, pull secrets, names.

        With `files`, its volumes of ConfigMaps, Secrets, tokens and the downward API are written below that directory, and kept up to date
        until `pod_gone` or its end; those of emptyDir are made. Secrets, tokens and the downward API lie below `files/memory`, where the
        provider may mount a tmpfs before. Raises Unavailable, with the kubelet's event and waiting reason, when a
        mandatory object is missing: let it pass. `containers` names those about to be started: of the others nothing is read. None: all,
        and what has vanished since the pod was resolved last counts as it was.
        """
        ...

    async def until_stopped(self) -> None:
        """Return when the process begins to stop."""
        ...


class Provider(Protocol):
    """What every provider has."""

    async def run(self, host: Host) -> None:
        """Declare nodes, report pods, return when `host.until_stopped()` does.

        When it raises, its nodes turn NotReady (reason ProviderFailed) and it starts again with back-off; SettingsError ends the process.
        Streams that are open at a stop may go on for ten seconds after it has returned.
        """
        ...

    async def sync_pod(self, pod: Pod) -> None:
        """Make the backend match `pod`: on creation, on change, on retry, and once after a start; idempotent per uid.

        Raises PodRejected to fail the pod for good, Unavailable to be called again after `retry_after` or with back-off (0.2 s, doubled up
        to 60 s), with an event and, until the first report, as what the containers wait for. Any other exception is repeated in the same
        way. A call that failed may have taken effect: it comes again. It has no time limit; a deletion cancels it.
        """
        ...

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        """Begin ending the pod within `grace` seconds; progress comes by `report`, the end by `pod_gone`. Also called for orphans.

        0 means at once: the grace has expired, or a user forced the deletion, which sets the pod's `deletionGracePeriodSeconds` to 0.
        Raises NoSuchPod when the backend holds nothing of it, which counts as `pod_gone`. A call that fails, or does not return within
        30 s, is repeated with back-off up to 60 s (event FailedKillPod). After the grace it comes with 0, every 30 s until `pod_gone`.
        """
        ...

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        """Every pod of ours that the backend holds for `node`, also for retiring nodes. Raises when the list is not complete.

        A call that fails, or does not return within 30 s, is repeated within the interval; nothing follows from it for any pod.
        """
        ...


# --- Capabilities: recognised once at start; a missing one is answered with 501 -----------------------------------------------------------


@runtime_checkable
class SupportsPolling(Protocol):
    """For backends that tell nothing by themselves: `list_pods` is called every `poll_interval` seconds and reported."""

    poll_interval: float


@frozen(kw_only=True)
class LogOptions:
    """The options of `/containerLogs`, as kubectl sends them; None and False mean: not asked for.

    `since` is set as well when it was asked for by `since_seconds`, which is there for backends that are asked in the same way: a time in
    a query of Kubernetes has whole seconds only.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: datetime | None = None
    since_seconds: int | None = None
    limit_bytes: int | None = None


@runtime_checkable
class SupportsLogs(Protocol):
    def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Chunks of lines that each begin with an RFC 3339 time and a space; the runtime applies tail, since, timestamps and limit.

        `follow` and `previous` are the provider's. Raises NoSuchPod, NoSuchContainer, BadRequest (its text is shown), Unavailable.
        """
        ...


@runtime_checkable
class SupportsLogOptions(Protocol):
    """Set `logs_apply_options = True` on a provider whose backend applies all LogOptions itself; its bytes are passed on untouched."""

    logs_apply_options: bool


@frozen
class TerminalSize:
    """Columns and rows of a terminal."""

    width: int
    height: int


class ContainerIO(Protocol):
    """The client's side of an exec or attach; `vkubelet.streams` connects it to a process, terminal or socket.

    With `tty` there is one output, and sizes come when the client's terminal changes. `stdin` is None when there is none, and ends when the
    client says so. A client that leaves cancels the call; output it does not want is dropped.
    """

    tty: bool
    stdin: AsyncIterator[bytes] | None
    resizes: AsyncIterator[TerminalSize]

    async def write_stdout(self, data: bytes) -> None:
        """Waits while the client is slow."""
        ...

    async def write_stderr(self, data: bytes) -> None: ...


class ByteStream(Protocol):
    """One forwarded connection. Raises ConnectionResetError when the client has given it up; one that leaves cancels the call."""

    async def read(self) -> bytes:
        """Empty at the end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None:
        """Nothing more will be written; the client may still send."""
        ...


@runtime_checkable
class SupportsExec(Protocol):
    async def exec(self, pod: PodRef, container: str, command: Sequence[str], io: ContainerIO) -> int:
        """Run a command in a running container; the exit code, or minus the signal that ended it.

        Raises NoSuchPod, NoSuchContainer, BadRequest, Unavailable; their text is shown to the user.
        """
        ...


@runtime_checkable
class SupportsAttach(Protocol):
    async def attach(self, pod: PodRef, container: str, io: ContainerIO) -> None:
        """Connect the client to the main process of a running container."""
        ...


@runtime_checkable
class SupportsPortForward(Protocol):
    async def port_forward(self, pod: PodRef, port: int, stream: ByteStream) -> None:
        """Connect the client to a port of a running pod."""
        ...


@runtime_checkable
class SupportsStats(Protocol):
    async def stats_summary(self, node: str) -> Json:
        """The kubelet's `/stats/summary` document."""
        ...


class MetricsEndpoint(enum.Enum):
    """The kubelet's Prometheus endpoints beside `/metrics`."""

    RESOURCE = "resource"
    CADVISOR = "cadvisor"
    PROBES = "probes"


@runtime_checkable
class SupportsMetrics(Protocol):
    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        """Prometheus text format 0.0.4."""
        ...


@runtime_checkable
class SupportsNodeLogs(Protocol):
    def node_logs(self, node: str, path: str) -> AsyncIterator[bytes]:
        """The log file at `path`, which never leads upwards; a path that is empty or ends in a slash asks for a listing, as HTML.

        Raises FileNotFoundError when there is none.
        """
        ...


@runtime_checkable
class AdmitsPods(Protocol):
    """Marks a provider whose backend admits pods itself: with `admits_pods = True` the runtime rejects no pod."""

    admits_pods: bool


@runtime_checkable
class SupportsPing(Protocol):
    async def ping(self, node: str) -> None:
        """Raising, or not returning within the setting `ping.timeout`, turns the node's Ready condition off until one returns."""
        ...
