"""The text of `kubeocean explain`."""

from __future__ import annotations

from attrs import evolve

from kubeocean.commands.explain import node_blocks, pod_blocks, policy_blocks, warnings
from kubeocean.commands.output import rendered
from kubeocean.explain.budgets import Budgets
from kubeocean.explain.node import explain_node
from kubeocean.explain.pod import Surroundings, explain_pod
from kubeocean.explain.policy import explain_policy
from tests.unit.kubeocean.builders import at, binding, limit, pod, policy
from tests.unit.kubeocean.explain.test_node import lease
from tests.unit.kubeocean.explain.test_pod import target, virtual

NOW = at("2026-01-05 09:00")


def test_the_arithmetic_of_a_node_is_one_line_for_each_resource() -> None:
    limits = [limit("cpu", percent=80), limit("cpu", quantity="2")]
    made = lease(policy("half", {"resourceLimits": limits}), policy("low", {"priority": -1}))
    shown = list(rendered(node_blocks(explain_node(made, made.nodes[0], instant=NOW, shown={})), width=160))
    (cpu,) = (line for line in shown if line.startswith("cpu"))
    assert cpu.split() == [
        "cpu",
        "4",
        "-",
        "800m",
        "=",
        "3200m",
        "->",
        "2",
        "1",
        "1",
        "cpu=80%",
        "->",
        "2560m,",
        "then",
        "cpu=2",
        "->",
        "2",
    ]
    assert shown[0] == "Node vnode-demo-node-1, which is node node-1 of ClusterBinding demo: Open, ResourceLeasingPolicy half leases it"
    assert any(line.startswith("! the virtual node in the hub shows cpu absent instead of 2") for line in shown)
    assert any(line.split()[:2] == ["low", "no"] for line in shown)


def test_the_arithmetic_fits_a_narrow_terminal() -> None:
    made = lease(policy("half", {"resourceLimits": [limit("cpu", percent=80), limit("cpu", quantity="2")]}))
    shown = list(rendered(node_blocks(explain_node(made, made.nodes[0], instant=NOW)), width=100))
    assert max(map(len, shown)) <= 100 and any(line.startswith("cpu       4            - 800m") for line in shown)


def test_a_policy_is_shown_with_windows_limits_and_problems() -> None:
    meant = policy(
        "night", {"timeWindows": [{"start": "20:00", "end": "07:59"}], "forceReclaim": True, "resourceLimits": [limit("gpu", quantity="1")]}
    )
    shown = list(rendered(policy_blocks(explain_policy(lease(meant), meant, instant=NOW)), width=160))
    assert shown[0] == "ResourceLeasingPolicy night for ClusterBinding demo: Inactive"
    assert "Next edge: Mon 05 Jan 20:00 UTC (2026-01-05T20:00:00Z)" in shown and "Limits: gpu=1" in shown
    assert "Reclaim: when a window closes, pods are deleted at once" in shown
    assert "! spec.resourceLimits: no node has the resource gpu; correct the name" in shown


def test_a_pod_is_shown_with_its_place_its_reasons_and_its_warnings() -> None:
    made = pod({"nodeSelector": {"pool": "a"}, "volumes": [{"name": "v", "configMap": {"name": "settings"}}]})
    around = Surroundings(
        node=virtual(), binding=binding(), target=target(made), worker_read=True, events=["2026-01-05T08:00:00Z FailedCreatePod: quota"]
    )
    shown = list(rendered(pod_blocks(explain_pod(made, around), wide=False), width=160))
    assert shown[:2] == ["Pod default/web: Pending on node vnode-demo-node-1", "Worker of ClusterBinding demo: no pod yet, node node-1"]
    assert (
        "Not passed to the worker: spec.nodeName, spec.nodeSelector" in shown
        and shown[-1] == "  2026-01-05T08:00:00Z FailedCreatePod: quota"
    )
    assert any(line.startswith("spec.volumes[v].configMap.name  settings  ") for line in shown)


def test_budgets_that_block_evictions_now_are_named_for_a_node_and_a_pod() -> None:
    made = lease(policy("half"))
    (uid,) = (each.ref.uid for each in made.nodes[0].pods)
    for allowed, names in ((0, True), (1, False)):
        counted = evolve(made, budgets=Budgets(of_pod={uid: "default/guard"}, allowed={"default/guard": allowed}))
        shown = "\n".join(rendered(node_blocks(explain_node(counted, counted.nodes[0], instant=NOW)), width=160))
        assert ("a PodDisruptionBudget blocks until a grace period ends: default/web: default/guard" in shown) is names
    around = Surroundings(node=virtual(), binding=binding(), target=target(pod()), blocked_by="default/guard")
    shown = "\n".join(rendered(pod_blocks(explain_pod(pod(), around), wide=False), width=160))
    assert "PodDisruptionBudget default/guard allows no eviction of it now: when its lease ends, it stays until" in shown


def test_warnings_are_sorted_by_time_and_other_events_are_left_out() -> None:
    found = warnings(
        [
            {"type": "Normal", "reason": "Scheduled", "message": "m", "lastTimestamp": "2026-01-05T09:00:00Z"},
            {"type": "Warning", "reason": "First", "message": "m", "eventTime": "2026-01-05T07:00:00Z"},
            {"type": "Warning", "reason": "Second", "message": "m", "lastTimestamp": "2026-01-05T08:00:00Z", "count": 3},
        ]
    )
    assert found == ["2026-01-05T08:00:00Z Second: m (3 times)", "2026-01-05T07:00:00Z First: m"]
