"""Reconciles the Node, its Lease, its endpoint and its pod dispatch with the declared node; one reconcile per node name.

Invariant: a Node is never Ready before it has all its taints, and never deleted before it is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Protocol

from attrs import frozen

from vkubelet.api import registration
from vkubelet.api.codec import decode_json
from vkubelet.api.conditions import get_condition
from vkubelet.api.objects import Key, Node
from vkubelet.api.shapes import Json
from vkubelet.client.resources import LEASES, NODES
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.control.store import Store
from vkubelet.errors import AlreadyExists, NotFound, VKubeletError
from vkubelet.logformat import bind
from vkubelet.node import render
from vkubelet.node.adoption import foreign_kubelet
from vkubelet.node.declared import Declared, DeclaredNodes, Standing
from vkubelet.node.lease import NAMESPACE, LeaseKeeper
from vkubelet.node.repairs import Repairs
from vkubelet.node.taints import with_added, without_dropped
from vkubelet.provider import Taint

log = logging.getLogger(__name__)

QUIET = 1.0
"""Minimum seconds between two writes of one Node, and the time an increase waits for more; a decrease is published at once."""


class Dispatch(Protocol):
    """What the registrar needs of the pod controllers."""

    def hold(self, node: str) -> None: ...
    def enable(self, node: str) -> None: ...
    def retire(self, node: str) -> None: ...
    def disable(self, node: str) -> None: ...
    def empty(self, node: str) -> bool: ...


@frozen(kw_only=True)
class RegistrarParts:
    """Collaborators; `open_endpoint(node, preferred port)` and `close_endpoint` come from the kubelet server.

    `live` holds the watched Nodes; `wrote` stores the response to a write in it, so that the next step does not use an older state.
    """

    client: Client
    node_client: Callable[[str], Client]
    nodes: DeclaredNodes
    live: Store[Node]
    wrote: Callable[[Node], None]
    leases: LeaseKeeper
    dispatch: Dispatch
    recorder: Recorder
    clock: Clock
    open_endpoint: Callable[[str, int | None], Awaitable[render.Endpoint]]
    close_endpoint: Callable[[str], Awaitable[None]]
    default_taints: tuple[Taint, ...] = ()
    instance: str = "default"
    restore: bool = True
    adopt_foreign: bool = False
    """Whether to adopt an existing Node without our label while another kubelet serves it."""


class Registrar:
    """Reconciler of all nodes; see `reconcile`."""

    def __init__(self, parts: RegistrarParts) -> None:
        self._parts = parts
        self._written: dict[str, float] = {}
        self._registered: set[str] = set()
        self._repairs = Repairs(parts.clock)
        self._unwritten: dict[str, float] = {}

    async def reconcile(self, name: str) -> float | None:
        """Performs one step for one node; returns the seconds until the next check.

        Raises ApiError when the API server refuses, Unavailable when something else has to happen first.
        """
        known = self._parts.nodes.get(name)
        if known is None:
            return None
        live = self._live(name)
        with bind(node=name, uid=live.metadata.uid if live is not None else ""):
            match known.standing:
                case Standing.UNKNOWN:
                    return await self._hold(name)
                case Standing.RETIRING:
                    return await self._retire(name)
                case Standing.DECLARED:
                    return await self._register(name, known)

    def addresses(self, name: str) -> Sequence[str]:
        """Returns the IP addresses that a node publishes, for the `hostIPs` of its pods."""
        live = self._live(name)
        return _internal_ips(live.status_json) if live else ()

    def _live(self, name: str) -> Node | None:
        return self._parts.live.get(Key("", name))

    async def _hold(self, name: str) -> float | None:
        """Keeps a Node with our mark that is not declared yet alive and reachable, and otherwise unchanged."""
        live = self._live(name)
        if live is None:
            # Deleted manually. The provider, or the completion of the declarations, decides whether its pods continue.
            self._parts.leases.drop(name)
            return None
        self._parts.leases.keep(name, live.metadata.uid)
        await self._parts.open_endpoint(name, _port(live))
        self._parts.dispatch.hold(name)
        return None

    async def _register(self, name: str, known: Declared) -> float | None:
        live = self._live(name)
        since = self._unwritten.setdefault(name, known.changed_at)
        wait = self._too_early(name) if live is not None else 0.0
        if wait > 0:
            return wait
        endpoint = await self._parts.open_endpoint(name, _port(live))
        if known.description is None or (live is None and not self._restores(name)):
            return None
        wanted = render.wanted(
            known.description,
            endpoint,
            instance=self._parts.instance,
            health=self._parts.nodes.health(name),
            taints=self._taints(),
        )
        if live is None:
            live = await self._create_or_adopt(wanted)
        else:
            wait = self._increase_waits(live, wanted, since)
            if wait > 0:
                return wait
        # A declaration made during this write is notified again, and waits on its own.
        self._unwritten.pop(name, None)
        live = await self._write(live, wanted)
        self._registered.add(name)
        self._parts.leases.keep(name, live.metadata.uid)
        self._parts.dispatch.enable(name)
        due = render.next_report(live.status, wanted.conditions, now=self._parts.clock.now())
        return max(QUIET, min(due, self._repair_waits(live, wanted) or due))

    def _restores(self, name: str) -> bool:
        """Returns whether to register again a Node that this process has written and that another client deleted."""
        if self._parts.restore or name not in self._registered:
            return True
        self._parts.leases.drop(name)
        return False

    def _taints(self) -> tuple[Taint, ...]:
        return (*self._parts.default_taints, render.RETIRING) if self._parts.nodes.closed else self._parts.default_taints

    def is_closed(self, name: str) -> bool:
        """Checks that the Node accepts no new pods, and is not Ready if it should not be; True also without a Node."""
        live = self._live(name)
        if live is None:
            return True
        reason = self._parts.nodes.health(name).reason
        ready = get_condition(live.status.get("conditions", ()), "Ready") or {}
        is_tainted = any(taint["key"] == render.RETIRING.key for taint in live.spec.get("taints", ()))
        return is_tainted and (not reason or ready.get("reason") == reason)

    async def remove(self, name: str) -> None:
        """Deletes Lease and Node of a drained node. Raises ApiError."""
        live = self._live(name)
        self._parts.nodes.drop(name)
        await self._parts.leases.release(name)
        if live is not None:
            await self._delete_node(live, "the process stops and its nodes are to go with it")
            log.info("node removed")

    def _repair_waits(self, live: Node, wanted: render.Wanted) -> float:
        patch = render.status_patch(live, wanted, now=self._parts.clock.now())
        return self._repairs.wait(wanted.name, render.lasting(patch)) if patch is not None else 0.0

    def _too_early(self, name: str) -> float:
        written = self._written.get(name)
        return 0.0 if written is None else written + QUIET - self._parts.clock.monotonic()

    def _increase_waits(self, live: Node, wanted: render.Wanted, since: float) -> float:
        """Returns how long an increase waits: a second after the first unwritten change, so that a burst of terminating pods costs one
        write."""
        wanted = render.with_foreign_resources(live, wanted)
        if live.status.get("allocatable") == wanted.status["allocatable"] or render.decreases(live.status, wanted):
            return 0.0
        if not live.status.get("allocatable"):
            return 0.0
        return since + QUIET - self._parts.clock.monotonic()

    async def _create_or_adopt(self, wanted: render.Wanted) -> Node:
        client = self._parts.node_client(wanted.name)
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
        parts = self._parts
        instance = registration.instance_of(found)
        if instance:
            text = f"it belongs to vkubelet instance {instance!r}; choose another node name or stop that instance"
            return text if instance != parts.instance else ""
        if parts.adopt_foreign:
            return ""
        try:
            lease = await client.get(LEASES, Key(NAMESPACE, wanted.name))
        except NotFound:
            lease = None
        return foreign_kubelet(found, lease, version=wanted.status["nodeInfo"]["kubeletVersion"], now=parts.clock.now())

    async def _write(self, live: Node, wanted: render.Wanted) -> Node:
        """Writes the Node, closing first and opening last: taints are added, then the status is written, then taints are removed."""
        name = wanted.name
        owned = registration.owned_keys(live)
        try:
            taints = live.spec.get("taints", [])
            added = with_added(taints, wanted.taints)
            live = await self._write_taints(live, added) if added != taints else live
            ours = (*owned.taints, render.RETIRING.key)
            taints = live.spec.get("taints", [])
            kept = without_dropped(taints, wanted.taints, owned=ours)
            dropping = {taint["key"] for taint in taints} - {taint["key"] for taint in kept}
            patch = render.status_patch(live, render.still_owning(wanted, dropping), now=self._parts.clock.now())
            if patch is not None and self._repairs.wait(name, render.lasting(patch)) <= 0:
                live = await self._parts.node_client(name).patch(NODES, name, patch, subresource="status")
                self._repairs.wrote(name, render.lasting(patch))
                self._note(live)
            taints = live.spec.get("taints", [])
            kept = without_dropped(taints, wanted.taints, owned=ours)
            return await self._write_taints(live, kept, note=wanted.annotations[registration.OWNED]) if kept != taints else live
        except NotFound:
            # Deleted manually since we read it: the next step registers it again without a delay.
            self._written.pop(name, None)
            self._repairs.forget(name)
            raise

    async def _write_taints(self, live: Node, taints: list[Json], *, note: str = "") -> Node:
        metadata: Json = {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}
        if note:
            metadata["annotations"] = {registration.OWNED: note}
        change = {"metadata": metadata, "spec": {"taints": taints}}
        written = await self._parts.client.patch(NODES, live.metadata.name, change, kind=PatchKind.MERGE)
        self._note(written)
        return written

    def _note(self, written: Node) -> None:
        self._parts.wrote(written)
        self._written[written.metadata.name] = self._parts.clock.monotonic()

    async def _retire(self, name: str) -> float | None:
        """Retires a node: no new pods; once it is empty, Lease, Node and endpoint are removed, each when nothing needs it any more."""
        parts = self._parts
        live = self._live(name)
        if live is None:
            parts.leases.drop(name)
        else:
            parts.leases.keep(name, live.metadata.uid)
            await parts.open_endpoint(name, _port(live))
            taints = live.spec.get("taints", [])
            closed = with_added(taints, (render.RETIRING,))
            if closed != taints:
                live = await self._write_taints(live, closed)
        parts.dispatch.retire(name)
        if not parts.dispatch.empty(name):
            return 5.0
        if live is not None:
            await self._delete_node(live, "the provider withdrew the node and it is empty")
        await parts.leases.release(name)
        await parts.close_endpoint(name)
        parts.dispatch.disable(name)
        self._written.pop(name, None)
        self._unwritten.pop(name, None)
        self._registered.discard(name)
        parts.nodes.forget(name)
        log.info("node removed")
        return None

    async def _delete_node(self, live: Node, why: str) -> None:
        reference = ObjectReference.of(NODES, live)
        self._parts.recorder.event(reference, "RemovingNode", why)
        try:
            await self._parts.client.delete(NODES, live.metadata.name, uid=live.metadata.uid)
        except NotFound:
            return


@lru_cache(maxsize=256)
def _internal_ips(status_json: bytes) -> Sequence[str]:
    """Returns the internal IPs; cached, because every status of a pod needs them while the status of its node stays the same."""
    status = decode_json(status_json)
    return tuple(address["address"] for address in status.get("addresses", ()) if address["type"] == "InternalIP")


def _port(live: Node | None) -> int | None:
    """Returns the port of the kubelet server in the Node: the only place where it is stored."""
    if live is None:
        return None
    port = live.status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
    return port if isinstance(port, int) and port > 0 else None
