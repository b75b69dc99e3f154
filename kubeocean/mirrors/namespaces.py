"""Namespaces of the hub whose objects are mirrored: those that the binding names, and those that have pods in the worker.

Invariant: nothing is in scope of a binding that is deleted once its pods are deleted, so its mirrors are not created again.
"""

from collections.abc import Callable

from kubeocean.mirrors.leased import LeasedNamespaces
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import BY_VIRTUAL_NODE
from vkubelet.api.objects import Pod, PodRef
from vkubelet.control.informer import Change

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
