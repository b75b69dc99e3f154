"""The contract between the runtime and a provider, which runs the pods of virtual nodes.

Invariant: commands go down as awaited calls that may be repeated; state comes up by synchronous calls that never wait and never fail.

A provider is one coroutine, `run(host)`: it declares nodes with `host.set_node` once it knows what its backend has for them, calls
`host.nodes_complete()` once, reports container states, and returns when `host.until_stopped()` does. Calls for one pod UID never overlap. A
deletion cancels a running `sync_pod`, and `sync_pod` is never called for that UID afterwards.
"""

import enum
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from attrs import field, frozen

from vkubelet.api.objects import Json, JsonView, KubeObject, Pod, PodRef, Resource
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
    """Description of one virtual node by its provider; only name and capacity are required.

    Quantities are Kubernetes strings ("4", "8Gi"). `allocatable` defaults to the capacity. `conditions` are complete condition objects;
    without one of type Ready the node is Ready. `addresses` are `{"type", "address"}` objects; without any, the runtime publishes the
    InternalIP it listens on. `info` is merged over the runtime's own `status.nodeInfo`; `features` is `status.features`, by which pods are
    admitted that require one of them.
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
    """The container does not run yet, or waits to be restarted."""

    reason: str = "ContainerCreating"
    message: str = ""


@frozen
class Running:
    """The container runs since `started_at` (UTC; None: since the runtime first received that)."""

    started_at: datetime | None = None


@frozen
class Terminated:
    """The container exited with `exit_code`; the reason defaults to Completed or Error."""

    exit_code: int
    reason: str = ""
    message: str = ""
    started_at: datetime | None = field(default=None, kw_only=True)
    finished_at: datetime | None = field(default=None, kw_only=True)


ContainerState = Waiting | Running | Terminated


@frozen
class ContainerReport:
    """Current state of one container of a pod (of any type: init, app, ephemeral).

    `ready` None means: ready as soon as it runs, and so does `started`. `last` is the previous termination, when it was restarted.
    `resources` are those that it runs with, `allocated` the requests allocated to it; None: unknown.
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
    """Reason why a pod has failed, whatever the exit codes of its containers."""

    reason: str
    message: str = ""


@frozen
class PodReport:
    """Current states of all containers of a pod, and its addresses, the primary one first.

    `failure` makes the pod Failed as soon as no container of the report runs. `conditions` are the current ones about a resize
    (PodResizePending, PodResizeInProgress); None: they are not changed.
    """

    pod: PodRef
    containers: Sequence[ContainerReport] = ()
    ips: Sequence[str] = ()
    failure: PodFailure | None = field(default=None, kw_only=True)
    conditions: Sequence[JsonView] | None = field(default=None, kw_only=True)


def all_running(pod: Pod, *, ips: Sequence[str] = ()) -> PodReport:
    """Returns a report in which every app container of `pod` runs, for providers that start everything at once.

    Init containers are reported as completed, so that the pod counts as initialised.
    """
    spec = pod.spec
    done = [ContainerReport(c["name"], Terminated(0)) for c in spec.get("initContainers", ()) if c.get("restartPolicy") != "Always"]
    sidecars = [ContainerReport(c["name"], Running()) for c in spec.get("initContainers", ()) if c.get("restartPolicy") == "Always"]
    apps = [ContainerReport(c["name"], Running()) for c in spec["containers"]]
    return PodReport(pod.ref, (*done, *sidecars, *apps), ips)


class PodStore(Protocol):
    """The pods bound to our nodes, as last observed in the cluster; read-only."""

    def get(self, ref: PodRef) -> Pod | None:
        """Returns the pod with exactly this UID."""
        ...

    def by_uid(self, uid: str) -> Pod | None: ...

    def by_name(self, namespace: str, name: str) -> Pod | None: ...

    def on_node(self, node: str) -> Sequence[Pod]: ...

    def in_namespace(self, namespace: str) -> Sequence[Pod]: ...

    def __iter__(self) -> Iterator[Pod]: ...


@runtime_checkable
class TakesSettings(Protocol):
    """Capability of providers to apply a change of their section of the settings file without a restart."""

    def take_settings(self, settings: object) -> Iterable[str]:
        """Applies what can be applied; returns the names of these settings. `settings` is of the provider's class `Settings`."""
        ...


# --- The runtime for its provider ---------------------------------------------------------------------------------------------------------


class Host(Protocol):
    """The runtime as its provider sees it. The `set_*` and `report` calls never wait and never fail; the latest value wins."""

    @property
    def client(self) -> Client:
        """Client of the cluster in which the virtual nodes appear."""
        ...

    @property
    def pods(self) -> PodStore: ...

    @property
    def events(self) -> Recorder: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def metrics(self) -> Metrics:
        """Instruments of this process; the provider's own series belong on its registry `provider`."""
        ...

    def node_client(self, node: str) -> Client:
        """Returns the client for writes on behalf of one node; the same as `client` unless configured otherwise."""
        ...

    def informer(self, resource: Resource[T], where: Selection = ...) -> Informer[T]:
        """Returns a shared informer on the hub, started on first use."""
        ...

    def set_node(self, node: NodeDescription) -> None:
        """Declares a node, or changes its description."""
        ...

    def nodes_complete(self) -> None:
        """Declares, once, that every known node is declared. Until then a Node of ours that was not declared is unknown, not deleted."""
        ...

    def remove_node(self, name: str) -> None:
        """Retires a node: it accepts no new pods, and when it is empty its Node and Lease are deleted."""
        ...

    def report(self, report: PodReport) -> None:
        """Reports container states, from which phase, conditions, times and restart counts are computed."""
        ...

    def set_pod_status(self, pod: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        """Publishes a PodStatus unchanged, for backends that have a true one. Annotations are written with it; None changes none."""
        ...

    def fail_pod(self, pod: PodRef, failure: PodFailure) -> None:
        """Makes a pod Failed that the backend no longer has: its containers count as terminated, with the last published states."""
        ...

    def pod_gone(self, pod: PodRef) -> None:
        """Reports that the backend has nothing left of this pod."""
        ...

    def resync(self, pod: PodRef) -> None:
        """Requests another `sync_pod` although the pod has not changed: something else that decides about it has. A pod whose deletion the
        runtime has observed, and which the backend has again, is terminated instead."""
        ...

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        """Resolves everything the pod references: variables, commands, pull secrets, names.

        With `files`, its volumes of ConfigMaps, Secrets, tokens and the downward API are written below that directory, and kept up to date
        until `pod_gone` or its termination; those of emptyDir are created. Secrets, tokens and the downward API are below `files/memory`,
        where the provider may mount a tmpfs before. Raises Unavailable, with the kubelet's event and waiting reason, when a mandatory
        object is missing: let it propagate. `containers` names those about to be started: of the others nothing is read. None: all, and
        what has vanished since the pod was resolved last counts as it was.
        """
        ...

    async def until_stopped(self) -> None:
        """Waits until the process starts to stop."""
        ...


class Provider(Protocol):
    """Methods of every provider."""

    async def run(self, host: Host) -> None:
        """Declares nodes, reports pods, returns when `host.until_stopped()` does.

        When it raises, its nodes turn NotReady (reason ProviderFailed) and it is started again with back-off; SettingsError stops the
        process. Streams that are open at a stop may continue for ten seconds after it has returned.
        """
        ...

    async def sync_pod(self, pod: Pod) -> None:
        """Makes the backend match `pod`: on creation, on change, on retry, and once after a start; idempotent per UID.

        Raises PodRejected to fail the pod permanently, Unavailable to be called again after `retry_after` or with back-off (0.2 s, doubled
        up to 60 s), with an event and, until the first report, as what the containers wait for. Any other exception is retried in the same
        way. A call that failed may have taken effect: it is repeated. It has no timeout; a deletion cancels it.
        """
        ...

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        """Starts to terminate the pod within `grace` seconds; `report` reports progress, `pod_gone` completion. Also called for orphans.

        0 means at once: the grace period has expired, or a user forced the deletion, with `deletionGracePeriodSeconds` 0 in the pod. Raises
        NoSuchPod when the backend has nothing of it, which counts as `pod_gone`. A call that fails, or does not return within 30 s, is
        retried with back-off up to 10 s (event FailedKillPod). After the grace period it is called with 0, every 30 s until `pod_gone`.
        """
        ...

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        """Lists every pod of ours that the backend has for `node`, also for retiring nodes. Raises when the list is not complete.

        A call that fails, or does not return within 30 s, is retried within the interval; it has no effect on any pod.
        """
        ...


# --- Capabilities: recognised once at start; a missing one responds with 501 --------------------------------------------------------------


@runtime_checkable
class SupportsPolling(Protocol):
    """Capability of backends that do not report changes: `list_pods` is called every `poll_interval` seconds and reported."""

    poll_interval: float


@frozen(kw_only=True)
class LogOptions:
    """The options of `/containerLogs`, as kubectl sends them; None and False mean: not requested.

    `since` is set as well when it was requested by `since_seconds`, which is kept for backends with the same option: a time in a query of
    Kubernetes has integer seconds only.
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
        """Streams chunks of lines that each start with an RFC 3339 time and a space; the runtime applies tail, since, timestamps and limit.

        The provider applies `follow` and `previous`. Raises NoSuchPod, NoSuchContainer, BadRequest (its text is shown), Unavailable.
        """
        ...


@runtime_checkable
class SupportsLogOptions(Protocol):
    """Marks a provider whose backend applies all LogOptions itself: with `logs_apply_options = True` its bytes are forwarded unchanged."""

    logs_apply_options: bool


@frozen
class TerminalSize:
    """Columns and rows of a terminal."""

    width: int
    height: int


class ContainerIO(Protocol):
    """The client's side of an exec or attach; `vkubelet.streams` connects it to a process, terminal or socket.

    With `tty` there is one output, and sizes arrive when the client's terminal changes. `stdin` is None when there is none, and stops when
    the client closes it. A client that disconnects cancels the call; output it did not request is dropped.
    """

    tty: bool
    stdin: AsyncIterator[bytes] | None
    resizes: AsyncIterator[TerminalSize]

    async def write_stdout(self, data: bytes) -> None:
        """Writes output, waiting while the client is slow."""
        ...

    async def write_stderr(self, data: bytes) -> None: ...


class ByteStream(Protocol):
    """One forwarded connection. Raises ConnectionResetError when the client aborted it; a client that disconnects cancels the call."""

    async def read(self) -> bytes:
        """Reads data; empty when the connection is closed."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None:
        """Closes the connection for sending; the client may still send."""
        ...


@runtime_checkable
class SupportsExec(Protocol):
    async def exec(self, pod: PodRef, container: str, command: Sequence[str], io: ContainerIO) -> int:
        """Runs a command in a running container; returns the exit code, or minus the signal that killed it.

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
        """Returns the kubelet's `/stats/summary` document."""
        ...


class MetricsEndpoint(enum.Enum):
    """The kubelet's Prometheus endpoints beside `/metrics`."""

    RESOURCE = "resource"
    CADVISOR = "cadvisor"
    PROBES = "probes"


@runtime_checkable
class SupportsMetrics(Protocol):
    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        """Returns Prometheus text format 0.0.4."""
        ...


@runtime_checkable
class SupportsNodeLogs(Protocol):
    def node_logs(self, node: str, path: str) -> AsyncIterator[bytes]:
        """Streams the log file at `path`, which never leads upwards; an empty path, or one that closes with a slash, requests an HTML
        listing.

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
        """Checks the node: raising, or exceeding the setting `ping.timeout`, turns its Ready condition off until a call returns."""
        ...
