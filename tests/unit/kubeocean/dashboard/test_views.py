"""What the pages show of a reading, and that a thousand nodes are rendered at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import pytest
from attrs import evolve

from kubeocean.commands.capacity import capacities
from kubeocean.dashboard import fleet as fleet_module
from kubeocean.dashboard.fleet import Fleet, Reading, concerns, fleet_of, pod_state
from kubeocean.dashboard.history import sample_of
from kubeocean.dashboard.server import templates
from kubeocean.dashboard.views import CRITICAL, NOTE, WARNING, age, bar, charts, node_rows, overview, problems, states, stuck
from kubeocean.model import keys
from tests.support.turns import counted_turns
from tests.unit.kubeocean.builders import at, binding, node, pod
from tests.unit.kubeocean.commands.test_status import READY, cond, stored
from tests.unit.kubeocean.dashboard.test_history import START, fleet
from tests.unit.kubeocean.dashboard.test_history import pod as state_of_pod
from vkubelet.api.quantity import parse_resources
from vkubelet.testing.clock import ManualClock

NOW = at("2026-01-05 09:00")
CLOCK = ManualClock(NOW)
IS_READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def test_pods_of_virtual_nodes_and_those_that_wait_for_one_are_shown() -> None:
    tolerant = {"tolerations": [{"key": keys.TAINT_VNODE, "operator": "Exists"}]}
    assert concerns(pod(), {"vnode-demo-node-1": 1}) and not concerns(pod(), {})
    assert concerns(pod({"nodeName": "", **tolerant}), {}) and not concerns(pod({"nodeName": ""}), {})
    assert not concerns(pod({"nodeName": "", **tolerant}, namespace="kube-system"), {})


async def test_requests_of_running_pods_alone_fill_a_node() -> None:
    resources = {"containers": [{"name": "m", "image": "i", "resources": {"requests": {"cpu": "2"}}}]}
    virtual = node(
        status={**IS_READY, "allocatable": {"cpu": "4"}},
        name="vnode-demo-node-1",
        labels={keys.CLUSTER_BINDING: "demo"},
        annotations={keys.PHYSICAL_NODE_NAME: "node-1", keys.POLICIES_APPLIED: "half,Open"},
    )
    found = [pod(resources, uid="a"), pod(resources, uid="b", status={"phase": "Succeeded"})]
    made = await fleet_of(Reading(bindings=[stored(*READY)], nodes=[virtual], pods=[pod_state(each) for each in found], at=NOW), CLOCK)
    (only,) = made.nodes
    assert (only.binding, only.physical, only.policy, only.pods) == ("demo", "node-1", "half", 2)
    assert str(only.requested["cpu"]) == "2" and made.bindings[0].nodes_ready == 1
    unread = await fleet_of(Reading(bindings=[stored(*READY)], nodes=[virtual], pods=None, at=NOW), CLOCK)
    assert unread.nodes[0].pods is None and overview(unread, ()).pods is None and overview(unread, ()).bars[0].used == "?"


async def test_pods_of_daemonsets_are_leased_only_with_consent_as_status_counts_them() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    resources = {"containers": [{"name": "m", "image": "i", "resources": {"requests": {"cpu": "2"}}}]}
    made = pod(resources, ownerReferences=[owner])
    for consents, cpu in ((False, None), (True, "2")):
        owned = binding({"runningDaemonsetByDefault": consents})
        assert pod_state(made, owned).leased is consents
        virtual = node(name=made.node, labels={keys.CLUSTER_BINDING: "demo"}, status={**IS_READY, "allocatable": {"cpu": "4"}})
        (state,) = (await fleet_of(Reading(bindings=[stored(*READY)], nodes=[virtual], pods=[pod_state(made, owned)], at=NOW), CLOCK)).nodes
        (counted,) = capacities([virtual], [made], owned)
        assert (str(state.requested["cpu"]) if state.requested else None) == cpu
        assert (str((counted.used or {})["cpu"]) if counted.used else None) == cpu


async def test_problems_are_sorted_by_severity_and_grouped_by_reason() -> None:
    nodes = [
        node(
            status={"conditions": [{"type": "Ready", "status": "False", "message": "gone"}]},
            name=f"v{n}",
            labels={keys.CLUSTER_BINDING: "demo"},
        )
        for n in range(5)
    ]
    waits = pod(status={"phase": "Pending", "containerStatuses": [{"name": "m", "state": {"waiting": {"reason": "ErrImagePull"}}}]})
    made = await fleet_of(
        Reading(
            bindings=[stored(cond("Ready", "False", "m"), phase="Failed")], nodes=nodes, pods=[pod_state(waits)], at=NOW, notes=["no right"]
        ),
        CLOCK,
    )
    found = problems(made)
    assert [each.severity for each in found] == [CRITICAL, CRITICAL, WARNING, NOTE]
    assert found[0].subject == "ClusterBinding demo" and found[1].subject == "5 nodes of demo" and "v0, v1, v2 …" in found[1].text
    assert found[2].link == "pods/default/web" and "ErrImagePull" in found[2].text


@pytest.mark.parametrize(
    ("phase", "waits", "minutes", "is_problem"),
    [
        ("Running", "", 60, False),
        ("Pending", "", 1, False),
        ("Pending", "", 3, True),
        ("Pending", "ContainerCreating", 1, False),
        ("Running", "CrashLoopBackOff: back-off", 1, True),
        ("Failed", "Evicted", 60, False),
        ("Succeeded", "", 60, False),
    ],
)
def test_a_pod_is_a_problem_when_it_fails_or_is_late(phase: str, waits: str, minutes: int, is_problem: bool) -> None:
    made = evolve(state_of_pod(phase=phase), waits=waits)
    assert bool(stuck(made, START + timedelta(minutes=minutes))) is is_problem


def test_bars_and_ages_are_short_and_bounded() -> None:
    made = bar("cpu", parse_resources({"cpu": "2"}), parse_resources({"cpu": "5"}))
    assert (made.width, made.share, made.level, made.used, made.size) == (100, 250, "full", "5", "2")
    assert bar("memory", {}, {}).share is None and bar("cpu", parse_resources({"cpu": "1234500m"}), None).size == "1,234"
    lengths = ((5, "5 s"), (600, "10 min"), (3600, "1 h"), (90_061, "1 d 1 h"), (-5, "0 s"))
    assert [age(START, START + timedelta(seconds=seconds)) for seconds, _ in lengths] == [text for _, text in lengths]


def test_a_chart_needs_two_samples_and_stays_inside_its_frame() -> None:
    samples = [sample_of(fleet(state_of_pod(), minutes=minutes)) for minutes in range(9)]
    assert charts(samples[:1]) == []
    for chart in charts(samples):
        for point in (*chart.offered.split(), *chart.requested.split()):
            x, y = map(float, point.split(","))
            assert 0 <= x <= 300 and 0 <= y <= 60


async def test_a_binding_without_nodes_and_a_hub_without_bindings_have_pages() -> None:
    assert overview(Fleet(at=NOW, pods=[]), ()).bindings == []
    (row,) = overview((await fleet_of(Reading(bindings=[stored(*READY)], nodes=[], pods=[], at=NOW), CLOCK)), ()).bindings
    assert row.bars[0].size == "0" and row.states == []


PAGES = ("overview.html", "nodes.html")


def large(count: int, *, pods: int = 20, names: Sequence[str] = ("b0", "b1", "b2", "b3")) -> Reading:
    """A hub with so many nodes of some bindings, and so many pods on each."""
    bindings = [stored(*READY, name=name) for name in names]
    nodes = [
        node(
            {"taints": [{"key": keys.TAINT_VNODE, "effect": "NoSchedule"}]},
            status={**IS_READY, "allocatable": {"cpu": "32", "memory": "128Gi"}},
            name=f"v{number}",
            labels={keys.CLUSTER_BINDING: names[number % len(names)]},
        )
        for number in range(count)
    ]
    states = [evolve(state_of_pod(f"n{number % 50}", node=f"v{number % count}"), uid=str(number)) for number in range(count * pods)]
    return Reading(bindings=bindings, nodes=nodes, pods=states, at=NOW)


async def seconds(reading: Reading) -> dict[str, float]:
    """The CPU time in which a reading becomes its largest pages, the best of three attempts."""
    rendered, took = templates(), dict.fromkeys(PAGES, float("inf"))
    for page in PAGES * 3:
        began = time.process_time()
        made = await fleet_of(reading, CLOCK)
        values: dict[str, object] = (
            {"view": overview(made, [sample_of(made)] * 300)}
            if page == "overview.html"
            else {"rows": node_rows(made), "binding": "", "chosen": "", "states": states(made.nodes)}
        )
        name = page.removesuffix(".html")
        text = rendered.get_template(page).render(base="/t", now=NOW, error="", page=name, fleet=made, **values)
        took[page] = min(took[page], time.process_time() - began)
        assert text.count('href="/t/nodes/v') == len(reading.nodes or ())
    return took


async def test_a_thousand_nodes_with_twenty_pods_each_take_less_than_a_second_of_cpu() -> None:
    took = await seconds(large(1000))
    assert max(took.values()) < 1.0, took


async def test_nodes_are_counted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted_turns() as turns:
        monkeypatch.setattr(fleet_module, "_node_state", turns.counted(fleet_module._node_state))
        made = await fleet_of(large(1000, pods=1), CLOCK)
    assert len(made.nodes) == turns.calls.total() == 1000 and max(turns.calls.values()) <= 200, turns.calls


async def test_the_time_of_a_page_grows_with_the_nodes_and_no_faster() -> None:
    """Four times as many nodes take four times as long; sixteen times, if one were compared with every other."""
    few, many = await seconds(large(250)), await seconds(large(1000))
    assert all(many[page] < 8 * few[page] for page in PAGES), (few, many)
