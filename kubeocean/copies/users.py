"""Index of the ConfigMaps, Secrets and claims that virtual pods name, by object, of the pods as they are in the hub.

Invariant: the objects that a pod of the store names by its spec count as used, whether this process has synced the pod or not; a deleted
pod uses none. So an object is never considered unused because a process, or a connection to the worker, is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from attrs import frozen

from kubeocean.model.references import references
from vkubelet.api.objects import Key, Pod
from vkubelet.api.podspec import Kind
from vkubelet.clock import Clock, in_batches
from vkubelet.errors import PodRejected
from vkubelet.provider import PodStore

Named = tuple[Kind, Key]

_AT_ONCE: Final = 50
"""Pods whose specs are read without a pause: about 10 ms."""


@frozen
class _Noted:
    """Objects that a pod names, and the hash of the spec they were read from."""

    spec: int
    names: frozenset[Named]


class Users:
    """Index of the objects in use; `concerns` selects the pods that run in the worker, which needs no objects of other pods."""

    def __init__(self, pods: PodStore, *, concerns: Callable[[Pod], bool]) -> None:
        self._pods = pods
        self._concerns = concerns
        self._users: dict[Named, set[str]] = {}
        self._noted: dict[str, _Noted] = {}

    async def seed(self, clock: Clock) -> None:
        """Notes every pod of the store: those that an earlier connection or process synced are not synced again."""
        async for pod in in_batches(clock, self._pods, size=_AT_ONCE):
            if self._concerns(pod) and not pod.terminal:
                self.note(pod)

    def note(self, pod: Pod) -> None:
        """Notes the objects that a pod names; a pod that can never run names none."""
        uid = pod.metadata.uid
        before = self._noted.get(uid)
        if before is not None and before.spec == hash(pod.spec_json):
            return
        names = names_of(pod)
        if before is not None:
            self._remove(uid, before.names - names)
        for name in names:
            self._users.setdefault(name, set()).add(uid)
        self._noted[uid] = _Noted(hash(pod.spec_json), names)

    def drop(self, uid: str) -> frozenset[Named]:
        """Removes a pod; returns the objects that no other pod names."""
        noted = self._noted.pop(uid, None)
        return self._remove(uid, noted.names) if noted is not None else frozenset()

    def needs(self, kind: Kind, key: Key) -> bool:
        """Checks whether a noted pod that still exists names the object."""
        return any(self._pods.by_uid(uid) is not None for uid in self._users.get((kind, key), ()))

    def is_named(self, kind: Kind, key: Key) -> bool:
        """Checks whether a pod names the object, noted or not."""
        return self.needs(kind, key) or any((kind, key) in names_of(pod) for pod in self._unnoted(key.namespace))

    def _unnoted(self, namespace: str) -> Iterator[Pod]:
        """Yields pods that were just created, and those whose physical pod was deleted before them: few."""
        for pod in self._pods:
            meta = pod.metadata
            if meta.namespace == namespace and meta.uid not in self._noted and not pod.terminal and self._concerns(pod):
                yield pod

    def _remove(self, uid: str, names: frozenset[Named]) -> frozenset[Named]:
        unused = set()
        for name in names:
            users = self._users.get(name, set())
            users.discard(uid)
            if not users:
                self._users.pop(name, None)
                unused.add(name)
        return frozenset(unused)


def names_of(pod: Pod) -> frozenset[Named]:
    """Returns the objects that the pod names by its spec; none if it cannot be translated."""
    try:
        named = references(pod).objects
    except PodRejected:
        return frozenset()
    return frozenset((reference.kind, Key(pod.metadata.namespace, reference.name)) for reference in named)
