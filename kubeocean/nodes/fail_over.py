"""FailOver: deletes the hub pods of a worker cluster that stays silent, so that their controllers replace them.

Invariant: only silence that this process has proven for all of `afterSeconds` deletes pods (see `control.reach`); until then the nodes
stay as in Hold, so that the hub's taint eviction does not delete them earlier. A restart, another leader and a new kubeconfig start at 0.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from kubeocean.leasing.reclaim import Order
from kubeocean.model.crds import FAIL_OVER, ClusterBinding
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.scope import Scope
from vkubelet.api.objects import Pod
from vkubelet.api.scheduling import tolerates
from vkubelet.clock import in_batches
from vkubelet.control.reach import Reach

_CHECK_EVERY = 1.0
_PASS_EVERY = 5
"""Checks between two passes over all pods; a new pod on a closed node can wait."""
UNREACHABLE_MESSAGE: Final = (
    "the worker cluster is unreachable; this is the last observed state, see condition Connected of the ClusterBinding"
)
_UNREACHABLE: Final = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


class FailOver:
    """Rule `worker-unreachable`, the mode FailOver; deleted pods stay Terminating until the worker, which may run them, is reachable."""

    def __init__(self, scope: Scope, reclaimer: Reclaimer) -> None:
        self._scope = scope
        self._reclaimer = reclaimer
        self._ordered: set[str] = set()
        self._since: datetime | None = None
        self._known: dict[str, tuple[int | None, bool]] = {}
        """Whether a pod stays, by UID, with the spec it was computed from: most pods are unchanged at each pass."""

    async def run(self) -> None:
        """Checks periodically until cancelled."""
        while True:
            await self.check()
            await self._rest()

    async def _rest(self) -> None:
        """Waits until the next pass is due: stops early when the worker answers, because orders are being carried out meanwhile."""
        for _ in range(_PASS_EVERY):
            await self._scope.host.clock.sleep(_CHECK_EVERY)
            if not (self._ordered and self._is_due()):
                return

    async def check(self) -> None:
        """Orders the termination of all pods as soon as the time is reached, and withdraws the orders as soon as the worker answers."""
        if not self._is_due():
            await self._withdraw()
            return
        # Not later than now, should the clock have been set back.
        since = self._since = min(self._since or self._announce(), self._scope.host.clock.now())
        async for declared in in_batches(self._scope.host.clock, self._scope.virtual):
            if not self._is_due():
                return
            self._give_up(declared.description.name, since)

    def hold(self) -> None:
        """Publishes the nodes of an unreachable worker as retained: Ready as before, and Unknown only from when their pods are given up."""
        if self._scope.reach.lost:
            self._scope.virtual.hold(UNREACHABLE_MESSAGE, ready=self._since is None)

    async def _withdraw(self) -> None:
        if self._since is not None:
            self._since = None
            self.hold()
        self._known.clear()
        if self._ordered:
            async for node in in_batches(self._scope.host.clock, self._ordered):
                self._reclaimer.order(node, ())
                self._ordered.discard(node)

    def _is_due(self) -> bool:
        binding = self._scope.binding.current
        return binding is not None and not self._scope.binding.ending and is_due(binding, self._scope.reach)

    def _announce(self) -> datetime:
        self._since = self._scope.host.clock.now()
        self.hold()
        silent = self._scope.reach.silent_for
        text = f"the worker cluster has not responded for {silent:.0f} s; its pods are deleted; spec.onUnreachable.mode Hold keeps them"
        self._scope.binding.event("FailingOver", text, warning=True)
        return self._since

    def _give_up(self, node: str, since: datetime) -> None:
        why = "the worker cluster does not respond, and spec.onUnreachable.mode of its ClusterBinding is FailOver"
        pods = leaving(self._scope.host.pods.on_node(node), stays=self._stays)
        self._ordered.add(node)
        self._reclaimer.order(node, [Order(pod.ref, since, why, "FailingOver") for pod in pods])

    def _stays(self, pod: Pod) -> bool:
        spec, stays = self._known.get(pod.metadata.uid, (None, False))
        if spec != pod.spec_hash:
            stays = tolerates_unreachable(pod)
            self._known[pod.metadata.uid] = (pod.spec_hash, stays)
        return stays


def is_due(binding: ClusterBinding, reach: Reach) -> bool:
    """Returns whether the worker is proven to have been silent for as long as the binding requires."""
    asks_for_it = binding.on_unreachable.mode == FAIL_OVER
    return asks_for_it and reach.lost and reach.silent_for >= binding.on_unreachable.after


def leaving(pods: Sequence[Pod], *, stays: Callable[[Pod], bool] | None = None) -> list[Pod]:
    """Returns the pods that are given up: not terminating, not terminal, and not tolerating unreachable nodes, as those of DaemonSets."""
    stays = stays or tolerates_unreachable
    return [pod for pod in pods if not (pod.terminating or pod.terminal or stays(pod))]


def tolerates_unreachable(pod: Pod) -> bool:
    """Returns whether the pod tolerates an unreachable node without a time limit."""
    forever = [each for each in pod.spec.get("tolerations") or () if each.get("tolerationSeconds") is None]
    return tolerates(forever, _UNREACHABLE)
