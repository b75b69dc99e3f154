"""Reconciles the mirrors of one extra kind; which they are is computed by the functions below the class.

Invariant: that of `kubeocean.mirrors.engine`; no mirror is created before the kind is recorded on the binding. A mirror has the marks of
its owner whatever the rewriting sets, and what controllers of the worker added to it is kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from kubeocean.copies.bodies import copy_of, marked_copy
from kubeocean.mirrors.engine import BY_NAMESPACE, Mirrors, key_of
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind
from kubeocean.model.rewriting import covers, digest_of, rewritten
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import REFUSED, Mount
from kubeocean.worker.spread import SpreadInformer
from vkubelet.api.objects import Json, JsonView, Key, Resource, Unknown
from vkubelet.control.informer import Informer
from vkubelet.control.store import Store

HUB, WORKER = "hub", "worker cluster"
_BY_ORIGINAL: Final = "original"
_NOT_CONTENT: Final = ("apiVersion", "kind", "metadata", "status")
_OF_OTHERS: Final = ("finalizers", "ownerReferences")


@frozen
class Desired:
    """Desired mirrors of one object; `refused`: why it has none."""

    bodies: Sequence[Json]
    refused: str = ""


class KindMirror(Mirrors[Desired]):
    """Keeps the mirrors of one kind, which both clusters serve as `resource`; `record` notes on the binding that there may be some."""

    def __init__(
        self,
        kind: ExtraKind,
        resource: Resource[Unknown],
        scope: WorkerScope,
        *,
        namespaces: MirroredNamespaces,
        prepare: Callable[[str], Awaitable[None]],
        record: Callable[[ExtraKind], Awaitable[None]],
    ) -> None:
        self.kind = kind
        self._record = record
        self._refused: dict[Key, str] = {}
        host = scope.host
        store: Store[Unknown] = Store(indexes={BY_NAMESPACE: lambda each: [each.metadata.namespace]})
        originals = Informer(host.client, resource, store=store, clock=host.clock, metrics=host.metrics)
        self.mirrors = scope.worker.copies(resource, indexes={_BY_ORIGINAL: lambda each: [str(copy_of(each.metadata))]})
        super().__init__(kind.title, scope, originals, namespaces=namespaces, prepare=prepare)
        self.mirrors.on_change(self._mirror_changed)

    async def run(self) -> None:
        """Keeps the mirrors up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (self._originals, self.mirrors):
                group.create_task(informer.run())
            group.create_task(self.controller.run())

    def binding_changed(self) -> None:
        """Reconciles every object and every mirror: `spec.serviceNamespaces` may have changed."""
        self.controller.add_many(each.key for each in self._originals.store)
        self.controller.add_many(key for mirror in self.mirrors.store if (key := copy_of(mirror.metadata)) is not None)

    def errors(self) -> list[tuple[str, Exception]]:
        """Returns by cluster why it refuses its list, NotFound where it does not serve the kind any more; or why its first list fails."""
        found = ((HUB, self._originals), (WORKER, self.mirrors))
        errors = ((where, each.last_error, each.ever_synced) for where, each in found)
        return [(where, error) for where, error, listed in errors if error is not None and (isinstance(error, REFUSED) or not listed)]

    def problems(self) -> list[str]:
        """Returns why objects in scope have no mirror."""
        named = (f"{self._originals.resource.kind} {key} has no mirror: {why}" for key, why in self._refused.items())
        return [*self._problems.values(), *named]

    @property
    def is_listed(self) -> bool:
        """Whether both clusters have been listed."""
        return all(each.ever_synced for each in (self._originals, self.mirrors))

    def _lists_for(self, namespace: str) -> Iterable[Informer[Unknown]]:
        if not isinstance(self.mirrors, SpreadInformer):
            return (self._originals, self.mirrors)
        part = self.mirrors.part(self._worker.mount.namespace_of(namespace))
        return (self._originals, self._worker.namespaces, *([part] if part is not None else []))

    def _desired(self, original: Unknown) -> Desired | None:
        made = desired(original, self._worker.mount, kind=self.kind, resource=self._originals.resource)
        self._refused.pop(original.key, None)
        if made.refused:
            self._refused[original.key] = made.refused
        return made if made.bodies else None

    def _original_of(self, mirror: Unknown) -> Key | None:
        return copy_of(mirror.metadata)

    def _mirrors_of(self, key: Key) -> Sequence[tuple[Informer[Unknown], Unknown]]:
        listed = self.mirrors.store.by_index(_BY_ORIGINAL, str(key))
        return [(self.mirrors, each) for each in listed if self._is_ours(each, key)]

    def _reconciled(self, key: Key, *, exists: bool) -> None:
        if not exists or not self._namespaces.includes(key.namespace):
            self._refused.pop(key, None)

    async def _write(self, key: Key, wanted: Desired) -> float | None:
        if self._originals.resource.namespaced:
            await self._prepare(key.namespace)
        await self._record(self.kind)
        for body in wanted.bodies:
            live = await self._live(self.mirrors, body, key)
            replacement = change(live, body) if live is not None else None
            if replacement is not None:
                self.mirrors.adopt(await self._worker.client.replace(self.mirrors.resource, replacement))
        # After those that take their place: what a mirror is about is always covered by one.
        names = {key_of(body) for body in wanted.bodies}
        for _, surplus in self._mirrors_of(key):
            if surplus.key not in names and not surplus.metadata.deletion_timestamp:
                await self._delete(self.mirrors, surplus)
        return None


def desired(original: Unknown, mount: Mount, *, kind: ExtraKind, resource: Resource[Unknown]) -> Desired:
    """Returns the mirrors of an object of the hub; none of one that is being deleted."""
    if original.metadata.deletion_timestamp:
        return Desired(())
    body = original.body
    base: Json = {name: value for name, value in body.items() if name not in _NOT_CONTENT}
    base["metadata"] = dict(marked_copy(resource.kind, original.metadata, mount.owner, namespace="")["metadata"])
    made = rewritten(kind.rewrites, body, base, worker_namespace=mount.namespace_of)
    bodies = [_completed(each, resource, original, mount, item) for item, each in sorted(made.bodies.items())]
    return Desired(bodies, made.refused)


def _completed(body: Json, resource: Resource[Unknown], original: Unknown, mount: Mount, item: str) -> Json:
    key = mount.mirror_key(original.key, item)
    origin = {keys.VIRTUAL_NAME: original.metadata.name, keys.VIRTUAL_NAMESPACE: original.metadata.namespace}
    labels = _texts(body["metadata"].get("labels"))
    annotations = _texts(body["metadata"].get("annotations"))
    expected = keys.ExpectedMetadata(labels, annotations).encode()
    annotations |= {keys.EXPECTED_METADATA: expected}
    metadata: Json = {
        "name": key.name,
        "labels": {**labels, **mount.owner.labels},
        "annotations": {**annotations, **mount.owner.annotations, **origin},
    }
    if resource.namespaced:
        metadata["namespace"] = key.namespace
    content = {name: value for name, value in body.items() if name not in _NOT_CONTENT}
    made: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
    metadata["annotations"][keys.APPLIED] = digest_of(made)
    return made


def _texts(found: JsonView | None) -> dict[str, str]:
    return {key: value for key, value in (found or {}).items() if isinstance(value, str)}


def change(live: Unknown, wanted: Json) -> Json | None:
    """Returns the object with which a mirror is replaced; None when it is as desired.

    What the server or a controller of the worker added is kept: fields of the content until the original changes, all else always.
    """
    body, meta = live.body, live.metadata
    applied = keys.APPLIED
    # An item of a list of a built-in kind names neither version nor kind.
    compared = {name: value for name, value in wanted.items() if name not in ("apiVersion", "kind")}
    if meta.annotations.get(applied) == wanted["metadata"]["annotations"][applied] and covers(body, compared):
        return None
    before = keys.ExpectedMetadata.decode(meta.annotations.get(keys.EXPECTED_METADATA, "")) or keys.ExpectedMetadata()
    ours = wanted["metadata"]
    metadata = {
        **ours,
        "labels": _merged(meta.labels, ours["labels"], before=before.labels),
        "annotations": _merged(meta.annotations, ours["annotations"], before=before.annotations),
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        **{name: body["metadata"][name] for name in _OF_OTHERS if body["metadata"].get(name)},
    }
    status = {"status": body["status"]} if body.get("status") else {}
    return {**wanted, "metadata": metadata, **status}


def _merged(live: Mapping[str, str], ours: Mapping[str, str], *, before: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of others, and ours; those that were ours and are not desired any more are dropped."""
    return {**{key: value for key, value in live.items() if key not in before}, **ours}
