"""The provider `kubeocean`: nodes of a worker cluster as virtual nodes.

Invariant: nothing is decided here; every call is delegated to the responsible component.
"""

from collections.abc import AsyncIterator, Iterable, Sequence

from kubeocean.metrics import SyncerMetrics
from kubeocean.service.binding_service import BindingService
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker import pod_streams
from vkubelet.api.objects import Json, Pod, PodRef
from vkubelet.control.shards import ONLY, Shard
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.provider import ByteStream, ContainerIO, Host, LogOptions, MetricsEndpoint, PodReport


class KubeoceanProvider:
    """Serves the nodes of a shard of the ClusterBinding that the settings name."""

    Settings = KubeoceanSettings
    logs_apply_options = True
    admits_pods = True

    def __init__(self, settings: KubeoceanSettings, shard: Shard = ONLY) -> None:
        if not settings.binding:
            raise SettingsError("provider.binding", "required: the name of the ClusterBinding to serve")
        self._settings = settings
        self._shard = shard
        self._service: BindingService | None = None
        self._metrics: SyncerMetrics | None = None

    async def run(self, host: Host) -> None:
        if self._metrics is None:
            # A provider that failed runs again in the same process, and a registry takes a series once.
            self._metrics = SyncerMetrics(host.metrics.provider, binding=self._settings.binding)
        self._service = BindingService(host, self._settings, metrics=self._metrics, shard=self._shard)
        await self._service.run()

    def take_settings(self, settings: object) -> Iterable[str]:
        assert isinstance(settings, KubeoceanSettings)
        return self._service.take_settings(settings) if self._service is not None else ()

    async def sync_pod(self, pod: Pod) -> None:
        session = await self._serving().available()
        await session.pods.sync(pod)

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        await self._serving().delete_pod(pod, grace)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return self._serving().list_pods(node)

    def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        return pod_streams.stream_logs(self._backing(pod), container, options)

    async def exec(self, pod: PodRef, container: str, command: Sequence[str], io: ContainerIO) -> int:
        return await pod_streams.execute(self._backing(pod), container, command, io=io)

    async def attach(self, pod: PodRef, container: str, io: ContainerIO) -> None:
        await pod_streams.attach(self._backing(pod), container, io)

    async def port_forward(self, pod: PodRef, port: int, stream: ByteStream) -> None:
        await pod_streams.port_forward(self._backing(pod), port, stream)

    async def stats_summary(self, node: str) -> Json:
        return await self._serving().current().stats.summary(node)

    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        return await self._serving().current().stats.metrics(node, endpoint)

    async def ping(self, node: str) -> None:
        """Checks that the provider serves its binding. An unreachable worker is no failed ping: the binding decides about its nodes."""
        self._serving()

    def _backing(self, pod: PodRef) -> pod_streams.Backing:
        return self._serving().current().backing(pod)

    def _serving(self) -> BindingService:
        if self._service is None:
            raise Unavailable("the provider has not started yet", retry_after=1.0)
        return self._service
