"""Namespaces of the hub whose objects are mirrored: those that the binding names, and those that have pods in the worker.

Invariant: a namespace counts until its last physical pod was deleted a while ago, so a rollout or a new process deletes no mirrors. Nothing
is in scope of a deleted binding without pods, so its mirrors are not created again.
"""

import math
from collections.abc import Callable

from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import BY_VIRTUAL_NAMESPACE, BY_VIRTUAL_NODE, WorkerCluster
from vkubelet.api.objects import Pod, PodRef
from vkubelet.control.informer import Change
from vkubelet.provider import Host

Listener = Callable[[str, float], None]
"""Takes a namespace whose use has changed, and the seconds until that counts."""


class MirroredNamespaces:
    """The scope of all mirrors of one connection."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        self._leased = LeasedNamespaces(scope.host, scope.worker, unused_after=scope.settings.unused_copy_after)
        self._withdrawn = False
        self._listeners: list[Listener] = []
        scope.worker.pods.on_change(self._pod_changed)

    def on_change(self, listener: Listener) -> None:
        """Registers a listener that is called when a namespace comes into use, and when its last pod has left."""
        self._listeners.append(listener)

    def entering(self, pod: Pod) -> None:
        """Notes a pod that is about to be created."""
        if self._leased.note(pod):
            self._notify(pod.metadata.namespace, 0.0)

    def released(self, ref: PodRef) -> None:
        """Drops a pod that has nothing in the worker, and maybe never had."""
        self._use_changed(self._leased.released(ref))

    def withdraw(self, *, withdrawn: bool) -> bool:
        """Takes namespaces that only the binding names out of the scope, as another mapping waits for that; returns what changed."""
        changed, self._withdrawn = withdrawn != self._withdrawn, withdrawn
        return changed

    @property
    def serves(self) -> bool:
        """Whether anything is in scope. Pods of a binding that is deleted use mirrors until they are deleted."""
        return not self._scope.binding.ending or bool(self._scope.worker.pods.store.index_values(BY_VIRTUAL_NODE))

    def includes(self, namespace: str) -> bool:
        """Checks that objects of a namespace are mirrored; "" is that of objects without one."""
        return self.serves and (not namespace or namespace in self.named or self._leased.uses(namespace))

    def left(self, namespace: str) -> float | None:
        """Returns the seconds for which a namespace whose last pod is deleted still counts; None for any other."""
        return None if namespace in self.named else self._leased.left(namespace)

    @property
    def named(self) -> frozenset[str]:
        """Namespaces that the binding names."""
        binding = self._scope.binding.current
        return frozenset(binding.service_namespaces if binding is not None and not self._withdrawn else ())

    @property
    def all(self) -> frozenset[str]:
        """Namespaces that the binding names, or that are in use."""
        return self._leased.namespaces() | self.named

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._use_changed(self._leased.observe(change))

    def _use_changed(self, used: tuple[str, float] | None) -> None:
        if used is not None:
            self._notify(*used)

    def _notify(self, namespace: str, wait: float) -> None:
        for listener in self._listeners:
            listener(namespace, wait)


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
