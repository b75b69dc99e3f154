"""What is left of a reading for a reader with fewer rights: nothing that they do not cover, and unknown instead of zero."""

from __future__ import annotations

from itertools import product

import pytest
from attrs import evolve

from kubeocean.dashboard.fleet import Reading, fleet_of
from kubeocean.dashboard.forward import manager_of
from kubeocean.dashboard.readers import MOST_NAMESPACES, Rights, bounded, rights_of
from kubeocean.dashboard.server import templates
from kubeocean.dashboard.serving import leaf, names_of
from kubeocean.dashboard.views import node_rows, overview, problems, states
from kubeocean.model import keys
from tests.unit.kubeocean.builders import node, pod
from tests.unit.kubeocean.commands.test_status import cond, stored
from tests.unit.kubeocean.dashboard.test_history import START
from tests.unit.kubeocean.dashboard.test_history import pod as state_of_pod
from vkubelet.api.rbac import Check
from vkubelet.commands.clusters import Choice
from vkubelet.testing.clock import ManualClock

HUB = Choice("computing cluster", "")
NODE = node(
    name="vnode-secret",
    labels={keys.CLUSTER_BINDING: "demo"},
    annotations={keys.PHYSICAL_NODE_NAME: "metal-7", keys.POLICIES_APPLIED: "half"},
    status={"conditions": [{"type": "Ready", "status": "False", "message": "gone"}], "allocatable": {"cpu": "4"}},
)
READING = Reading(
    at=START,
    bindings=[stored(cond("Ready", "False", "the worker does not respond"), phase="Failed", name="demo")],
    nodes=[NODE],
    pods=[
        evolve(state_of_pod(team, node="vnode-secret", phase="Pending"), name=f"pod-{team}", waits="ErrImagePull")
        for team in ("red", "blue")
    ],
)
CLOCK = ManualClock(START)
WORDS = {"bindings": "the worker does not respond", "nodes": "vnode-secret", "red": "pod-red", "blue": "pod-blue"}


async def pages(rights: Rights) -> str:
    """All pages that are made of the reading."""
    fleet = await fleet_of(bounded(READING, rights, HUB), CLOCK)
    made = templates()
    common: dict[str, object] = {"base": "", "now": START, "error": "", "fleet": fleet}
    texts = [
        made.get_template("overview.html").render(page="overview", view=overview(fleet, ()), **common),
        made.get_template("problems.html").render(page="problems", found=problems(fleet), **common),
        made.get_template("nodes.html").render(
            page="nodes", rows=node_rows(fleet), binding="", chosen="", states=states(fleet.nodes), **common
        ),
    ]
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("bindings", "nodes", "pods", "namespaces"), [*product((True, False), (True, False), (True, False), ((), ("red",), ("blue", "red")))]
)
async def test_a_page_shows_what_the_rights_cover_and_nothing_else(
    bindings: bool, nodes: bool, pods: bool, namespaces: tuple[str, ...]
) -> None:
    text = await pages(Rights(bindings=bindings, nodes=nodes, pods=pods, namespaces=() if pods else namespaces))
    covered = {"bindings": bindings, "nodes": nodes, "red": pods or "red" in namespaces, "blue": pods or "blue" in namespaces}
    assert {kind: word in text for kind, word in WORDS.items()} == covered
    named = {kind: f"you may not list {kind}" in text for kind in ("clusterbindings", "nodes", "pods")}
    assert named == {"clusterbindings": not bindings, "nodes": not nodes, "pods": not pods}


async def test_sums_are_unknown_where_pods_of_some_namespaces_are() -> None:
    part = await fleet_of(bounded(READING, Rights(bindings=True, nodes=True, pods=False, namespaces=("red",)), HUB), CLOCK)
    assert [each.namespace for each in part.pods or ()] == ["red"] and not part.complete
    assert part.nodes[0].pods is None and part.nodes[0].requested == {} and part.bindings[0].pods is None
    assert overview(part, ()).bars[0].used == "?" and dict(overview(part, ()).pods or ()) == {"Pending": 1}
    whole = await fleet_of(bounded(READING, Rights(bindings=True, nodes=True, pods=True), HUB), CLOCK)
    assert evolve(whole, notes=()) == await fleet_of(READING, CLOCK) and list(whole.notes) == []


async def test_namespaces_are_asked_about_only_where_pods_may_not_all_be_listed() -> None:
    asked: list[Check] = []

    async def review(check: Check) -> bool:
        asked.append(check)
        return check.namespace == "red"

    found = await rights_of(READING, review)
    assert found == Rights(bindings=False, nodes=False, pods=False, namespaces=("red",)) and found.any
    assert all(check.verb == "list" for check in asked) and {check.namespace for check in asked} == {"", "red", "blue"}
    many = evolve(READING, pods=[state_of_pod(f"n{number:04}") for number in range(MOST_NAMESPACES + 50)])
    asked.clear()
    assert not (await rights_of(many, review)).any and len([each for each in asked if each.namespace]) == MOST_NAMESPACES
    asked.clear()

    async def all_pods(check: Check) -> bool:
        asked.append(check)
        return check.resource == "pods"

    assert (await rights_of(many, all_pods)).pods and not [each for each in asked if each.namespace]


def test_a_manager_is_opened_that_is_ready_and_has_a_certificate() -> None:
    def replica(name: str, *, ready: str = "True", port: str = "dashboard", **annotations: str) -> object:
        spec = {
            "nodeName": "n",
            "containers": [{"name": "m", "ports": [{"name": "health", "containerPort": 1}, {"name": port, "containerPort": 8443}]}],
        }
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
        return pod(spec, status=status, name=name, namespace="kubeocean-system", annotations=annotations)

    served = {keys.DASHBOARD_CERTIFICATE: "pem"}
    pods = [replica("a"), replica("b", ready="False", **served), replica("c", port="other", **served), replica("d", **served)]
    found = manager_of(pods)  # type: ignore[arg-type]
    assert found is not None and (found.pod.name, found.port) == ("d", 8443) and manager_of(pods[:3]) is None  # type: ignore[arg-type]


def test_the_certificate_of_a_chain_is_its_first() -> None:
    first, second = (f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n" for name in ("a", "b"))
    assert leaf(f"# a comment\n{first}{second}") == first and "kubeocean-dashboard.kubeocean-system.svc" in names_of("kubeocean-system")
