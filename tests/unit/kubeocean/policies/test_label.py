"""The label of a physical node that names the policy that leases it."""

from kubeocean.model.keys import POLICY_APPLIED
from kubeocean.policies.reconciler import PolicyLabel, ResourceLeasingPolicyReconciler
from tests.faults.model.server import ApiModel
from tests.unit.kubeocean.builders import worker_scope
from vkubelet.api.objects import NODES, Key
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost


async def test_label_is_removed_also_while_the_watch_has_not_shown_it() -> None:
    clock = ManualClock()
    model = ApiModel(now=clock.now)
    model.call("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}}, user="kubelet")
    client = model.client("kubeocean", clock=clock)
    scope = worker_scope(RecordingHost(client=client, clock=clock))
    label = PolicyLabel(scope, policies=ResourceLeasingPolicyReconciler(scope), granted=lambda: None)
    nodes = scope.worker.nodes
    nodes.adopt(await client.get(NODES, "node-1"))
    for policy in ("all", ""):
        await label.show(nodes.store.get(Key("", "node-1")), policy)
    assert POLICY_APPLIED not in (await client.get(NODES, "node-1")).metadata.labels
