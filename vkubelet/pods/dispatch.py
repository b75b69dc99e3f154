"""Pod dispatch: one watch over all bound pods, filtered to the pods of the nodes that this process serves.

Invariant: no change is delivered for a pod whose node is not known here; for a known node every pod is delivered, whether the pod or the
node was seen first.

Of pods of other nodes a stub is kept: name, UID and node, without version and bodies. When such a node becomes known, and stubs of it exist
or come from a list that was being read meanwhile, its pods are listed once to fill the stubs. If the list races with the watch, the watch
wins: only a stub of the same UID that still exists is filled; the watch has delivered, or will deliver, everything else.

Mirror pods are ignored, as a kubelet ignores its own: they are the API's view of static pods that run anyway.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import evolve

from vkubelet.api.names import MIRROR_POD
from vkubelet.api.objects import PODS, Key, ObjectMeta, Pod, PodRef
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.controller import Controller, Isolation
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.metrics import Metrics

AGAIN = 1.0
"""Seconds until stubs that a list did not fill are checked again; by then the watch has removed most of them."""


class DispatchMode(enum.Enum):
    """Dispatch mode of a node: which operations its pods get."""

    HOLD = "hold"
    """Node that existed before this process and is not declared yet: statuses are published, no pod is started or terminated."""
    SYNC = "sync"
    RETIRE = "retire"
    """Pods are terminated; none is started."""
    REFUSE = "refuse"
    """The process is about to drain its nodes: new pods are rejected, and those that run are not terminated yet."""
    DRAIN = "drain"
    """The process stops and drains its nodes: running pods are terminated, new ones rejected."""


class PodCache:
    """Cache of the pods of known nodes, as last delivered by the watch: the `PodStore` of the provider contract."""

    def __init__(self, pods: Store[Pod], known: Callable[[str], bool]) -> None:
        self._pods = pods
        self._known = known

    def get(self, ref: PodRef) -> Pod | None:
        """Returns the pod with exactly this UID."""
        return self.by_uid(ref.uid)

    def by_uid(self, uid: str) -> Pod | None:
        # Several times for each event of a pod, so without a generator.
        for pod in self._pods.by_index("uid", uid):
            if self._known(pod.node) and not is_stub(pod):
                return pod
        return None

    def by_name(self, namespace: str, name: str) -> Pod | None:
        pod = self._pods.get(Key(namespace, name))
        return next(self._ours([pod] if pod is not None else []), None)

    def on_node(self, node: str) -> Sequence[Pod]:
        return list(self._ours(self._pods.by_index("node", node)))

    def in_namespace(self, namespace: str) -> Sequence[Pod]:
        return list(self._ours(self._pods.by_index("namespace", namespace)))

    def __iter__(self) -> Iterator[Pod]:
        return self._ours(self._pods)

    def _ours(self, pods: Iterable[Pod]) -> Iterator[Pod]:
        return (pod for pod in pods if self._known(pod.node) and not is_stub(pod))


class Dispatch:
    """Delivery of every change of a pod of a known node to the listeners; a pod that is new to them comes as an initial change."""

    def __init__(self, client: Client, *, clock: Clock, metrics: Metrics | None = None) -> None:
        self._client = client
        self._metrics = metrics
        self._modes: dict[str, DispatchMode] = {}
        self._listeners: list[Callable[[Change[Pod]], None]] = []
        self._isolated = Isolation("dispatch of pods")
        self._phases: Counter[str] = Counter()
        self._all: Store[Pod] = Store(
            indexes={
                "uid": lambda pod: [pod.metadata.uid],
                "node": lambda pod: [pod.node],
                "namespace": lambda pod: [pod.metadata.namespace],
            },
            keep=self._keep,
        )
        where = Selection(fields="spec.nodeName!=")
        self.informer: Informer[Pod] = Informer(client, PODS, where=where, store=self._all, clock=clock, metrics=metrics)
        self.informer.on_change(self._changed)
        self.store = PodCache(self._all, self._modes.__contains__)
        self.controller: Controller[str] = Controller("pod-adoption", self._fill_stubs, workers=4, clock=clock, metrics=metrics)

    def on_pod(self, listener: Callable[[Change[Pod]], None]) -> None:
        """Registers `listener` for every change from now on; call this before any node is known."""
        self._listeners.append(listener)

    def mode(self, node: str) -> DispatchMode | None:
        """Returns the dispatch mode of a node, or None when this process does not serve it."""
        return self._modes.get(node)

    def nodes(self, *modes: DispatchMode) -> list[str]:
        """Returns the names of the nodes in one of these modes."""
        return [name for name, mode in self._modes.items() if mode in modes]

    def set_mode(self, node: str, mode: DispatchMode) -> None:
        """Makes a node known, or changes its dispatch mode."""
        known = node in self._modes
        self._modes[node] = mode
        if not known:
            self.controller.add(node)

    def remove_node(self, node: str) -> None:
        """Drops a node that this process no longer serves; its pods shrink to stubs."""
        if self._modes.pop(node, None) is None:
            return
        for pod in self._all.by_index("node", node):
            if not is_stub(pod):
                self._count(pod, None)
            self._all.put(stub(pod))

    def bound_to(self, node: str) -> Sequence[Pod]:
        """Returns the pods bound to a node, including those known by a stub only."""
        return self._all.by_index("node", node)

    def knows(self, uid: str) -> bool:
        """Checks whether the cluster has a pod of this UID, on any node."""
        return self._all.has("uid", uid)

    def _keep(self, pod: Pod) -> Pod | None:
        if is_mirror(pod):
            return None
        return pod if pod.node in self._modes else stub(pod)

    def _visible(self, pod: Pod | None) -> Pod | None:
        return pod if pod is not None and pod.node in self._modes and not is_stub(pod) else None

    def _changed(self, change: Change[Pod]) -> None:
        old, new = self._visible(change.old), self._visible(change.new)
        if change.new is not None and is_stub(change.new) and change.new.node in self._modes:
            # Its node became known while a list was being read that had already made a stub of the pod.
            self.controller.add(change.new.node)
        if old is None and new is None:
            return
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            # One name, two incarnations: listeners that work by UID receive a deletion and a creation.
            self._deliver(Change(change.key, old, None))
            self._deliver(Change(change.key, None, new, initial=change.initial))
            return
        was_stub = change.old is not None and old is None
        seen_whole = old is change.old and new is change.new
        self._deliver(change if seen_whole else evolve(change, old=old, new=new, initial=change.initial or was_stub))

    def _deliver(self, change: Change[Pod]) -> None:
        self._count(change.old, change.new)
        for listener in self._listeners:
            self._isolated.call(listener, change, change.key)

    def _count(self, old: Pod | None, new: Pod | None) -> None:
        if self._metrics is None or (old is not None and new is not None and old.phase == new.phase):
            return
        for pod, step in ((old, -1), (new, 1)):
            if pod is not None:
                self._phases[pod.phase] += step
                self._metrics.pods.labels(phase=pod.phase).set(self._phases[pod.phase])

    async def _fill_stubs(self, node: str) -> float | None:
        if node not in self._modes or not self._stubs(node):
            return None
        found = await self._client.list(PODS, Selection(fields=f"spec.nodeName={node}"))
        for pod in found.items:
            known = self._all.get(pod.key)
            if known is not None and is_stub(known) and known.metadata.uid == pod.metadata.uid and node in self._modes:
                self.informer.adopt(pod)
        return AGAIN if self._stubs(node) else None

    def _stubs(self, node: str) -> list[Pod]:
        return [pod for pod in self._all.by_index("node", node) if is_stub(pod)]


def is_mirror(pod: Pod) -> bool:
    """Checks whether the pod mirrors a static pod of a node; a copy made from its YAML is not controlled by a Node, and is a normal pod."""
    return MIRROR_POD in pod.metadata.annotations and any(
        owner.kind == "Node" and owner.controller for owner in pod.metadata.owner_references
    )


def stub(pod: Pod) -> Pod:
    """Returns what is kept of a pod of an unknown node."""
    meta = pod.metadata
    head = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid)
    head.compact()
    return Pod(head, pod.node, "", b"", b"")


def is_stub(pod: Pod) -> bool:
    """Checks for the missing resourceVersion: every object of the API has one, only those made by `stub` have none."""
    return not pod.metadata.resource_version
