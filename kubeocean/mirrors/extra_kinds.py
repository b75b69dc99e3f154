"""Runs the mirrors of the kinds of `provider.extra_kinds`: finds them in both clusters, and reports what is missing on the binding.

Invariant: a kind that a cluster does not serve or permit keeps nothing else from being served; the mirrors of a kind that was removed from
the setting are deleted before its record on the binding is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kubeocean.binding.conditions import EXTRA_KINDS_MIRRORED, RIGHTS_MISSING, Observation, few
from kubeocean.mirrors.kind_mirror import KindMirror
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model.kinds import ExtraKind
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import owned
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import Resource, Unknown, get_condition
from vkubelet.client.rest import Client
from vkubelet.errors import NotFound, ServerError, VKubeletError

_LOOKED_EVERY: Final = 10.0
"""Seconds until the clusters are asked again for a kind that is not served: its definition may be installed at any time."""
_REPORTED_EVERY: Final = 1.0
_NAMED: Final = 5
_NOT_SERVED: Final = "NotServed"
_NOTHING: Final = Observation(True, "NothingToMirror", "provider.extra_kinds names no kind, and no mirror is left")
_WORKER, _HUB = "worker cluster", "hub"
_REMEDY: Final = (
    "in the worker `kubeocean bind --extra-kinds FILE` and the chart kubeocean-worker grant the rights, in the hub the chart kubeocean"
)


class ExtraKinds:
    """The mirrors of all extra kinds of one connection; `prepare` is that of `Mirrors`."""

    def __init__(self, scope: WorkerScope, *, namespaces: MirroredNamespaces, prepare: Callable[[str], Awaitable[None]]) -> None:
        self._scope = scope
        self._namespaces = namespaces
        self._prepare = prepare
        self._kinds = {kind.title: kind for kind in scope.settings.extra_kinds}
        self._running: dict[str, KindMirror] = {}
        self._absent: dict[str, str] = {}
        """Why a kind is not mirrored at all."""
        self._reported: Observation | None = None

    async def run(self) -> None:
        """Mirrors all kinds until cancelled."""
        binding = self._scope.binding
        if not self._kinds and not binding.mirrored_kinds:
            status = binding.current.status if binding.current is not None else {}
            if get_condition(status.get("conditions") or (), EXTRA_KINDS_MIRRORED) is not None:
                binding.set_kinds(_NOTHING)
            return
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds.values():
                group.create_task(self._serve(kind), name=kind.title)
            for kind in binding.mirrored_kinds:
                if kind.title not in self._kinds:
                    group.create_task(self._retire(kind), name=kind.title)
            group.create_task(self._report())

    def binding_changed(self) -> None:
        """Reconciles all objects: `spec.serviceNamespaces` may have changed."""
        for mirror in self._running.values():
            mirror.binding_changed()

    def left(self) -> dict[str, int] | None:
        """Returns the number of mirrors in namespaces of the worker, by kind; None while they are not known."""
        noted = [kind.title for kind in self._scope.binding.mirrored_kinds if kind.namespaced]
        if not all(title in self._running and self._running[title].mirrors.synced for title in noted):
            return None
        owner = self._scope.worker.mount.owner
        stores = {title: self._running[title].mirrors.store for title in noted}
        return {title: sum(classify(each.metadata, owner) is Ownership.OURS for each in store) for title, store in stores.items()}

    async def _serve(self, kind: ExtraKind) -> None:
        while True:
            found = await self._look(kind)
            if isinstance(found, Resource):
                break
            self._absent[kind.title] = found
            await self._scope.host.clock.sleep(_LOOKED_EVERY)
        self._absent.pop(kind.title, None)
        mirror = KindMirror(
            kind, found, self._scope, namespaces=self._namespaces, prepare=self._prepare, record=self._scope.binding.record_kind
        )
        self._running[kind.title] = mirror
        await mirror.run()

    async def _look(self, kind: ExtraKind) -> Resource[Unknown] | str:
        """Returns the resource, or why it cannot be mirrored."""
        found: Resource[Unknown] | str = ""
        for client, where in ((self._scope.host.client, _HUB), (self._scope.worker.client, _WORKER)):
            try:
                found = await discovered(client, kind, where=where)
            except VKubeletError as error:
                return f"cannot find {kind.title} in the {where}: {error}"
            if isinstance(found, str):
                return found
        return found

    async def _retire(self, kind: ExtraKind) -> None:
        """Deletes the mirrors of a kind that was removed from the setting, then its record."""
        worker = self._scope.worker
        while True:
            try:
                await self._delete_all(kind)
                await self._scope.binding.drop_kind(kind)
                self._absent.pop(kind.title, None)
                return
            except VKubeletError as error:
                text = (
                    f"the mirrors of {kind.title}, which is no extra kind any more, are not deleted from namespace {worker.mount.namespace}"
                )
                self._absent[kind.title] = f"{text}: {error}"
            await self._scope.host.clock.sleep(_LOOKED_EVERY)

    async def _delete_all(self, kind: ExtraKind) -> None:
        worker = self._scope.worker
        resource = kind.of_kind("")
        try:
            found = await owned(worker.client, resource, worker.mount)
        except NotFound:
            # The worker does not serve the kind any more.
            return
        for each in found:
            try:
                await worker.client.delete(resource, each.key, uid=each.metadata.uid)
            except NotFound:
                # It is deleted already.
                continue

    async def _report(self) -> None:
        """Reports on the binding which kinds are mirrored, and what is missing, when that has changed."""
        while True:
            await self._scope.host.clock.sleep(_REPORTED_EVERY)
            state = self._state()
            if state is None or state == self._reported:
                continue
            self._reported = state
            self._scope.binding.set_kinds(state)

    def _state(self) -> Observation | None:
        refused = [(title, error) for title, each in self._running.items() for error in each.refusals()]
        if not self._kinds.keys() <= self._running.keys() | self._absent.keys():
            return None
        if not all(each.is_listed or each.refusals() for each in self._running.values()):
            return None
        lacking = [f"{title} are not mirrored: {error}" for title, error in refused if not isinstance(error, NotFound)]
        absent = [
            *self._absent.values(),
            *(f"{title} are not mirrored: {error}" for title, error in refused if isinstance(error, NotFound)),
        ]
        problems = [text for each in self._running.values() for text in each.problems()]
        reasons = ((RIGHTS_MISSING, lacking), (_NOT_SERVED, absent), ("Incomplete", problems))
        reason = next((name for name, texts in reasons if texts), "")
        if reason:
            texts = [few(sorted(each), _NAMED, separator="; ") for _, each in reasons if each]
            return Observation(False, reason, "; ".join(texts) + (f"; {_REMEDY}" if lacking else ""))
        if not self._running:
            return _NOTHING
        return Observation(True, "Mirrored", f"{few(sorted(self._running), _NAMED)} of the hub have mirrors in the worker")


async def discovered(client: Client, kind: ExtraKind, *, where: str) -> Resource[Unknown] | str:
    """Finds a kind by API discovery; returns the resource, or why it cannot be mirrored, with the remedy. Raises ApiError."""
    try:
        listed = decode_json(await client.request("GET", kind.path))
    except NotFound:
        listed = {}
    except ValueError as error:
        raise ServerError(f"GET {kind.path}", str(error)) from error
    found = next((each for each in listed.get("resources") or () if each.get("name") == kind.resource), None)
    if found is None:
        remedy = "install its CustomResourceDefinition there, or remove the kind from provider.extra_kinds"
        return f"the {where} does not serve {kind.title} in version {kind.version}; {remedy}"
    if bool(found.get("namespaced")) is not kind.namespaced:
        scope = "has" if found.get("namespaced") else "has no"
        return f"{kind.title} {scope} namespaces in the {where}; correct `namespaced` of the kind in provider.extra_kinds"
    return kind.of_kind(str(found.get("kind") or ""))
