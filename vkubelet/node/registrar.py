"""Reconciles the Node, its Lease, its endpoint and its pod dispatch with the declared node; one reconcile per node name.

Invariant: a Node is never Ready before it has all its taints, and never deleted before it is empty. A Node whose kubelet may be alive is
not adopted, because its pods would run twice.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Protocol

from attrs import define, field

from vkubelet.api import names
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import LEASES, NODES, Json, Key, Lease, Node, get_condition
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.control.backoff import RepairBackoff
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.control.store import Store
from vkubelet.errors import AlreadyExists, NotFound, VKubeletError
from vkubelet.logformat import bind
from vkubelet.node import render
from vkubelet.node.declared import Declared, DeclaredNodes, NodeState
from vkubelet.node.lease import DURATION, NAMESPACE, LeaseKeeper
from vkubelet.node.taints import with_added, without_dropped
from vkubelet.provider import Taint

log = logging.getLogger(__name__)

_REMEDY = "choose another node name, or stop that kubelet and delete the Node; node.adopt_foreign: true adopts it as it is"

QUIET = 1.0
"""Minimum seconds after a change of one Node, and the time an increase waits for more; a decrease is published at once."""


class PodControllers(Protocol):
    """Operations of the pod controllers that depend on the state of a node."""

    def hold(self, node: str) -> None: ...
    def enable(self, node: str) -> None: ...
    def retire(self, node: str) -> None: ...
    def disable(self, node: str) -> None: ...
    def empty(self, node: str) -> bool: ...


@define(kw_only=True, eq=False)
class Registrar:
    """Reconciler of all nodes; see `reconcile`."""

    _client: Client
    _node_client: Callable[[str], Client]
    _nodes: DeclaredNodes
    _live: Store[Node]
    """The watched Nodes."""
    _store_written: Callable[[Node], None]
    """Stores the response to a write in `live`, so that the next step does not use an older state."""
    _leases: LeaseKeeper
    _pods: PodControllers
    _recorder: Recorder
    _clock: Clock
    _open_endpoint: Callable[[str, int | None], Awaitable[render.Endpoint]]
    """Opens the endpoint of a node at the kubelet server, on the preferred port if it is free."""
    _close_endpoint: Callable[[str], Awaitable[None]]
    _default_taints: tuple[Taint, ...] = ()
    _instance: str = "default"
    _restore: bool = True
    _adopt_foreign: bool = False
    """Whether to adopt an existing Node without our label while another kubelet serves it."""
    _written_at: dict[str, float] = field(factory=dict, init=False)
    _unwritten_since: dict[str, float] = field(factory=dict, init=False)
    _registered: set[str] = field(factory=set, init=False)
    _repairs: RepairBackoff = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._repairs = RepairBackoff(self._clock)

    async def reconcile(self, name: str) -> float | None:
        """Performs one step for one node; returns the seconds until the next check.

        Raises ApiError when the API server refuses, Unavailable when something else has to happen first.
        """
        known = self._nodes.get(name)
        if known is None:
            return None
        live = self._find(name)
        with bind(node=name, uid=live.metadata.uid if live is not None else ""):
            match known.state:
                case NodeState.UNKNOWN:
                    return await self._hold(name)
                case NodeState.RETIRING:
                    return await self._retire(name)
                case NodeState.DECLARED:
                    return await self._register(name, known)

    def addresses(self, name: str) -> Sequence[str]:
        """Returns the IP addresses that a node publishes, for the `hostIPs` of its pods."""
        live = self._find(name)
        return _internal_ips(live.status_json) if live else ()

    def _find(self, name: str) -> Node | None:
        return self._live.get(Key("", name))

    async def _hold(self, name: str) -> float | None:
        """Keeps a Node with our mark that is not declared yet alive and reachable, and otherwise unchanged."""
        live = self._find(name)
        if live is None:
            # Deleted manually. The provider, or the completion of the declarations, decides whether its pods continue.
            self._leases.drop(name)
            return None
        self._leases.keep(name, live.metadata.uid)
        await self._open_endpoint(name, live.kubelet_port if live is not None else None)
        self._pods.hold(name)
        return None

    async def _register(self, name: str, known: Declared) -> float | None:
        live = self._find(name)
        since = self._unwritten_since.setdefault(name, known.changed_at)
        wait = self._too_early(name) if live is not None else 0.0
        if wait > 0:
            return wait
        endpoint = await self._open_endpoint(name, live.kubelet_port if live is not None else None)
        if known.description is None or (live is None and not self._restores(name)):
            return None
        wanted = render.wanted(
            known.description,
            endpoint,
            instance=self._instance,
            health=self._nodes.health(name),
            taints=self._taints(),
        )
        if live is None:
            live = await self._create_or_adopt(wanted)
        else:
            wait = self._increase_waits(live, wanted, since)
            if wait > 0:
                return wait
        # A declaration made during this write is notified again, and waits on its own.
        self._unwritten_since.pop(name, None)
        live, repair_in = await self._write(live, wanted)
        self._registered.add(name)
        self._leases.keep(name, live.metadata.uid)
        self._pods.enable(name)
        due = render.next_report(live.status, wanted, now=self._clock.now())
        return max(QUIET, min(due, repair_in or due))

    def _restores(self, name: str) -> bool:
        """Returns whether to register again a Node that this process has written and that another client deleted."""
        if self._restore or name not in self._registered:
            return True
        self._leases.drop(name)
        return False

    def _taints(self) -> tuple[Taint, ...]:
        return (*self._default_taints, render.RETIRING) if self._nodes.closed else self._default_taints

    def is_closed(self, name: str) -> bool:
        """Checks that the Node accepts no new pods, and is not Ready if it should not be; True also without a Node."""
        live = self._find(name)
        if live is None:
            return True
        reason = self._nodes.health(name).reason
        ready = get_condition(live.status.get("conditions", ()), "Ready") or {}
        is_tainted = any(taint["key"] == render.RETIRING.key for taint in live.spec.get("taints", ()))
        return is_tainted and (not reason or ready.get("reason") == reason)

    async def remove(self, name: str) -> None:
        """Deletes Lease and Node of a drained node. Raises ApiError."""
        live = self._find(name)
        self._nodes.remove(name)
        self._repairs.remove(name)
        await self._leases.release(name)
        if live is not None:
            await self._delete_node(live, "the process stops and shutdown.nodes is delete")
            log.info("node removed")

    def _too_early(self, name: str) -> float:
        written = self._written_at.get(name)
        return 0.0 if written is None else written + QUIET - self._clock.monotonic()

    def _increase_waits(self, live: Node, wanted: render.Wanted, since: float) -> float:
        """Returns how long an increase waits: a second after the first unwritten change, so that a burst of terminating pods costs one
        write."""
        wanted = render.with_foreign_resources(live, wanted)
        if live.status.get("allocatable") == wanted.status["allocatable"] or render.decreases(live.status, wanted):
            return 0.0
        if not live.status.get("allocatable"):
            return 0.0
        return since + QUIET - self._clock.monotonic()

    async def _create_or_adopt(self, wanted: render.Wanted) -> Node:
        client = self._node_client(wanted.name)
        try:
            created = await client.create(NODES, render.new_node(wanted))
        except AlreadyExists:
            found = await client.get(NODES, wanted.name)
            other = await self._other_owner(found, wanted, client)
            if other:
                raise VKubeletError(f"cannot register Node {wanted.name}: {other}") from None
            log.info("node adopted")
            return found
        log.info("node registered")
        return created

    async def _other_owner(self, found: Node, wanted: render.Wanted, client: Client) -> str:
        """Returns why the Node may not be adopted, and the remedy; "" when it may."""
        instance = names.instance_of(found)
        if instance:
            text = f"it belongs to vkubelet instance {instance!r}; choose another node name or stop that instance"
            return text if instance != self._instance else ""
        if self._adopt_foreign:
            return ""
        try:
            lease = await client.get(LEASES, Key(NAMESPACE, wanted.name))
        except NotFound:
            lease = None
        return foreign_kubelet(found, lease, version=wanted.status["nodeInfo"]["kubeletVersion"], now=self._clock.now())

    async def _write(self, live: Node, wanted: render.Wanted) -> tuple[Node, float]:
        """Writes the Node, closing first and opening last: taints are added, then the status is written, then taints are removed.

        Returns the Node, and the seconds that the status still has to wait because another client reverts it; 0: it does not wait.
        """
        name, repair_in = wanted.name, 0.0
        owned = names.owned_keys(live)
        try:
            taints = live.spec.get("taints", [])
            added = with_added(taints, wanted.taints)
            if added != taints:
                # With their owner: if the process stops before the status is written, the next one may not want them.
                live = await self._write_taints(live, added, note=render.owning(live, wanted.taints))
            ours = (*owned.taints, render.RETIRING.key)
            taints = live.spec.get("taints", [])
            kept = without_dropped(taints, wanted.taints, owned=ours)
            dropping = {taint["key"] for taint in taints} - {taint["key"] for taint in kept}
            patch = render.status_patch(live, render.still_owning(wanted, dropping), now=self._clock.now())
            if patch is not None and (repair_in := self._repairs.wait(name, render.lasting(patch))) <= 0:
                heartbeat = render.is_heartbeat(live.status, patch)
                live = await self._node_client(name).patch(NODES, name, patch, subresource="status")
                self._repairs.record_write(name, render.lasting(patch))
                self._record_write(live, delays=not heartbeat)
            taints = live.spec.get("taints", [])
            kept = without_dropped(taints, wanted.taints, owned=ours)
            if kept != taints:
                live = await self._write_taints(live, kept, note=wanted.annotations[names.OWNED])
            return live, repair_in
        except NotFound:
            # Deleted manually since we read it: the next step registers it again without a delay.
            self._written_at.pop(name, None)
            self._repairs.remove(name)
            raise

    async def _write_taints(self, live: Node, taints: list[Json], *, note: str = "") -> Node:
        metadata: Json = {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}
        if note:
            metadata["annotations"] = {names.OWNED: note}
        change = {"metadata": metadata, "spec": {"taints": taints}}
        written = await self._client.patch(NODES, live.metadata.name, change, kind=PatchKind.MERGE)
        self._record_write(written)
        return written

    def _record_write(self, written: Node, *, delays: bool = True) -> None:
        # Windows close minutes apart, so a heartbeat is often due at that very moment: it must not keep the node open for another second.
        self._store_written(written)
        if delays:
            self._written_at[written.metadata.name] = self._clock.monotonic()

    async def _retire(self, name: str) -> float | None:
        """Retires a node: no new pods; once it is empty, Lease, Node and endpoint are removed, each when nothing needs it any more."""
        live = self._find(name)
        if live is None:
            self._leases.drop(name)
        else:
            self._leases.keep(name, live.metadata.uid)
            await self._open_endpoint(name, live.kubelet_port if live is not None else None)
            taints = live.spec.get("taints", [])
            closed = with_added(taints, (render.RETIRING,))
            if closed != taints:
                live = await self._write_taints(live, closed)
        self._pods.retire(name)
        if not self._pods.empty(name):
            return 5.0
        if live is not None:
            await self._delete_node(live, "the provider withdrew the node and it is empty")
        await self._leases.release(name)
        await self._close_endpoint(name)
        self._pods.disable(name)
        self._written_at.pop(name, None)
        self._unwritten_since.pop(name, None)
        self._registered.discard(name)
        self._repairs.remove(name)
        self._nodes.remove_undeclared(name)
        log.info("node removed")
        return None

    async def _delete_node(self, live: Node, why: str) -> None:
        reference = ObjectReference.of(NODES, live)
        self._recorder.event(reference, "RemovingNode", why)
        try:
            await self._client.delete(NODES, live.metadata.name, uid=live.metadata.uid)
        except NotFound:
            return


@lru_cache(maxsize=256)
def _internal_ips(status_json: bytes) -> Sequence[str]:
    """Returns the internal IPs; cached, because every status of a pod needs them while the status of its node stays the same."""
    status = decode_json(status_json)
    return tuple(address["address"] for address in status.get("addresses", ()) if address["type"] == "InternalIP")


def foreign_kubelet(node: Node, lease: Lease | None, *, version: str, now: datetime) -> str:
    """Returns which other kubelet serves the Node, and the remedy; "" when there is none. `version` is the kubelet version we report.

    A Node with our annotation was ours and lacks only its label; it was registered before the annotation named the instance.
    """
    if names.OWNED in node.metadata.annotations:
        return ""
    reported = (node.status.get("nodeInfo") or {}).get("kubeletVersion") or ""
    if reported not in ("", version):
        return f"a kubelet of version {reported} has registered it; {_REMEDY}"
    spec = lease.spec if lease is not None else {}
    renewed = spec.get("renewTime") or ""
    # A kubelet with a longer Lease also renews it less often.
    if renewed and _moment(renewed) + timedelta(seconds=max(DURATION, spec.get("leaseDurationSeconds") or 0)) > now:
        return f"its Lease was renewed at {renewed}, so its kubelet is alive; {_REMEDY}"
    return ""


def _moment(text: str) -> datetime:
    """Parses a time; one that Python cannot represent counts as current, because it proves nothing."""
    try:
        return parse_rfc3339(text)
    except ValueError:
        return parse_rfc3339("9999-12-31T00:00:00Z")
