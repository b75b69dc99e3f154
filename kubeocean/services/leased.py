"""Namespaces of the hub that have pods in the worker.

Invariant: a namespace counts until its last physical pod was deleted a while ago, so a rollout or a new process deletes no mirrors.
"""

import math

from kubeocean.worker.cluster import BY_VIRTUAL_NAMESPACE, WorkerCluster
from vkubelet.api.objects import Pod, PodRef
from vkubelet.control.informer import Change
from vkubelet.provider import Host


class LeasedNamespaces:
    """Namespaces of physical pods, and of pods that are about to be created; `unused_after` are the seconds for which one still counts."""

    def __init__(self, host: Host, worker: WorkerCluster, *, unused_after: float) -> None:
        self._host = host
        self._worker = worker
        self._unused_after = unused_after
        self._entering: dict[str, set[str]] = {}
        """UIDs of virtual pods without a physical pod, by namespace."""
        self._known: set[str] = set()
        self._unused_since: dict[str, float] = {}

    def note(self, pod: Pod) -> bool:
        """Notes a pod that is about to be created; returns whether its namespace was not in use."""
        namespace = pod.metadata.namespace
        self._entering.setdefault(namespace, set()).add(pod.metadata.uid)
        return self._add(namespace)

    def observe(self, change: Change[Pod]) -> tuple[str, float] | None:
        """Takes a change of a physical pod; returns a namespace whose use has changed, and the seconds until that counts."""
        pod = change.new or change.old
        ref = self._worker.backed(pod) if pod is not None else None
        if ref is None:
            return None
        if change.new is None:
            return self._left(ref.namespace)
        self._entered(ref)
        return (ref.namespace, 0.0) if self._add(ref.namespace) else None

    def released(self, ref: PodRef) -> tuple[str, float] | None:
        """Drops a pod that has nothing in the worker, and maybe never had; returns what `observe` does."""
        self._entered(ref)
        return self._left(ref.namespace)

    def uses(self, namespace: str) -> bool:
        """Checks that the namespace has pods in the worker, or had some a moment ago."""
        if self.left(namespace) is not None:
            return True
        self._unused_since.pop(namespace, None)
        return self._has_pods(namespace)

    def left(self, namespace: str) -> float | None:
        """Returns the seconds for which a namespace whose last pod is deleted still counts; None for any other."""
        left = self._unused_since.get(namespace, -math.inf) + self._unused_after - self._host.clock.monotonic()
        return left if left > 0 else None

    def namespaces(self) -> frozenset[str]:
        """Returns the namespaces that are in use."""
        return frozenset(namespace for namespace in {*self._known, *self._unused_since} if self.uses(namespace))

    def _entered(self, ref: PodRef) -> None:
        entering = self._entering.get(ref.namespace, set())
        entering.discard(ref.uid)
        if not entering:
            self._entering.pop(ref.namespace, None)

    def _left(self, namespace: str) -> tuple[str, float] | None:
        if self._has_pods(namespace) or namespace not in self._known:
            return None
        self._known.discard(namespace)
        self._unused_since[namespace] = self._host.clock.monotonic()
        return namespace, self._unused_after

    def _add(self, namespace: str) -> bool:
        """Returns whether the namespace was not known; its mirrors may be deleted by now."""
        is_new = namespace not in self._known
        self._known.add(namespace)
        self._unused_since.pop(namespace, None)
        return is_new

    def _has_pods(self, namespace: str) -> bool:
        if self._worker.pods.store.has(BY_VIRTUAL_NAMESPACE, namespace):
            return True
        return any(self._host.pods.by_uid(uid) is not None for uid in self._entering.get(namespace, ()))
