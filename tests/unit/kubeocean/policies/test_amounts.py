"""The sums of a policy are those of its nodes, in whatever order nodes and pods come and go."""

from __future__ import annotations

from random import Random

import pytest

from kubeocean.policies.amounts import PolicyAmounts
from vkubelet.api.quantity import Resources, add_resources, format_resources, parse_resources

RESOURCES = ("cpu", "memory", "nvidia.com/gpu")


def some(random: Random) -> Resources:
    return parse_resources({name: str(random.randrange(4)) for name in random.sample(RESOURCES, random.randrange(1, 4))})


@pytest.mark.parametrize("seed", range(10))
def test_sums_are_those_of_the_nodes_put_last(seed: int) -> None:
    random, amounts = Random(seed), PolicyAmounts()
    nodes: dict[str, tuple[str, Resources, Resources]] = {}
    for _ in range(300):
        name, policy = f"node-{random.randrange(8)}", random.choice("ab")
        match random.randrange(4):
            case 0:
                nodes.pop(name, None)
                amounts.remove(name)
            case 1 if name in nodes:
                nodes[name] = (*nodes[name][:2], some(random))
                assert amounts.lease(name, nodes[name][2]) == nodes[name][0]
            case _:
                nodes[name] = (policy, some(random), some(random))
                amounts.put(name, policy=policy, offered=nodes[name][1], leased=nodes[name][2])
    for policy in "ab":
        offered: Resources = {}
        leased: Resources = {}
        for decided_by, node_offered, node_leased in nodes.values():
            if decided_by == policy:
                offered, leased = add_resources(offered, node_offered), add_resources(leased, node_leased)
        found = amounts.of(policy)
        assert format_resources(found.offered) == format_resources(offered)
        assert format_resources(found.leased) == format_resources({name: amount for name, amount in leased.items() if amount})


def test_a_node_that_changes_nothing_is_no_change() -> None:
    amounts, four = PolicyAmounts(), parse_resources({"cpu": "4"})
    assert amounts.put("n", policy="p", offered=four, leased={})
    assert not amounts.put("n", policy="p", offered=four, leased={})
    assert amounts.lease("unknown", four) == ""
