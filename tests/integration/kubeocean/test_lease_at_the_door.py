"""The lease is enforced where pods enter: also a pod that names its node itself is refused as a kubelet refuses it, and what runs stays."""

from __future__ import annotations

from tests.integration.kubeocean.conftest import MakeScene
from tests.integration.kubeocean.leases import CLOSED, closed_now, comes_to_offer, patch_policy, policy_observed
from tests.support.bound import Body
from tests.support.stage import Stage, away
from tests.support.witness import watching

TOLERANT = [{"key": "kubeocean.io/vnode", "operator": "Exists"}, {"key": CLOSED, "operator": "Exists"}]


def asking(cpu: str) -> list[Body]:
    return [{"name": "main", "image": "localhost/busybox:dev", "resources": {"requests": {"cpu": cpu}}}]


def limited(cpu: str) -> Body:
    return {"resourceLimits": [{"resource": "cpu", "quantity": cpu}]}


async def refused(stage: Stage, name: str, reason: str) -> str:
    """Wait until a pod is refused; the message. Nothing of it was ever in the worker."""
    pod = await stage.until(name, lambda p: p["status"]["phase"] == "Failed", "Failed")
    assert pod["status"]["reason"] == reason
    assert (await stage.event(name, reason))["type"] == "Warning"
    assert await stage.physical(name) is None
    return str(pod["status"]["message"])


async def test_pods_beyond_the_lease_are_refused_and_those_that_run_stay(scene: MakeScene) -> None:
    made = await scene(policies=lambda bound: [bound.policy(**limited("2"))])
    stage, policy = await Stage.of(made.bound, made.nodes), f"all-of-{made.bound.name}"
    with watching(made.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        await stage.create("runs", containers=asking("1"))
        await stage.running("runs")
        await stage.create("greedy", containers=asking("30"))
        text = "Pod was rejected: Node didn't have enough resource: cpu, requested: 30000, used: 1000, capacity: 2000"
        assert await refused(stage, "greedy", "OutOfcpu") == text
        with away(made.program):
            await patch_policy(made, policy, **limited("0"), **closed_now())
        await comes_to_offer(made, cpu="0")
        await stage.create("late", containers=asking("0"), tolerations=TOLERANT)
        assert "spec.allowOutOfWindowPods" in await refused(stage, "late", "TaintToleration")
        await patch_policy(made, policy, allowOutOfWindowPods=True)
        await policy_observed(made, policy)
        await stage.create("allowed", containers=asking("0"), tolerations=TOLERANT)
        await stage.running("allowed")
    ends = seen.where(lambda event: event.key.endswith("/runs") and (event.deleting or event.kind == "DELETED" or event.phase == "Failed"))
    assert not ends
