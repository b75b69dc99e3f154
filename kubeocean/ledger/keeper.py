"""Keeps the ledger of one connection to a worker: counts its pods, and stores the sums in the ConfigMap `kubeocean-ledger` beside them.

The stored text states until when it is counted. A process that starts loads it and counts what the pods' own times show since, so time in
which no process ran is neither omitted nor counted twice, and no pod needs a mark. A pod that is deleted while no process runs counts until
then; so does one that is deleted while the worker does not respond, as nothing shows when it stopped.

Invariant: the ConfigMap has one writer, the owner of the mount namespace, and each write carries the resourceVersion that it is based on:
after a conflict the stored ledger is loaded again. Nothing is counted, and nothing is stored, of a time without contact to the worker.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from attrs import evolve

from kubeocean.leasing.policy import NodeFacts, Terms, matching
from kubeocean.ledger.account import Cell, Ledger, Part
from kubeocean.ledger.held import Account, held
from kubeocean.ledger.text import Summaries, Texts, hours_of, parse, read_hour
from kubeocean.ledger.turns import Turns
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import CONFIGMAPS, Json, Key, Node, Pod, Unknown
from vkubelet.api.quantity import Resources, add_resources
from vkubelet.client.rest import PatchKind
from vkubelet.clock import in_batches
from vkubelet.control.informer import Change
from vkubelet.errors import AlreadyExists, Conflict, Forbidden, NotFound, VKubeletError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_TICK: Final = 1.0
_COUNTED_EVERY: Final = 5.0
_PLACES: Final = 200
_AT_ONCE: Final = 50
_AT_REST: Final = 300.0
"""Seconds between two writes while pods run and none starts, changes or stops."""
_STILL: Final = 1.0
_APART: Final = 30.0
_BURST: Final = 3
"""After a change a write follows within a second; of many changes, on average one every half minute."""
_AFTER_AN_ERROR: Final = 30.0
_EVER: Final = datetime.min.replace(tzinfo=UTC)


class Policies(Protocol):
    """The policies as needed here."""

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]:
        """Policies for this binding."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a listener that is called after every change of a policy."""


class LedgerKeeper:
    """The ledger of one binding while a worker is connected."""

    def __init__(self, scope: WorkerScope, policies: Policies) -> None:
        self._scope = scope
        self._clock = scope.host.clock
        self._worker = scope.worker
        self._policies = policies
        self._own: Sequence[ResourceLeasingPolicy] = ()
        self._matching: dict[str, tuple[Node, ClusterBinding, list[ResourceLeasingPolicy], Terms]] = {}
        self._turns, self._texts, self._summaries = Turns(), Texts(), Summaries()
        self._account: Account | None = None
        self._stored: Unknown | None = None
        self._contact = scope.host.clock.now()
        self._shown: dict[tuple[str, str], Resources] = {}
        now = scope.host.clock.monotonic()
        self._counted_at = -math.inf
        self._counting = False
        self._policies_due = False
        self._unsaved_since: float | None = None
        self._refused = False
        self._saved_at = self._not_before = now
        self._written: deque[float] = deque(maxlen=_BURST)
        policies.on_change(self._policies_changed)

    async def run(self) -> None:
        """Loads the ledger once the worker is listed, then counts and stores until cancelled."""
        self._worker.pods.on_change(self._pod_changed)
        self._worker.nodes.on_change(self._node_changed)
        await self._worker.wait_complete()
        await self._scope.hub_nodes.wait_synced()
        await self._scope.binding.informer.wait_synced()
        self._own = list(self._policies.current)
        while not await self._load():
            await self._clock.sleep(_AFTER_AN_ERROR)
        while True:
            await self._clock.sleep(_TICK)
            due = self._is_due()
            await self._count(at_once=due)
            if due:
                await self._save()

    def summary(self, policy: str) -> Json | None:
        """Returns the field `ledger` of the status of a policy; None before the ledger was loaded."""
        if self._account is None:
            return None
        self._count_few(self._account)
        return self._summaries.of(self._account.ledger, policy, now=self._account.ledger.through)

    def lent(self) -> Callable[[], Mapping[tuple[str, str], Resources]]:
        """Captures the ledger; the returned function, which may run in another thread, returns the resource-seconds lent since it was
        created, by virtual node and namespace, of which none ever decreases.
        """
        binding = self._scope.binding.current
        if self._account is None or binding is None:
            return dict
        self._count_few(self._account)
        return partial(self._lent, dict(self._account.ledger.total), binding.cluster_id)

    def _lent(self, total: Mapping[Cell, Resources], cluster_id: str) -> Mapping[tuple[str, str], Resources]:
        sums: dict[tuple[str, str], Resources] = {}
        for cell, amounts in total.items():
            if cell.node:
                place = keys.vnode_name(cluster_id, cell.node), cell.namespace
                sums[place] = add_resources(sums.get(place, {}), amounts)
        # A pod whose termination is reported late has been counted for longer; a counter that decreases would count everything again.
        self._shown = {place: _at_least(amounts, self._shown.get(place, {})) for place, amounts in sums.items()}
        return self._shown

    # --- counting ---

    def _pod_changed(self, change: Change[Pod]) -> None:
        account = self._account
        if account is None:
            return
        old, new, changed = change.old, change.new, False
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            end = self._contact if change.suspected else self._clock.now()
            changed = account.remove(old.metadata.uid, end=end, at=self._clock.now())
        if new is not None and not (old is not None and new.metadata.uid in account and _is_same(old, new)):
            changed |= self._put(account, new)
        if changed or (new is not None and old is not None and new.terminating and not old.terminating and new.metadata.uid in account):
            self._note()

    def _put(self, account: Account, pod: Pod) -> bool:
        ref = self._worker.backed(pod)
        # A pod whose marks another client removed, and of which they are restored, is one pod.
        if ref is None and pod.metadata.uid not in account:
            return False
        now = held(pod, ref.namespace if ref is not None else "")
        return now is not None and account.put(pod.metadata.uid, now, at=self._clock.now())

    def _note(self) -> None:
        """Notes a change that a later process could not see in the pods."""
        if self._unsaved_since is None:
            self._unsaved_since = self._clock.monotonic()

    def _present(self) -> datetime:
        """Returns the time until which the worker was observed: now, unless it does not respond."""
        if self._is_in_contact():
            self._contact = self._clock.now()
        return self._contact

    def _is_in_contact(self) -> bool:
        return self._worker.pods.synced and not self._scope.reach.lost and not self._scope.reach.problem

    def _count_few(self, account: Account) -> None:
        """Counts everything until now if that takes one short turn; else readers get the last count, which is seconds old."""
        if len(account.places) <= _PLACES and not self._counting:
            account.advance(self._present())

    async def _count(self, *, at_once: bool) -> None:
        """Counts everything until now, at most every few seconds, in turns that delay no Lease: a thousand nodes are many places."""
        account, now, changed = self._account, self._present(), self._policies_due
        recent = self._clock.monotonic() < self._counted_at + _COUNTED_EVERY
        if account is None or recent and not changed and not at_once:
            return
        self._counted_at, self._counting = self._clock.monotonic(), True
        try:
            async for place in in_batches(self._clock, account.places, size=_AT_ONCE):
                account.count(place, now)
        finally:
            self._counting = False
        account.complete(now)
        if changed:
            # Until now it was counted by the earlier policies.
            self._own, self._policies_due = list(self._policies.current), False
            self._matching.clear()
        async for _ in in_batches(self._clock, self._summaries.steps(account.ledger, now=now), size=1):
            pass

    # --- who decided ---

    def _node_changed(self, change: Change[Node]) -> None:
        if change.new is not None:
            return
        if self._account is not None:
            # By the policies that decided about it, which are dropped with it.
            for place in self._account.places:
                if place.node == change.key.name:
                    self._account.count(place, self._present())
        self._matching.pop(change.key.name, None)

    def _policies_changed(self) -> None:
        self._policies_due = True

    def _deciders(self, node: str, start: datetime, end: datetime) -> Sequence[Part]:
        found = self._valid(node)
        parts = self._turns.parts(found[0], found[1], start=start, end=end) if found is not None else [Part("", start, end)]
        if any(not part.policy for part in parts):
            last = self._last_policy(node)
            return [evolve(part, policy=part.policy or last) for part in parts]
        return parts

    def _valid(self, name: str) -> tuple[list[ResourceLeasingPolicy], Terms] | None:
        """Returns the valid policies that match a node, the best first; None while it is not known."""
        node, binding = self._worker.nodes.store.get(Key("", name)), self._scope.binding.current
        known = self._matching.get(name)
        if node is None and known is not None:
            return known[2], known[3]
        if node is None or binding is None:
            return None
        if known is not None and known[0] is node and known[1] is binding:
            return known[2], known[3]
        try:
            terms = Terms.of(binding, process_zone=self._scope.process_zone)
        except ValueError:
            return None
        facts = NodeFacts(name, node.metadata.labels, {})
        valid = [policy for policy in matching(self._own, node=facts, terms=terms) if policy.is_valid]
        self._matching[name] = (node, binding, valid, terms)
        return valid, terms

    def _last_policy(self, node: str) -> str:
        """Returns the policy that a virtual node names, of which none applies any more."""
        binding = self._scope.binding.current
        name = keys.vnode_name(binding.cluster_id, node) if binding is not None else ""
        virtual = self._scope.hub_nodes.store.get(Key("", name))
        return keys.deciding_policy(virtual.metadata.annotations) if virtual is not None else ""

    # --- storing ---

    async def _load(self) -> bool:
        """Loads the stored ledger and counts the pods since; returns whether it could be read."""
        key = Key(self._worker.mount.namespace, keys.LEDGER)
        try:
            stored: Unknown | None = await self._worker.client.get(CONFIGMAPS, key)
        except NotFound:
            stored = None
        except VKubeletError as error:
            self._failed("cannot read the ledger", error)
            return False
        self._refused = False
        if stored is not None and not self._is_ours(stored):
            log.warning("ConfigMap %s of the worker has no mark of this binding; the ledger is not stored", key)
        now = self._present()
        data = _data(stored) if stored is not None and self._is_ours(stored) else {}
        if (ledger := parse(data, hours=False)) is not None:
            async for hour in in_batches(self._clock, hours_of(data), size=1):
                read_hour(ledger, data, hour)
        counted = ledger.through if ledger is not None else _EVER
        account = Account(ledger or Ledger.begin(now), self._deciders, counted)
        self._stored, self._account = stored, account
        async for key in in_batches(self._clock, self._worker.pods.store.keys()):
            pod = self._worker.pods.store.get(key)
            if pod is not None and self._account is account:
                self._put(account, pod)
        if account.is_lending:
            self._note()
        return True

    def _is_ours(self, stored: Unknown) -> bool:
        return classify(stored.metadata, self._worker.mount.owner) is Ownership.OURS

    def _is_due(self) -> bool:
        account, now = self._account, self._clock.monotonic()
        self._present()
        if account is None or now < self._not_before or not self._is_in_contact():
            return False
        if self._unsaved_since is not None:
            apart = self._written[0] + _BURST * _APART if len(self._written) == _BURST else now
            return now >= max(self._unsaved_since + _STILL, apart)
        return account.is_lending and now >= self._saved_at + _AT_REST

    async def _save(self) -> None:
        account, now = self._account, self._clock.monotonic()
        assert account is not None, "a ledger is stored after it was loaded"
        # What changed after the last count is not stored by this write.
        unsaved, self._unsaved_since = self._unsaved_since, now if account.is_pending else None
        self._saved_at = now
        self._written.append(now)
        try:
            async for _ in in_batches(self._clock, self._texts.steps(account.ledger), size=1):
                pass
            await self._write(self._texts.data)
            self._refused = False
        except (AlreadyExists, Conflict):
            # Another process has counted until later: what it stored is continued.
            self._unsaved_since, self._not_before = unsaved, now + _TICK
            await self._load()
        except NotFound:
            self._stored, self._unsaved_since = None, now
        except VKubeletError as error:
            self._failed("cannot store the ledger", error)
            self._unsaved_since, self._not_before = unsaved, now + _AFTER_AN_ERROR

    def _failed(self, what: str, error: VKubeletError) -> None:
        """Warns once of a missing right: nothing else shows that. Other errors are those of an outage, which is reported as such."""
        is_new, self._refused = isinstance(error, Forbidden) and not self._refused, isinstance(error, Forbidden)
        with bind(error=str(error)):
            log.log(logging.WARNING if is_new else logging.DEBUG, what)

    async def _write(self, data: Mapping[str, str]) -> None:
        owner, client, stored = self._worker.mount.owner, self._worker.client, self._stored
        if stored is None:
            if not self._scope.binding.ending:
                labels = {keys.OWNER: owner.mark}
                space = self._worker.mount.namespace
                metadata = {"name": keys.LEDGER, "namespace": space, "labels": labels, "annotations": owner.annotations}
                body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
                self._stored = await client.create(CONFIGMAPS, body, namespace=space)
            return
        if not self._is_ours(stored):
            # Rule `owner-mark`.
            return
        before, meta = _data(stored), stored.metadata
        change: Json = {name: text for name, text in data.items() if before.get(name) != text}
        change |= dict.fromkeys(before.keys() - data.keys())
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "data": change}
        self._stored = await client.patch(CONFIGMAPS, meta, body, kind=PatchKind.MERGE)


def _data(stored: Unknown) -> Mapping[str, str]:
    return {name: text for name, text in (stored.body.get("data") or {}).items() if isinstance(text, str)}


def _is_same(old: Pod, new: Pod) -> bool:
    """Checks that nothing changed that determines what a pod holds. Most changes are those of a status, which counts for a resized pod."""
    resized = new.metadata.generation > 1 and old.status_text != new.status_text
    return not resized and not new.terminal and (old.node, old.phase, old.spec_text) == (new.node, new.phase, new.spec_text)


def _at_least(amounts: Resources, before: Resources) -> Resources:
    return {name: max(amount, before.get(name, amount)) for name, amount in amounts.items()}
