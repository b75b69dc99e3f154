"""`namespaceShares` of a policy on two real API servers: judged once, before the physical pod exists, over all nodes of the policy."""

from __future__ import annotations

from tests.integration.kubeocean.conftest import MakeScene
from tests.support.bound import Body
from tests.support.stage import Stage


def asking(stage: Stage, name: str, cpu: str, *, node: int = 0) -> Body:
    body = stage.body(name)
    body["spec"]["nodeName"] = stage.bound.vnode(stage.nodes[node])
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return body


async def test_a_limit_and_a_guarantee_hold_over_all_nodes_of_a_policy(scene: MakeScene) -> None:
    names: dict[str, str] = {}

    async def refused(stage: Stage, name: str, words: str) -> None:
        found = await stage.until(name, lambda p: p["status"].get("phase") == "Failed", "Failed")
        assert found["status"]["reason"] == "OutOfNamespaceShare"
        assert words in found["status"]["message"] and names["policy"] in found["status"]["message"]
        assert await stage.physical(name) is None

    made = await scene(nodes=2, start=False)
    one, other = [await Stage.of(made.bound, made.nodes) for _ in range(2)]
    shares = [{"namespace": one.namespace, "guaranteed": {"cpu": "2"}, "limit": {"cpu": "3"}}]
    limits = [{"resource": "cpu", "quantity": "2"}]
    names["policy"] = f"all-of-{made.bound.name}"
    change = made.bound.policy(resourceLimits=limits, namespaceShares=shares)
    await one.there._call("PATCH", f"/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies/{names['policy']}", {"spec": change["spec"]})
    made.program.start()
    await made.ready()

    await other.home.create("pods", asking(other, "first", "1500m"))
    await other.running("first")
    await other.home.create("pods", asking(other, "second", "1", node=1))
    await refused(other, "second", f"2 of cpu are kept for namespaces {one.namespace} (guaranteed), requested: 1")
    await one.home.create("pods", asking(one, "first", "2", node=1))
    await one.running("first")
    await one.home.create("pods", asking(one, "second", "1100m"))
    await refused(one, "second", f"spec.namespaceShares[0].limit: namespace {one.namespace} would exceed its limit of cpu")
    await other.home.create("pods", asking(other, "third", "500m"))
    await other.running("third")
