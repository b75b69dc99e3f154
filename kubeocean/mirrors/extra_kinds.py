"""Runs the mirrors of the kinds of `provider.extra_kinds`: finds them in both clusters, and reports what is missing on the binding.

Invariant: a kind that a cluster does not serve or permit keeps nothing else from being served; the mirrors of a kind that was removed from
the setting are deleted before its record on the binding is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kubeocean.binding.conditions import EXTRA_KINDS_MIRRORED, LISTED_REMEDY, NOT_LISTED, RIGHTS_MISSING, Observation
from kubeocean.mirrors.kind_mirror import HUB, WORKER, KindMirror
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model.kinds import ExtraKind
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import REFUSED, owned
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import Resource, Unknown, get_condition
from vkubelet.client.rest import Client
from vkubelet.errors import NotFound, ServerError, VKubeletError
from vkubelet.logformat import few

_LOOKED_EVERY: Final = 10.0
"""Seconds until the clusters are asked again for a kind that is not served: its definition may be installed at any time."""
_REPORTED_EVERY: Final = 1.0
_NAMED: Final = 5
_NOT_SERVED: Final = "NotServed"
_NOTHING: Final = Observation(True, "NothingToMirror", "provider.extra_kinds names no kind, and no mirror is left")
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
        self._unserved: set[str] = set()
        """Kinds that the worker does not serve, so that it has no object of them."""
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

    def left(self) -> dict[str, int] | str:
        """Returns the number of mirrors in namespaces of the worker, by kind; or the kinds of which they are not known."""
        noted = sorted(kind.title for kind in self._scope.binding.mirrored_kinds if kind.namespaced)
        served = [title for title in noted if not self._is_unserved(title)]
        unknown = [title for title in served if title not in self._running or not self._running[title].mirrors.synced]
        if unknown:
            return few(unknown, _NAMED)
        owner = self._scope.worker.mount.owner
        stores = {title: self._running[title].mirrors.store for title in served}
        return {title: sum(classify(each.metadata, owner) is Ownership.OURS for each in store) for title, store in stores.items()}

    def _is_unserved(self, title: str) -> bool:
        """Checks that the worker does not serve a kind, or not any more: then it has none of its objects."""
        if title in self._running:
            return isinstance(self._running[title].mirrors.last_error, NotFound)
        return title in self._unserved

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
        found: dict[str, Resource[Unknown] | str] = {}
        unserved = set[str]()
        for client, where in ((self._scope.host.client, HUB), (self._scope.worker.client, WORKER)):
            try:
                found[where] = await discovered(client, kind, where=where)
            except NotFound as error:
                unserved.add(where)
                found[where] = error.message
            except VKubeletError as error:
                found[where] = f"cannot find {kind.title} in the {where}: {error}"
        (self._unserved.add if WORKER in unserved else self._unserved.discard)(kind.title)
        return next((each for each in found.values() if isinstance(each, str)), found[WORKER])

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
        errors = {title: each.errors() for title, each in self._running.items()}
        if not self._kinds.keys() <= self._running.keys() | self._absent.keys():
            return None
        if not all(each.is_listed or errors[title] for title, each in self._running.items()):
            return None
        lacking, failing, absent = list[str](), list[str](), [*self._absent.values()]
        for title, where, error in ((title, *each) for title, found in errors.items() for each in found):
            texts = absent if isinstance(error, NotFound) else lacking if isinstance(error, REFUSED) else failing
            texts.append(f"{self._effect(title)}: {error} (in the {where})")
        problems = [text for each in self._running.values() for text in each.problems()]
        reasons = ((RIGHTS_MISSING, lacking), (_NOT_SERVED, absent), (NOT_LISTED, failing), ("Incomplete", problems))
        reason = next((name for name, texts in reasons if texts), "")
        if reason:
            texts = [few(sorted(each), _NAMED, separator="; ") for _, each in reasons if each]
            remedies = [text for text, found in ((_REMEDY, lacking), (LISTED_REMEDY, failing)) if found]
            return Observation(False, reason, "; ".join((*texts, *remedies)))
        if not self._running:
            return _NOTHING
        return Observation(True, "Mirrored", f"{few(sorted(self._running), _NAMED)} of the hub have mirrors in the worker")

    def _effect(self, title: str) -> str:
        """Returns what it means that a kind is not listed; mirrors of an earlier time stay."""
        if title in {each.title for each in self._scope.binding.mirrored_kinds}:
            return f"changes of {title} are not mirrored, and existing mirrors stay as they are"
        return f"{title} are not mirrored"


async def discovered(client: Client, kind: ExtraKind, *, where: str) -> Resource[Unknown] | str:
    """Finds a kind by API discovery; returns the resource, or why it cannot be mirrored, with the remedy.

    Raises NotFound with the remedy where it is not served, ApiError.
    """
    attempt = f"GET {kind.path}"
    try:
        listed = decode_json(await client.request("GET", kind.path)).get("resources") or []
    except NotFound:
        listed = []
    except ValueError as error:
        raise ServerError(attempt, str(error)) from error
    if not (isinstance(listed, list) and all(isinstance(each, dict) for each in listed)):
        raise ServerError(attempt, "`resources` is not a list of objects")
    found = next((each for each in listed if each.get("name") == kind.resource), None)
    if found is None:
        remedy = "install its CustomResourceDefinition there, or remove the kind from provider.extra_kinds"
        raise NotFound(attempt, f"the {where} does not serve {kind.title} in version {kind.version}; {remedy}", status=404)
    name, namespaced = found.get("kind"), found.get("namespaced", False)
    if not (isinstance(name, str) and name and isinstance(namespaced, bool)):
        raise ServerError(attempt, f"`kind` or `namespaced` of {kind.resource} cannot be read")
    if namespaced is not kind.namespaced:
        scope = "has" if namespaced else "has no"
        return f"{kind.title} {scope} namespaces in the {where}; correct `namespaced` of the kind in provider.extra_kinds"
    return kind.of_kind(name)
