"""Namespaces of the hub that have pods in the worker.

Invariant: a namespace counts until its last physical pod was deleted a while ago, so a rollout or a new process deletes no mirrors.
"""

import math

from kubeocean.worker.cluster import BY_VIRTUAL_NAMESPACE, WorkerCluster
from vkubelet.api.objects import Pod
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
        if change.new is not None:
            self._entering.get(ref.namespace, set()).discard(ref.uid)
            return (ref.namespace, 0.0) if self._add(ref.namespace) else None
        if self._has_physical(ref.namespace) or self._is_entered(ref.namespace) or ref.namespace not in self._known:
            return None
        self._known.discard(ref.namespace)
        self._unused_since[ref.namespace] = self._host.clock.monotonic()
        return ref.namespace, self._unused_after

    def uses(self, namespace: str) -> bool:
        """Checks that the namespace has pods in the worker, or had some a moment ago."""
        return self._has_physical(namespace) or self.left(namespace) is not None

    def left(self, namespace: str) -> float | None:
        """Returns the seconds after which a namespace without physical pods may no longer count; None while it has some, or does not count.

        No change of a physical pod reports the end of a pod that is deleted before it has one.
        """
        if self._has_physical(namespace):
            return None
        if self._is_entered(namespace):
            return self._unused_after
        left = self._unused_since.get(namespace, -math.inf) + self._unused_after - self._host.clock.monotonic()
        return left if left > 0 else None

    def namespaces(self) -> frozenset[str]:
        """Returns the namespaces that are in use."""
        return frozenset(namespace for namespace in {*self._known, *self._unused_since} if self.uses(namespace))

    def _add(self, namespace: str) -> bool:
        """Returns whether the namespace was not known; its mirrors may be deleted by now."""
        is_new = namespace not in self._known
        self._known.add(namespace)
        self._unused_since.pop(namespace, None)
        return is_new

    def _has_physical(self, namespace: str) -> bool:
        return bool(self._worker.pods.store.by_index(BY_VIRTUAL_NAMESPACE, namespace))

    def _is_entered(self, namespace: str) -> bool:
        return any(self._host.pods.by_uid(uid) is not None for uid in self._entering.get(namespace, ()))
