"""Namespaces of the hub that have pods in the worker.

Invariant: a namespace counts until its last pod has left for a while, so a rollout or a new process deletes no mirrors.
"""

from kubeocean.model.identity import leaves_home
from vkubelet.api.objects import Pod, PodRef
from vkubelet.clock import in_batches
from vkubelet.provider import Host


class LeasedNamespaces:
    """Index of the pods that were noted, by namespace; `unused_after` are the seconds for which an unused namespace still counts."""

    def __init__(self, host: Host, *, unused_after: float) -> None:
        self._host = host
        self._unused_after = unused_after
        self._pods: dict[str, set[str]] = {}
        self._unused_since: dict[str, float] = {}

    async def seed(self) -> None:
        """Notes the pods that an earlier connection or process created."""
        async for pod in in_batches(self._host.clock, self._host.pods):
            if leaves_home(pod.metadata) and not pod.terminal:
                self.note(pod)

    def note(self, pod: Pod) -> bool:
        """Notes a pod; returns whether it is the first one of its namespace."""
        namespace = pod.metadata.namespace
        is_new = not self.uses(namespace)
        self._unused_since.pop(namespace, None)
        self._pods.setdefault(namespace, set()).add(pod.metadata.uid)
        return is_new

    def drop(self, ref: PodRef) -> float | None:
        """Removes a pod; returns the seconds after which its namespace is unused, None if it has other pods."""
        pods = self._pods.get(ref.namespace, set())
        pods.discard(ref.uid)
        if self._has_pods(ref.namespace):
            return None
        self._pods.pop(ref.namespace, None)
        self._unused_since[ref.namespace] = self._host.clock.monotonic()
        return self._unused_after

    def uses(self, namespace: str) -> bool:
        """Checks that the namespace has pods in the worker, or had some a moment ago."""
        since = self._unused_since.get(namespace)
        recently = since is not None and self._host.clock.monotonic() - since < self._unused_after
        return recently or self._has_pods(namespace)

    def namespaces(self) -> frozenset[str]:
        """Returns the namespaces that are in use."""
        return frozenset(namespace for namespace in {*self._pods, *self._unused_since} if self.uses(namespace))

    def _has_pods(self, namespace: str) -> bool:
        return any(self._host.pods.by_uid(uid) is not None for uid in self._pods.get(namespace, ()))
