"""Reconciles our NetworkPolicies in the worker namespaces of tenants with those of their hub namespaces.

Invariant: a policy is deleted only if it is ours and its original is proven to be deleted, or no pod of its namespace is left; lists that
are not complete, or refused, delete nothing. Keys are hub namespaces; calls for one never overlap.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kubeocean.binding.conditions import NETWORK_POLICIES_MIRRORED, Lists
from kubeocean.copies.bodies import copy_of, missing_marks
from kubeocean.mirrors.engine import BY_NAMESPACE, COALESCED, failures, priority_of, refusals
from kubeocean.mirrors.entrance import Entrance
from kubeocean.model import keys
from kubeocean.model.overrides import patched_keys
from kubeocean.model.ownership import Ownership, classify
from kubeocean.networkpolicies.concerns import concerns, terms_for, terms_of
from kubeocean.networkpolicies.desired import Desired, desired, within_alone
from kubeocean.networkpolicies.report import mirroring
from kubeocean.networkpolicies.translate import Spaces
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import BY_VIRTUAL_NAMESPACE, REFUSED
from kubeocean.worker.spread import SpreadInformer
from vkubelet.api.codec import encode_json
from vkubelet.api.names import SYSTEM_NAMESPACE
from vkubelet.api.objects import NAMESPACES, NETWORKPOLICIES, Json, Key, Pod, Unknown
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_BY_SPACE: Final = "space"
_BY_TERM: Final = "term"
_NOT_LISTED: Final = 0.5
_RECHECK_AFTER: Final = 60.0
"""Seconds until a policy that the worker does not accept is tried again."""
_RIGHTS_CHECKED_AFTER: Final = 5.0
"""Seconds until rights of the hub are checked again."""
_UNDER_WAY: Final = 60.0
"""Seconds for which a pod may still be created by a patch that was replaced."""
_REPORTED_EVERY: Final = 1.0


class NetworkPolicyMirror:
    """Keeps the policies of the worker namespaces that exist; does nothing where all tenants share one."""

    def __init__(self, scope: WorkerScope) -> None:
        host, worker = scope.host, scope.worker
        self._scope = scope
        self._worker = worker
        self._mount = worker.mount
        policies: Store[Unknown] = Store(indexes={BY_NAMESPACE: lambda each: [each.metadata.namespace], _BY_TERM: terms_of})
        self.policies: Informer[Unknown] = Informer(host.client, NETWORKPOLICIES, store=policies, clock=host.clock, metrics=host.metrics)
        spaces: Store[Unknown] = Store(indexes={_BY_SPACE: lambda each: [self._mount.namespace_of(each.metadata.name)]}, keep=_kept)
        self.namespaces: Informer[Unknown] = Informer(host.client, NAMESPACES, store=spaces, clock=host.clock, metrics=host.metrics)
        self._pending: set[str] = set()
        """Namespaces of which something has changed since the start of their last reconcile."""
        self._running: set[str] = set()
        self._done: set[str] = set()
        self._withdrawn = False
        self._entrance = Entrance(is_behind=self._is_behind, is_refused=self._is_refused)
        self._problems: dict[str, tuple[str, ...]] = {}
        self.controller: Controller[str] = Controller("networkpolicies", self.reconcile, workers=4, clock=host.clock, metrics=host.metrics)
        self._patched = PatchedLabels(scope, changed=self._add_all)
        self.policies.on_change(lambda change: self._add(change.key.namespace, priority=priority_of(change)))
        self.namespaces.on_change(self._namespace_changed)
        worker.namespaces.on_change(self._space_changed)
        worker.networkpolicies.on_change(self._mirror_changed)

    async def run(self) -> None:
        """Keeps the policies up to date until cancelled."""
        if self._mount.is_shared:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self.policies.run())
            group.create_task(self.namespaces.run())
            group.create_task(self.controller.run())
            group.create_task(self._report())

    async def entering(self, namespace: str) -> None:
        """Returns when a pod of a hub namespace may be created: its policies apply in the worker, or a cluster refuses them.

        Raises Unavailable when that takes longer than some seconds.
        """
        if self._mount.is_shared:
            return
        if not any(namespace in each for each in (self._done, self._pending, self._running)):
            self._add(namespace)
        if not await self._entrance.passed(namespace):
            text = f"the NetworkPolicies of namespace {namespace} do not apply in the worker cluster yet"
            raise Unavailable(text, retry_after=_NOT_LISTED)

    def binding_changed(self) -> None:
        """Reconciles every namespace: the labels of pods in the worker may be others."""
        self._patched.binding_changed()
        self._add_all()

    def withdraw(self, *, withdrawn: bool) -> None:
        """Deletes the policies of namespaces without pods, as another mapping waits for that; or creates them again."""
        if withdrawn != self._withdrawn:
            self._withdrawn = withdrawn
            self._add_all()

    async def reconcile(self, namespace: str) -> float | None:
        """Creates, updates and deletes the policies of one hub namespace; returns the seconds until the next check."""
        with bind(namespace=namespace):
            space = self._prepared(namespace)
            if space is None:
                self._drop(namespace)
                return None
            part = self._part(namespace)
            # Pods record which labels a patch of the binding has changed.
            followed = (self._worker.namespaces, self._worker.pods)
            if part is None or not all(each.ever_synced for each in (part, *followed)) or not (self._is_listed() or self._refusals()):
                return _NOT_LISTED
            # Until the policies that this round writes are in the worker, a pod would start without them.
            self._done.discard(namespace)
            self._pending.discard(namespace)
            self._running.add(namespace)
            is_done = False
            try:
                wait = await self._bring(namespace, space, part)
                is_done = True
            except (NotFound, Conflict):
                wait = COALESCED
            finally:
                self._running.discard(namespace)
                if not is_done:
                    self._pending.add(namespace)
            if namespace not in self._pending:
                self._done.add(namespace)
            self._entrance.notify()
            return wait

    # --- scope ---

    def _prepared(self, namespace: str) -> Unknown | None:
        """Returns the worker namespace of a hub namespace, if it may be used."""
        found = self._worker.namespaces.store.get(Key("", self._mount.namespace_of(namespace)))
        return found if _is_usable(found, namespace) else None

    def _part(self, namespace: str) -> Informer[Unknown] | None:
        policies = self._worker.networkpolicies
        return policies.part(self._mount.namespace_of(namespace)) if isinstance(policies, SpreadInformer) else None

    def _is_listed(self) -> bool:
        return self.policies.ever_synced and self.namespaces.ever_synced

    def _refusals(self) -> list[str]:
        """Returns why the hub has never listed what is mirrored."""
        return refusals(each for each in (self.policies, self.namespaces) if not each.ever_synced)

    def _is_refused(self, namespace: str) -> bool:
        part = self._part(namespace)
        return part is not None and not part.ever_synced and isinstance(part.last_error, REFUSED)

    def _is_behind(self, namespace: str) -> bool:
        """Checks that a namespace has to be reconciled yet. Its rights may follow the label of its namespace."""
        return namespace in self._pending or namespace not in self._done

    def _in_scope(self, namespace: str) -> bool:
        """Checks that the policies are needed: those of a binding that is deleted, or waits for another mapping, for its pods alone."""
        if not (self._scope.binding.ending or self._withdrawn):
            return True
        return self._worker.pods.store.has(BY_VIRTUAL_NAMESPACE, namespace)

    def _spaces(self) -> Spaces:
        found = {each.metadata.name: each.metadata.labels for each in self.namespaces.store}
        prepared = frozenset(name for name in found if self._prepared(name) is not None)
        return Spaces(mount=self._mount, labels=found, prepared=prepared, patched=self._patched.known())

    # --- writes ---

    async def _bring(self, namespace: str, space: Unknown, part: Informer[Unknown]) -> float | None:
        """Writes what differs; returns the seconds until the next check."""
        ours = {each.metadata.name: each for each in part.store if self._is_ours(each)}
        others = [each for each in part.store if each.metadata.name not in ours]
        is_listed, in_scope = self._is_listed(), self._in_scope(namespace)
        wanted = Desired({})
        if in_scope and is_listed:
            limited = space.metadata.labels.get(keys.OWNER_LIMITS_EGRESS) == "true"
            listed = self.policies.store.by_index(BY_NAMESPACE, namespace)
            wanted = desired(namespace, listed, others=others, spaces=self._spaces(), limited=limited)
        elif in_scope and not any(copy_of(each.metadata) for each in ours.values()):
            # What an earlier process has mirrored stays as it is.
            wanted = within_alone(namespace, others, self._spaces())
        problems = list(wanted.problems)
        for body in wanted.bodies.values():
            problems += await self._write(body)
        proven = True
        if is_listed:
            surplus = [each for name, each in ours.items() if name not in wanted.bodies]
            proven, kept = await self._remove(surplus, in_scope=in_scope)
            problems += kept
        self._problems[namespace] = tuple(problems)
        wait = _RECHECK_AFTER if len(problems) > len(wanted.problems) else None
        if not is_listed:
            wait = _RIGHTS_CHECKED_AFTER
        elif not proven:
            wait = _NOT_LISTED
        if in_scope and (self._scope.binding.ending or self._withdrawn):
            return _NOT_LISTED
        return min((each for each in (wait, self._patched.left()) if each is not None), default=None)

    async def _write(self, body: Json) -> list[str]:
        """Creates or replaces a policy; returns why that is not possible."""
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        live = self._worker.networkpolicies.store.get(key)
        try:
            if live is None or not self._is_ours(live):
                live = await self._create(key, body)
            if live is None or not _differs(live, body):
                return []
            if not self._is_ours(live):
                text = f"NetworkPolicy {key} of the worker has another owner and the name that a mirror needs"
                return [f"{text}; rename or delete it"]
            metadata = {**body["metadata"], "uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}
            self._worker.networkpolicies.adopt(await self._worker.client.replace(NETWORKPOLICIES, {**body, "metadata": metadata}))
        except (Invalid, Forbidden) as error:
            return [f"the worker refuses NetworkPolicy {key}: {error.message}"]
        return []

    async def _create(self, key: Key, body: Json) -> Unknown | None:
        """Creates a policy; returns that which exists already."""
        try:
            self._worker.networkpolicies.adopt(await self._worker.client.create(NETWORKPOLICIES, body))
            return None
        except AlreadyExists:
            return await self._worker.client.get(NETWORKPOLICIES, key)

    async def _remove(self, surplus: list[Unknown], *, in_scope: bool) -> tuple[bool, list[str]]:
        """Deletes policies of ours that are not needed; returns False while that is not proven, and why some stay."""
        if surplus and not (self.policies.synced and self.namespaces.synced and self._worker.pods.synced):
            return False, []
        proven, problems = True, list[str]()
        for each in surplus:
            original = copy_of(each.metadata)
            try:
                # One that is listed has no mirror by its content.
                if in_scope and original is not None and original not in self.policies.store and await self._exists(original):
                    proven = False
                    continue
                await self._worker.client.delete(NETWORKPOLICIES, each.key, uid=each.metadata.uid)
            except NotFound:
                log.debug("mirror is deleted already")
            except (Invalid, Forbidden) as error:
                problems.append(f"NetworkPolicy {each.key} of the worker is not needed and stays: {error}")
        return proven, problems

    async def _exists(self, key: Key) -> bool:
        try:
            await self._scope.host.client.get(NETWORKPOLICIES, key)
        except NotFound:
            return False
        return True

    def _is_ours(self, policy: Unknown) -> bool:
        return classify(policy.metadata, self._mount.owner) is Ownership.OURS

    def _drop(self, namespace: str) -> None:
        """Drops the state of a hub namespace that has none in the worker."""
        self._pending.discard(namespace)
        self._done.discard(namespace)
        self._problems.pop(namespace, None)
        self._entrance.drop(namespace)

    # --- events ---

    def _add(self, namespace: str, *, after: float = 0.0, priority: Priority = Priority.HIGH) -> None:
        if self._prepared(namespace) is None and namespace not in self._problems:
            return
        self._pending.add(namespace)
        self.controller.add(namespace, after=after, priority=priority)

    def _add_all(self) -> None:
        for space in self._worker.namespaces.store:
            self._add_space(space.metadata.name)

    def _add_space(self, space: str, *, priority: Priority = Priority.HIGH) -> None:
        """Reconciles the hub namespace of a worker namespace."""
        for namespace in self._namespaces_of(space):
            self._add(namespace, priority=priority)

    def _namespaces_of(self, space: str) -> Iterator[str]:
        found = [each.metadata.name for each in self.namespaces.store.by_index(_BY_SPACE, space)]
        known = self._worker.namespaces.store.get(Key("", space))
        named = known.metadata.annotations.get(keys.VIRTUAL_NAMESPACE, "") if known is not None else ""
        yield from {*found, *([named] if named else [])}

    def _namespace_changed(self, change: Change[Unknown]) -> None:
        name = change.key.name
        self._add(name, priority=priority_of(change))
        labels = [each.metadata.labels for each in (change.old, change.new) if each is not None]
        # Peers are the pods of other namespaces of the worker, and the DNS of the hub.
        if (len(labels) == 1 or labels[0] != labels[1]) and (self._prepared(name) is not None or name == SYSTEM_NAMESPACE):
            self._peers_changed(change, *labels)

    def _space_changed(self, change: Change[Unknown]) -> None:
        self._add_space(change.key.name, priority=priority_of(change))
        for each in self.namespaces.store.by_index(_BY_SPACE, change.key.name):
            if _is_usable(change.old, each.metadata.name) != _is_usable(change.new, each.metadata.name):
                self._peers_changed(change, each.metadata.labels)

    def _peers_changed(self, change: Change[Unknown], *labels: Mapping[str, str]) -> None:
        """Reconciles the namespaces with policies that may select one with these labels. The first lists need no further one."""
        if change.initial:
            return
        found = {each.key: each for one in labels for term in terms_for(one) for each in self.policies.store.by_index(_BY_TERM, term)}
        for policy in found.values():
            if any(concerns(policy, each) for each in labels):
                self._add(policy.metadata.namespace, after=COALESCED)

    def _mirror_changed(self, change: Change[Unknown]) -> None:
        for namespace in self._namespaces_of(change.key.namespace):
            self.controller.add(namespace, after=COALESCED, priority=priority_of(change))

    # --- status ---

    async def _report(self) -> None:
        """Reports on the binding what is mirrored, and what is not carried over, when that has changed."""
        while True:
            await self._scope.host.clock.sleep(_REPORTED_EVERY)
            lists = self._lists()
            is_known = self._worker.namespaces.ever_synced and (self._is_listed() or self._refusals())
            if not (is_known or lists.refused or lists.failing):
                continue
            names = [name for name in self.policies.store.index_values(BY_NAMESPACE) if self._is_judged(name)]
            parts = [part for each in names if (part := self._part(each)) is not None]
            # Rights may be removed later, too: what was listed then stays mirrored, and is followed no more.
            lacking = refusals(parts)
            state = mirroring(
                names,
                lists=lists,
                lacking=lacking,
                is_lacking_everywhere=bool(parts) and len(lacking) == len(parts),
                problems=[*(text for name in sorted(self._problems) for text in self._problems[name]), *failures(parts)],
                mount=self._mount,
            )
            self._scope.binding.set_network_policies(state)

    def _is_judged(self, namespace: str) -> bool:
        """Checks that a hub namespace has one in the worker which has been reconciled, or whose list the worker has not answered."""
        part = self._part(namespace)
        is_unanswered = part is not None and part.last_error is not None
        return self._prepared(namespace) is not None and (namespace in self._problems or is_unanswered)

    def _lists(self) -> Lists:
        """Returns which lists are not answered; those of the hub matter where there is a namespace for a tenant."""
        of_hub = (self.policies, self.namespaces) if len(self._worker.namespaces.store) else ()
        failing = failures((self._worker.namespaces, *of_hub))
        return Lists("; ".join(refusals(of_hub)), "; ".join(failing), self._scope.binding.has_mirrors(NETWORK_POLICIES_MIRRORED))


class PatchedLabels:
    """Labels that pods in the worker may not have as in the hub: a patch of the binding changes them, or did when a pod was created.

    `changed()` is called when pods record other ones than before.
    """

    def __init__(self, scope: WorkerScope, *, changed: Callable[[], None]) -> None:
        self._binding = scope.binding
        self._clock = scope.host.clock
        self._changed = changed
        self._recorded: Counter[str] = Counter()
        self._current = self._by_patch()
        self._until: dict[str, float] = {}
        """When no pod can be created any more by a patch that was replaced; by label."""
        if not scope.worker.mount.is_shared:
            scope.worker.pods.on_change(self._pod_changed)

    def binding_changed(self) -> None:
        """Keeps the labels of a patch that was replaced: pods are under way that were computed with it."""
        before, self._current = self._current, self._by_patch()
        self._until |= dict.fromkeys(before - self._current, self._clock.monotonic() + _UNDER_WAY)

    def known(self) -> frozenset[str]:
        """Returns the labels."""
        return self._by_patch() | self._recorded.keys() | self._replaced().keys()

    def left(self) -> float | None:
        """Returns the seconds until `known` may be less; None without a patch that was replaced."""
        until = min(self._replaced().values(), default=None)
        return until - self._clock.monotonic() if until is not None else None

    def _replaced(self) -> dict[str, float]:
        now = self._clock.monotonic()
        self._until = {key: until for key, until in self._until.items() if until > now}
        return self._until

    def _by_patch(self) -> frozenset[str]:
        binding = self._binding.current
        return binding.overrides.patched_labels if binding is not None else frozenset()

    def _pod_changed(self, change: Change[Pod]) -> None:
        old, new = (patched_keys(each.metadata, "labels") if each is not None else frozenset() for each in (change.old, change.new))
        if old == new:
            return
        before = set(self._recorded)
        self._recorded.update(new)
        self._recorded.subtract(old)
        self._recorded = +self._recorded
        if self._recorded.keys() != before:
            self._changed()


def _is_usable(space: Unknown | None, namespace: str) -> bool:
    """Checks that a worker namespace is that of a hub namespace, and is not being deleted."""
    if space is None or space.metadata.deletion_timestamp:
        return False
    return space.metadata.annotations.get(keys.VIRTUAL_NAMESPACE, namespace) == namespace


def _differs(live: Unknown, wanted: Json) -> bool:
    return bool((live.body.get("spec") or {}) != wanted["spec"] or missing_marks(live.metadata, wanted, prefix=""))


def _kept(namespace: Unknown) -> Unknown:
    """Drops of a hub namespace all but its name and labels."""
    meta = namespace.metadata
    head: Json = {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version, "labels": dict(meta.labels)}
    return Unknown.decode(encode_json({"metadata": head}))
