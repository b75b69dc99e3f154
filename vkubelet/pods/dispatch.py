"""Which pods concern this process: one watch over all bound pods, and of it only what is bound to nodes we answer for.

Invariant: nothing is delivered of a pod whose node is not known here; of a known node every pod is, whichever of the two was seen first.

Of pods of other nodes a stub is kept: name, uid and node, without version and bodies. When such a node becomes known, and stubs of it
exist or come from a list that was being read meanwhile, its pods are listed once and fill the stubs. The list races with the watch and
loses: only a stub of the same uid that still stands is filled, everything else the watch has told, or will tell, by itself.

Mirror pods are left out altogether, as a kubelet leaves them out of its own: they are the API's picture of what runs anyway.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import evolve

from vkubelet.api.names import MIRROR_POD
from vkubelet.api.objects import Key, ObjectMeta, Pod, PodRef
from vkubelet.client.resources import PODS
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.isolation import Isolation
from vkubelet.control.store import Store
from vkubelet.metrics import Metrics

AGAIN = 1.0
"""Seconds until stubs that a list did not fill are looked at again; the watch has mostly removed them by then."""


class Standing(enum.Enum):
    """What is done for the pods of a node."""

    HOLD = "hold"
    """Known of old, not declared yet: statuses are published, nothing is started or ended."""
    SYNC = "sync"
    RETIRE = "retire"
    """Pods end, none is started."""
    DRAIN = "drain"
    """The process stops and takes its pods along: those that run are ended, new ones are refused."""


class PodCache:
    """The pods of known nodes, as the watch last showed them: the `PodStore` of the provider contract."""

    def __init__(self, pods: Store[Pod], known: Callable[[str], bool]) -> None:
        self._pods = pods
        self._known = known

    def get(self, ref: PodRef) -> Pod | None:
        """The pod with exactly this uid."""
        return self.by_uid(ref.uid)

    def by_uid(self, uid: str) -> Pod | None:
        return next(self._ours(self._pods.by_index("uid", uid)), None)

    def by_name(self, namespace: str, name: str) -> Pod | None:
        pod = self._pods.get(Key(namespace, name))
        return next(self._ours([pod] if pod is not None else []), None)

    def on_node(self, node: str) -> Sequence[Pod]:
        return list(self._ours(self._pods.by_index("node", node)))

    def __iter__(self) -> Iterator[Pod]:
        return self._ours(self._pods)

    def _ours(self, pods: Iterable[Pod]) -> Iterator[Pod]:
        return (pod for pod in pods if self._known(pod.node) and not is_stub(pod))


class Dispatch:
    """Tells its listeners of every change of a pod of a known node; a pod that is new to them comes as an initial change.

    `single_node` narrows the watch to one node, for a process that will never have another.
    """

    def __init__(self, client: Client, *, clock: Clock, metrics: Metrics | None = None, single_node: str = "") -> None:
        self._client = client
        self._metrics = metrics
        self._standings: dict[str, Standing] = {}
        self._listeners: list[Callable[[Change[Pod]], None]] = []
        self._isolated = Isolation("dispatch of pods")
        self._phases: Counter[str] = Counter()
        self._all: Store[Pod] = Store(
            indexes={"uid": lambda pod: [pod.metadata.uid], "node": lambda pod: [pod.node]},
            keep=self._keep,
        )
        where = Selection(fields=f"spec.nodeName={single_node}" if single_node else "spec.nodeName!=")
        self.informer: Informer[Pod] = Informer(client, PODS, where=where, store=self._all, clock=clock, metrics=metrics)
        self.informer.on_change(self._changed)
        self.store = PodCache(self._all, self._standings.__contains__)
        self.controller: Controller[str] = Controller("pod-adoption", self._fill_stubs, workers=4, clock=clock, metrics=metrics)

    def on_pod(self, listener: Callable[[Change[Pod]], None]) -> None:
        """Call `listener` for every change from now on; register before nodes are known."""
        self._listeners.append(listener)

    def standing(self, node: str) -> Standing | None:
        """None: the node is not ours."""
        return self._standings.get(node)

    def nodes(self, *standings: Standing) -> list[str]:
        """The names of the nodes that stand like that."""
        return [name for name, standing in self._standings.items() if standing in standings]

    def set(self, node: str, standing: Standing) -> None:
        """Make a node known, or change how it stands."""
        known = node in self._standings
        self._standings[node] = standing
        if not known:
            self.controller.add(node)

    def forget(self, node: str) -> None:
        """The node is not ours any more; its pods shrink to stubs."""
        if self._standings.pop(node, None) is None:
            return
        for pod in self._all.by_index("node", node):
            if not is_stub(pod):
                self._count(pod, None)
            self._all.put(stub(pod))

    def bound_to(self, node: str) -> Sequence[Pod]:
        """Also pods that are known by a stub only."""
        return self._all.by_index("node", node)

    def knows(self, uid: str) -> bool:
        """The cluster has a pod of this uid, on whatever node."""
        return bool(self._all.by_index("uid", uid))

    def _keep(self, pod: Pod) -> Pod | None:
        if is_mirror(pod):
            return None
        return pod if pod.node in self._standings else stub(pod)

    def _visible(self, pod: Pod | None) -> Pod | None:
        return pod if pod is not None and pod.node in self._standings and not is_stub(pod) else None

    def _changed(self, change: Change[Pod]) -> None:
        old, new = self._visible(change.old), self._visible(change.new)
        if change.new is not None and is_stub(change.new) and change.new.node in self._standings:
            # Its node became known while a list was read that had made a stub of it already.
            self.controller.add(change.new.node)
        if old is None and new is None:
            return
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            # One name, two incarnations: whoever works by uid is told of an end and of a beginning.
            self._deliver(Change(change.key, old, None))
            self._deliver(Change(change.key, None, new, initial=change.initial))
            return
        was_stub = change.old is not None and old is None
        self._deliver(evolve(change, old=old, new=new, initial=change.initial or was_stub))

    def _deliver(self, change: Change[Pod]) -> None:
        self._count(change.old, change.new)
        for listener in self._listeners:
            with self._isolated(str(change.key), part=listener):
                listener(change)

    def _count(self, old: Pod | None, new: Pod | None) -> None:
        if self._metrics is None or (old is not None and new is not None and old.phase == new.phase):
            return
        for pod, step in ((old, -1), (new, 1)):
            if pod is not None:
                self._phases[pod.phase] += step
                self._metrics.pods.labels(phase=pod.phase).set(self._phases[pod.phase])

    async def _fill_stubs(self, node: str) -> float | None:
        if node not in self._standings or not self._stubs(node):
            return None
        found = await self._client.list(PODS, Selection(fields=f"spec.nodeName={node}"))
        for pod in found.items:
            known = self._all.get(pod.key)
            if known is not None and is_stub(known) and known.metadata.uid == pod.metadata.uid and node in self._standings:
                self.informer.adopt(pod)
        return AGAIN if self._stubs(node) else None

    def _stubs(self, node: str) -> list[Pod]:
        return [pod for pod in self._all.by_index("node", node) if is_stub(pod)]


def is_mirror(pod: Pod) -> bool:
    """It shows what a node runs or holds by itself; a copy that somebody made of its YAML belongs to no Node, and is a pod like others."""
    return MIRROR_POD in pod.metadata.annotations and any(
        owner.kind == "Node" and owner.controller for owner in pod.metadata.owner_references
    )


def stub(pod: Pod) -> Pod:
    """What is kept of a foreign pod."""
    meta = pod.metadata
    return Pod(ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid), pod.node, "", b"", b"")


def is_stub(pod: Pod) -> bool:
    """Every object of the API has a version; what has none was made by `stub`."""
    return not pod.metadata.resource_version
