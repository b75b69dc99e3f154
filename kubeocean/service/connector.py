"""Connects to the worker of one binding: finds the kubeconfig, proves the connection, and keeps one session with it.

Invariant: a session stops only when another connection to the worker has been proven, or on request; another cluster is used only after an
administrator has confirmed it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from attrs import evolve

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, EXTRA_KINDS_MIRRORED, VALIDATION_FAILED, Failure
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding, SecretReference
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import Scope
from kubeocean.service.session import Session
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import REFUSED, WorkerCluster, heads
from kubeocean.worker.connect import Target, find_target, prove
from vkubelet.api.objects import SECRETS
from vkubelet.client.rest import Client, Selection
from vkubelet.control.contact import Outcome
from vkubelet.control.refusals import Refusals
from vkubelet.errors import VKubeletError

log = logging.getLogger(__name__)


def _left_in(worker: WorkerCluster, extra: Mapping[str, int] | str) -> str:
    """Returns how many objects of this binding a worker has, by kind, for users; "" for none.

    `extra` are those of extra kinds, or the kinds of which they are not known.
    """
    copies = {"ConfigMaps": worker.configmaps, "Secrets": worker.secrets, "PersistentVolumeClaims": worker.claims}
    mirrors = {"Services": worker.services, "EndpointSlices": worker.endpointslices}
    if not worker.mount.is_shared:
        mirrors["NetworkPolicies"] = worker.networkpolicies
    # Without the optional rights there are no mirrors.
    readable = {kind: each for kind, each in mirrors.items() if not isinstance(each.last_error, REFUSED)}
    informers = {**copies, **readable}
    if not (worker.pods.synced and all(each.synced for each in informers.values())):
        return "objects that have not been listed yet"
    if isinstance(extra, str):
        return f"objects of {extra} that have not been listed (the condition {EXTRA_KINDS_MIRRORED} states why)"
    owner = worker.mount.owner
    counts = {"pods": sum(1 for _ in worker.backing_pods())}
    counts |= {
        kind: sum(classify(copy.metadata, owner) is Ownership.OURS for copy in informer.store) for kind, informer in informers.items()
    }
    counts |= extra
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


class Connector:
    """Keeps the session. `secret_changed()` is called after a change of the kubeconfig's Secret, `connected()` for each new session.

    `refusals` notes the rights that the worker refuses, from the first request on.
    """

    def __init__(self, scope: Scope, *, refusals: Refusals, secret_changed: Callable[[], None], connected: Callable[[], None]) -> None:
        self._scope = scope
        self._refusals = refusals
        self._secret_changed = secret_changed
        self._connected = connected
        self._served: Target | None = None
        self._serving: asyncio.Task[None] | None = None
        self._proven = ""
        """Fingerprint of the target of the last attempt."""
        self._secret: tuple[SecretReference, asyncio.Task[None]] | None = None
        self.session: Session | None = None
        self.credentials_end: datetime | None = None
        """When the credentials of the last attempt expire."""
        self.may_change_cluster = False
        """Whether a cluster without any node of the binding is accepted."""

    @property
    def is_connecting(self) -> bool:
        """Whether a session starts, but does not exist yet."""
        return self._serving is not None and self.session is None

    def take_settings(self, settings: KubeoceanSettings) -> None:
        """Applies changed settings to this and the next session."""
        self._scope = evolve(self._scope, settings=settings)
        if self.session is not None:
            self.session.take_settings(settings)

    async def connect(self, group: asyncio.TaskGroup, binding: ClusterBinding, hub_uid: str) -> Failure | None:
        """Reconciles the session with the binding and its Secret; returns what prevents that, or None."""
        self._watch_secret(group, binding)
        if not self._scope.shard.is_only and keys.PER_NAMESPACE in (binding.mapping, binding.requested_mapping):
            return Failure(VALIDATION_FAILED, f"spec.namespaceMapping: {keys.PER_NAMESPACE} needs one shard; set provider.shards to 1")
        try:
            found = await find_target(self._scope.host.client, binding, hub_uid)
            if isinstance(found, Target) and self._served is not None and found.fingerprint == self._served.fingerprint:
                if not self._scope.binding.ending:
                    # Another client may have removed our finalizer.
                    await self._scope.binding.hold()
                return await self._switch_mapping(binding)
            failure = found if isinstance(found, Failure) else await self._prove(found)
        except VKubeletError as error:
            text = f"cannot read ClusterBinding {binding.name} and its Secret in this cluster: {error}"
            return Failure(CONNECTIVITY_FAILED, f"{text}; check the API server of this cluster")
        if isinstance(found, Target) and failure is None:
            await self._switch(group, found)
        elif failure is not None and self.session is not None:
            return Failure(failure.reason, f"{failure.message}; until then the earlier connection is used")
        return failure

    async def disconnect(self) -> None:
        """Stops the session and waits for it."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        self._serving = self._served = None

    async def _switch_mapping(self, binding: ClusterBinding) -> Failure | None:
        """Adopts another `namespaceMapping` once nothing of the binding is in the worker; returns why it waits.

        The session stops after the check, so that no pod is created before the mapping is recorded.
        """
        session, wanted = self.session, binding.requested_mapping
        if session is None or self._scope.binding.ending:
            return None
        waits = wanted != binding.mapping
        runs = waits and any(
            not pod.terminal for node in self._scope.hub_nodes.store for pod in self._scope.host.pods.on_node(node.metadata.name)
        )
        session.withdraw_mirrors(withdrawn=waits and not runs)
        if not waits:
            return None
        text = (
            f"spec.namespaceMapping: {wanted} takes effect when nothing of this binding is in the worker; until then {binding.mapping} does"
        )
        if runs:
            return Failure(VALIDATION_FAILED, f"{text}: pods run on its virtual nodes; delete them, or restore the field")
        if left := _left_in(session.worker, session.kinds.left()):
            return Failure(VALIDATION_FAILED, f"{text}: {left} exist in the worker cluster; they are deleted once no pod needs them")
        await self.disconnect()
        await self._scope.binding.accept_mapping(binding)
        self._secret_changed()
        return None

    async def _prove(self, target: Target) -> Failure | None:
        reach, binding = self._scope.reach, self._scope.binding
        if target.fingerprint != self._proven:
            self._proven = target.fingerprint
            reach.restart()
        began = reach.now()
        async with self._client(target) as client:
            nodes = () if self.may_change_cluster else self._physical_uids()
            failure = await prove(client, target.mount, hold=None if binding.ending else binding.hold, nodes=nodes)
        if failure is None or self.session is None:
            # A worker that refuses us is reachable, no node is retained. During a session, its probe records the state of the worker.
            outcome = failure.outcome if failure is not None else Outcome.SERVED
            reach.record(began, outcome, failure.message if failure is not None else "")
            if outcome is Outcome.SERVED:
                binding.set_reachable()
        return failure

    async def _switch(self, group: asyncio.TaskGroup, target: Target) -> None:
        await self.disconnect()
        log.info("connected to the worker cluster")
        self._served = target
        self._serving = group.create_task(self._serve(target), name="session with the worker")

    async def _serve(self, target: Target) -> None:
        scope = self._scope
        async with self._client(target) as client:
            worker = WorkerCluster(
                client,
                target.mount,
                clock=scope.host.clock,
                probe_interval=scope.settings.probe_interval,
                # The first shard counts the pods of all: for the ledger, the policies, and whether copies and mirrors are used.
                owns=None if scope.shard.is_first else scope.owns,
            )
            self.session = Session(scope.with_worker(worker))
            self._connected()
            try:
                await self.session.run()
            finally:
                self.session = None

    def _physical_uids(self) -> set[str]:
        """Returns the UIDs of the physical nodes behind the Nodes in the hub."""
        uids = {node.metadata.labels.get(keys.PHYSICAL_NODE_UID, "") for node in self._scope.hub_nodes.store}
        return uids - {""}

    @asynccontextmanager
    async def _client(self, target: Target) -> AsyncIterator[Client]:
        self.credentials_end = target.connection.expires
        hub = self._scope.host.client
        client = Client(target.connection, field_manager=hub.field_manager, clock=self._scope.host.clock, fence=hub.fence)
        async with client:
            with self._refusals.noting(client):
                yield client

    def _watch_secret(self, group: asyncio.TaskGroup, binding: ClusterBinding) -> None:
        """Watches the Secret, so that a changed kubeconfig takes effect at once; only its metadata is cached."""
        reference = binding.secret
        if self._secret is not None and self._secret[0] == reference or not (reference.name and reference.namespace):
            return
        if self._secret is not None:
            self._secret[1].cancel()
        where = Selection(namespace=reference.namespace, fields=f"metadata.name={reference.name}")
        informer = heads(self._scope.host.client, SECRETS, where=where, clock=self._scope.host.clock)
        informer.on_change(lambda change: self._secret_changed())
        self._secret = (reference, group.create_task(informer.run(), name="kubeconfig Secret"))
