"""The provider `kubeocean`: nodes of a worker cluster as virtual nodes.

Invariant: nothing is decided here; every call is handed to the part that knows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from kubeocean.service import BindingService
from kubeocean.settings import KubeoceanSettings
from vkubelet.api.objects import Pod, PodRef
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.provider import Host, LogOptions, PodReport


class KubeoceanProvider:
    """Serves the ClusterBinding that the settings name."""

    Settings = KubeoceanSettings
    logs_apply_options = True

    def __init__(self, settings: KubeoceanSettings) -> None:
        if not settings.binding:
            raise SettingsError("provider.binding", "name the ClusterBinding to serve")
        self._settings = settings
        self._service: BindingService | None = None

    async def run(self, host: Host) -> None:
        self._service = BindingService(host, self._settings)
        await self._service.run()

    async def sync_pod(self, pod: Pod) -> None:
        session = await self._serving().available()
        await session.pods.sync(pod)

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        await self._serving().current().pods.delete(pod, grace)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return self._serving().current().pods.listing(node)

    def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        return self._serving().current().stream_logs(pod, container, options)

    def _serving(self) -> BindingService:
        if self._service is None:
            raise Unavailable("the provider has not started yet", retry_after=1.0)
        return self._service
