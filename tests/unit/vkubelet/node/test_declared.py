"""States of nodes, and the listeners that are called when they change."""

from vkubelet.node.declared import HEALTHY, DeclaredNodes, Health, NodeState
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock


def table() -> tuple[DeclaredNodes, list[str]]:
    nodes, told = DeclaredNodes(ManualClock()), list[str]()
    nodes.on_change(told.append)
    return nodes, told


def state(nodes: DeclaredNodes, name: str) -> NodeState | None:
    known = nodes.get(name)
    return known.state if known else None


def test_found_node_is_unknown_until_declarations_are_complete_then_retiring() -> None:
    nodes, told = table()
    nodes.found("old")
    assert state(nodes, "old") is NodeState.UNKNOWN
    nodes.finish_declaring()
    assert state(nodes, "old") is NodeState.RETIRING
    assert told == ["old", "old"]


def test_found_node_that_is_declared_in_time_is_kept() -> None:
    nodes, _ = table()
    nodes.found("n")
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    nodes.finish_declaring()
    assert state(nodes, "n") is NodeState.DECLARED


def test_node_found_after_completion_without_declaration_is_retiring() -> None:
    nodes, _ = table()
    nodes.finish_declaring()
    nodes.found("stray")
    assert state(nodes, "stray") is NodeState.RETIRING


def test_equal_description_tells_nobody() -> None:
    nodes, told = table()
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    assert told == ["n"]


def test_node_declared_again_while_retiring_is_not_forgotten() -> None:
    nodes, _ = table()
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    nodes.retire("n")
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    nodes.remove_undeclared("n")
    assert state(nodes, "n") is NodeState.DECLARED


def test_failure_of_the_provider_shows_on_all_nodes_and_ends() -> None:
    nodes, told = table()
    nodes.declare(NodeDescription("a", {}))
    nodes.declare(NodeDescription("b", {}))
    told.clear()
    nodes.set_provider_health(Health("ProviderFailed", "it raised"))
    assert nodes.health("a").reason == nodes.health("b").reason == "ProviderFailed"
    assert sorted(told) == ["a", "b"]
    nodes.set_provider_health(HEALTHY)
    assert nodes.health("a") == HEALTHY


def test_failed_ping_shows_on_its_node_only() -> None:
    nodes, _ = table()
    nodes.declare(NodeDescription("a", {}))
    nodes.declare(NodeDescription("b", {}))
    nodes.set_health("a", Health("PingFailed", "no"))
    assert nodes.health("a").reason == "PingFailed"
    assert nodes.health("b") == HEALTHY
    assert {each.value: nodes.count(each) for each in NodeState} == {"unknown": 0, "declared": 2, "retiring": 0}


def test_forgotten_node_is_told_so_that_its_count_goes_down() -> None:
    nodes, told = table()
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    nodes.retire("n")
    told.clear()
    nodes.remove_undeclared("n")
    assert told == ["n"]
    assert sum(nodes.count(each) for each in NodeState) == 0
