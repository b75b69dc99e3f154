"""Reclaims leased capacity at a limited rate: virtual pods are evicted, and deleted when their grace period is over.

Invariant: never faster than the binding's rate, never another incarnation of a pod, and never a pod whose order was withdrawn.
"""

import logging
import random
from collections.abc import Iterable, Mapping
from datetime import datetime

from kubeocean.leasing.reclaim import Order
from vkubelet.api.objects import PODS, Json
from vkubelet.control.backoff import TokenBucket
from vkubelet.control.controller import Controller
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import Conflict, NotFound, TooManyRequests
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)


class Reclaimer:
    """Carries out the orders; new orders of a node replace its earlier ones."""

    def __init__(self, host: Host, *, per_second: float) -> None:
        self._host = host
        self._orders: dict[str, Order] = {}
        self._by_node: dict[str, frozenset[str]] = {}
        self._announced: set[str] = set()
        self._due: dict[str, dict[str, datetime]] = {}
        """Deadline of each pod that was ordered to terminate and still exists, by node and UID."""
        self._bucket = TokenBucket(per_second, per_second, clock=host.clock)
        self.controller: Controller[str] = Controller("reclaim", self.reconcile, workers=4, clock=host.clock, metrics=host.metrics)

    def pace(self, per_second: float) -> None:
        """Sets the rate of evictions per second from now on."""
        self._bucket = TokenBucket(per_second, per_second, clock=self._host.clock)

    def order(self, node: str, orders: Iterable[Order]) -> None:
        """Replaces the orders of a node; a pod without an order stays. The cost depends on the pods of this node alone."""
        wanted = {order.pod.uid: order for order in orders}
        for uid in self._by_node.pop(node, frozenset()) - wanted.keys():
            self._orders.pop(uid, None)
        self._set_due(node, wanted)
        if wanted:
            self._by_node[node] = frozenset(wanted)
        for uid, order in wanted.items():
            if self._orders.get(uid) != order:
                self._orders[uid] = order
                self.controller.add(uid)

    def _set_due(self, node: str, wanted: Mapping[str, Order]) -> None:
        before = self._due.pop(node, {})
        ending = {uid: until for uid, until in before.items() if uid not in wanted and self._is_ending(uid)}
        if due := {**ending, **{uid: order.until for uid, order in wanted.items()}}:
            self._due[node] = due

    def overdue(self, now: datetime) -> float:
        """Returns the seconds since the earliest deadline that an existing pod exceeded, terminating pods included; 0 when none did."""
        earliest = now
        for node, due in sorted(self._due.items(), key=_earliest):
            if _earliest((node, due)) >= earliest:
                break
            self._due[node] = left = {uid: until for uid, until in due.items() if self._exists(uid)}
            if not left:
                del self._due[node]
            earliest = min([earliest, *left.values()])
        return (now - earliest).total_seconds()

    def _exists(self, uid: str) -> bool:
        pod = self._host.pods.by_uid(uid)
        return pod is not None and not pod.terminal

    def _is_ending(self, uid: str) -> bool:
        pod = self._host.pods.by_uid(uid)
        return pod is not None and pod.terminating and not pod.terminal

    def ordered(self) -> Mapping[str, datetime]:
        """Returns for each ordered pod, by UID, until when it is evicted before it is deleted."""
        return {uid: order.until for uid, order in self._orders.items()}

    async def reconcile(self, uid: str) -> float | None:
        """Takes one step for one pod; returns the seconds until the next."""
        order = self._orders.get(uid)
        pod = self._host.pods.by_uid(uid)
        if order is None or pod is None or pod.terminating:
            self._orders.pop(uid, None)
            self._announced.discard(uid)
            return None
        with bind(pod=str(order.pod.key), node=order.pod.node, uid=order.pod.uid):
            self._announce(order)
            await self._bucket.wait()
            if self._orders.get(uid) is not order:
                return 0.0
            left = (order.until - self._host.clock.now()).total_seconds()
            wait = await self._evict(order) if left > 0 else await self._delete(order)
            return min(wait, max(0.0, left)) if left > 0 else wait

    def _announce(self, order: Order) -> None:
        if order.pod.uid not in self._announced:
            self._announced.add(order.pod.uid)
            subject = ObjectReference("v1", "Pod", order.pod.name, namespace=order.pod.namespace, uid=order.pod.uid)
            self._host.events.event(subject, order.reason, order.why, warning=True)

    async def _evict(self, order: Order) -> float:
        """Requests the eviction; returns the seconds until the next check: after 5 to 30 s when a PodDisruptionBudget forbids it."""
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": order.pod.name, "namespace": order.pod.namespace},
            "deleteOptions": {"preconditions": {"uid": order.pod.uid}},
        }
        client = self._host.node_client(order.pod.node)
        try:
            await client.create(PODS, body, namespace=order.pod.namespace, subresource="eviction", parent=order.pod.name)
        except TooManyRequests as refused:
            return min(30.0, max(5.0, refused.retry_after or 0.0, random.uniform(5.0, 30.0)))
        except (NotFound, Conflict):
            log.debug("pod is gone already")
        return 5.0

    async def _delete(self, order: Order) -> float:
        try:
            await self._host.node_client(order.pod.node).delete(PODS, order.pod, uid=order.pod.uid)
        except (NotFound, Conflict):
            log.debug("pod is gone already")
        return 5.0


def _earliest(due: tuple[str, Mapping[str, datetime]]) -> datetime:
    return min(due[1].values())
