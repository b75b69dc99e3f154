"""Explanations of nodes agree with the decision, and name why every other policy does not decide."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.explain.node import CLOSED, OPEN, WITHHELD, explain_node
from kubeocean.leasing.policy import NodeFacts, decide
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model.crds import ResourceLeasingPolicy
from tests.unit.kubeocean.builders import at, limit, pod, policy
from tests.unit.kubeocean.explain.leases import TERMS, Observer, Sample, samples
from vkubelet.api.quantity import format_resources, parse_resources

NOW = at("2026-01-05 09:00")
FACTS = NodeFacts("node-1", {"pool": "a"}, parse_resources({"cpu": "4", "memory": "16Gi", "pods": "110"}))
USED = parse_resources({"cpu": "800m", "memory": "1Gi", "pods": "3"})
WEB = LeasedPod.of(pod({"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}))


def lease(*policies: ResourceLeasingPolicy, node: LeasedNode | None = None) -> Lease:
    given = node or LeasedNode(facts=FACTS, virtual="vnode-demo-node-1", used=USED, pods=[WEB])
    return Lease(terms=TERMS, policies=policies, nodes=[given])


def reasons(*policies: ResourceLeasingPolicy) -> dict[str, str]:
    made = lease(*policies)
    return {each.policy: each.why for each in explain_node(made, made.nodes[0], instant=NOW).policies}


def test_the_arithmetic_of_each_resource_is_shown_step_by_step() -> None:
    limits = [limit("cpu", percent=80), limit("cpu", quantity="3"), limit("cpu", quantity="2"), limit("memory", percent=50)]
    made = lease(policy("half", {"resourceLimits": limits}))
    explained = explain_node(made, made.nodes[0], instant=NOW, shown=parse_resources({"cpu": "2", "memory": "7680Mi", "pods": "107"}))
    cpu, memory, pods = explained.amounts
    assert [str(each) for each in (cpu.allocatable, cpu.local, cpu.left, cpu.offered, cpu.leased, cpu.free)] == [
        "4",
        "800m",
        "3200m",
        "2",
        "1",
        "1",
    ]
    assert [(each.limit, str(each.amount)) for each in cpu.limits] == [("cpu=80%", "2560m"), ("cpu=3", "2560m"), ("cpu=2", "2")]
    assert (str(memory.left), str(memory.offered), str(pods.offered), pods.limits) == ("15Gi", "7680Mi", "107", ())
    assert (explained.state, explained.outdated) == (OPEN, "")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(samples())
def test_amounts_and_deciding_policy_are_those_of_the_decision(sample: Sample) -> None:
    made = Observer(sample).lease()
    for node in made.nodes:
        explained = explain_node(made, node, instant=sample.start)
        decision = decide(node.facts, made.policies, terms=TERMS, used=node.used, instant=sample.start)
        assert {each.resource: str(each.offered) for each in explained.amounts} == format_resources(decision.amounts)
        assert explained.policy == (decision.deciding.name if decision.deciding else "")
        assert [each.policy for each in explained.policies if each.decides] == [name for name in (explained.policy,) if name]
        assert len(explained.policies) == len(made.policies) and all(each.why for each in explained.policies)


def test_every_other_policy_has_its_reason() -> None:
    found = reasons(
        policy("best", {"priority": 5}),
        policy("lower", {"priority": 1}),
        policy("younger", {"priority": 5}, creationTimestamp="2026-01-02T00:00:00Z"),
        policy("closed", {"priority": 9, "timeWindows": [{"start": "20:00", "end": "21:59"}], "timeZone": "Europe/Berlin"}),
        policy("never", {"timeWindows": [{"start": "20:00", "end": "21:59", "days": ["Nonday"]}]}),
        policy(
            "elsewhere",
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]}},
        ),
        policy("leaves", {}, deletionTimestamp="2026-01-05T08:00:00Z"),
    )
    assert found == {
        "best": "it has the highest rank of those with an open window",
        "lower": "its priority 1 is below 5 of best",
        "younger": "its priority is that of best, which is older",
        "closed": "its window is closed until Mon 05 Jan 20:00 CET (2026-01-05T19:00:00Z)",
        "never": "it is invalid: spec.timeWindows[0]: day 'Nonday' is unknown; "
        "write Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
        "elsewhere": "its spec.nodeSelector does not select the node",
        "leaves": "it is being deleted",
    }


def test_a_closed_node_names_the_policy_that_decided_last() -> None:
    night = policy("night", {"timeWindows": [{"start": "20:00", "end": "07:59"}]})
    made = lease(night, node=LeasedNode(facts=FACTS, virtual="v", used={}, closed_since=at("2026-01-05 08:00")))
    explained = explain_node(made, made.nodes[0], instant=NOW)
    assert (explained.state, explained.policy, explained.next_edge) == (CLOSED, "night", at("2026-01-05 20:00"))
    assert explained.why == "no time window is open since Mon 05 Jan 08:00 UTC (2026-01-05T08:00:00Z); taint NoSchedule"
    assert explained.policies[0].why == "no window is open, and it decided last"


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], "no ResourceLeasingPolicy of ClusterBinding demo selects it"),
        ([policy("broken", {"timeZone": "Mars/North"})], "every ResourceLeasingPolicy of ClusterBinding demo that selects it is invalid"),
    ],
)
def test_a_node_that_is_not_leased_has_the_reason_and_no_amounts(policies: list[ResourceLeasingPolicy], words: str) -> None:
    made = lease(*policies)
    explained = explain_node(made, made.nodes[0], instant=NOW, shown={})
    assert explained.state == WITHHELD and explained.why.startswith(words) and not explained.amounts
    assert explained.outdated == "the hub still has the virtual node"


def test_a_node_that_can_never_be_leased_needs_no_policies() -> None:
    made = lease(policy("all"))
    explained = explain_node(made, evolve(made.nodes[0], excluded="it is a virtual node itself"), instant=NOW)
    assert (explained.state, explained.why, explained.policies) == (WITHHELD, "it is a virtual node itself", [])


def test_a_difference_to_the_hub_is_named() -> None:
    made = lease(policy("all"))
    shown = parse_resources({"cpu": "1", "memory": "15Gi", "pods": "107"})
    assert (
        explain_node(made, made.nodes[0], instant=NOW, shown=shown).outdated == "the virtual node in the hub shows cpu 1 instead of 3200m"
    )
