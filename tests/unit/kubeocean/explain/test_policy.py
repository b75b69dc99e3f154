"""Explanations of policies: what they select, their window, and what is wrong."""

from __future__ import annotations

import pytest

from kubeocean.explain.policy import ACTIVE, DELETING, FAILED, INACTIVE, explain_policy
from kubeocean.model.crds import ResourceLeasingPolicy
from tests.unit.kubeocean.builders import at, limit, policy
from tests.unit.kubeocean.explain.test_node import lease
from vkubelet.api.objects import Json
from vkubelet.api.quantity import format_resources

NOW = at("2026-01-05 09:00")
ELSEWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]}


def problems(spec: Json, **metadata: object) -> str:
    meant = policy("p", spec, **metadata)
    return "; ".join(explain_policy(lease(meant), meant, instant=NOW).problems)


def test_amounts_and_nodes_of_an_active_policy_are_shown() -> None:
    meant, other = policy("p", {"resourceLimits": [limit("cpu", percent=50)]}), policy("best", {"priority": 1})
    made = explain_policy(lease(meant), meant, instant=NOW)
    assert (made.state, made.zone, made.windows, made.next_edge, made.problems) == (ACTIVE, "UTC", [], None, [])
    assert (format_resources(made.offered)["cpu"], format_resources(made.leased)["cpu"]) == ("1600m", "1")
    outranked = explain_policy(lease(meant, other), meant, instant=NOW)
    assert [(each.node, each.decides, each.why) for each in outranked.nodes] == [("node-1", False, "its priority 0 is below 1 of best")]
    assert outranked.offered == {}


def test_the_window_is_shown_with_its_next_edge() -> None:
    meant = policy("p", {"timeWindows": [{"start": "20:00", "end": "07:59", "days": ["Monday"]}]})
    made = explain_policy(lease(meant), meant, instant=NOW)
    assert (made.state, made.windows, made.next_edge) == (INACTIVE, ["20:00 to 07:59 Monday"], at("2026-01-05 20:00"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"timeWindows": [{"start": "8", "end": "9:00"}]}, "spec.timeWindows[0]: start '8' is not a time"),
        ({"timeZone": "Mars/North"}, "spec.timeZone: time zone 'Mars/North' is unknown"),
        ({"nodeSelector": ELSEWHERE}, "spec.nodeSelector: it selects no node"),
        ({"resourceLimits": [limit("cpu", percent=0)]}, "spec.resourceLimits: it leases no cpu"),
        ({"resourceLimits": [limit("gpu", quantity="1")]}, "spec.resourceLimits: no node has the resource gpu"),
    ],
)
def test_what_is_wrong_is_named_by_field_with_the_remedy(spec: Json, words: str) -> None:
    assert words in problems(spec)


def test_a_sound_policy_has_no_problems() -> None:
    assert problems({"timeWindows": [{"start": "20:00", "end": "07:59"}], "resourceLimits": [limit("cpu", percent=50)]}) == ""


@pytest.mark.parametrize(
    ("meant", "state"),
    [
        (policy("p", {"timeZone": "Mars/North"}), FAILED),
        (policy("p", deletionTimestamp="2026-01-05T08:00:00Z", finalizers=["policy.kubeocean.io/x"]), DELETING),
    ],
)
def test_a_policy_that_leases_nothing_has_its_state(meant: ResourceLeasingPolicy, state: str) -> None:
    made = explain_policy(lease(meant), meant, instant=NOW)
    assert made.state == state and made.problems and made.offered == {}


def test_a_missing_binding_and_another_hub_are_named() -> None:
    meant = policy("p", {"cluster": "lost"})
    made = explain_policy(lease(meant), meant, instant=NOW, binding_exists=False, other_hub="far-1234")
    assert "spec.cluster: the hub has no ClusterBinding lost" in made.problems[0] and "far-1234" in made.problems[-1]
