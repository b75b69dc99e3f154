"""The smallest provider: one node, whose pods run at once and until they are deleted; start your own with a copy of it."""

from collections.abc import AsyncIterator, Iterable

from attrs import frozen

from vkubelet.provider import Host, LogOptions, NodeDescription, NoSuchPod, Pod, PodRef, PodReport, all_running


class Minimal:
    @frozen
    class Settings:
        node: str = "minimal"

    def __init__(self, settings: Settings = Settings()) -> None:
        self.node, self.pods = settings.node, dict[str, PodReport]()

    async def run(self, host: Host) -> None:
        self.host = host
        host.set_node(NodeDescription(self.node, capacity={"cpu": "4", "memory": "8Gi", "pods": "50"}))
        host.nodes_complete()
        await host.until_stopped()

    async def sync_pod(self, pod: Pod) -> None:
        self.host.report(self.pods.setdefault(pod.ref.uid, all_running(pod)))

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.pods.pop(pod.uid, None)
        self.host.pod_gone(pod)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return list(self.pods.values())

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        if pod.uid not in self.pods:
            raise NoSuchPod(f"no pod {pod.key}")
        yield f"{self.host.clock.now().isoformat()} {container} of {pod.name} runs on {self.node}\n".encode()
        while options.follow and pod.uid in self.pods:
            await self.host.clock.sleep(1)
            yield f"{self.host.clock.now().isoformat()} {container} of {pod.name} still runs\n".encode()
