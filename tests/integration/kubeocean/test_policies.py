"""What a virtual node offers follows from the policies of the worker's owner and from what runs there already."""

from __future__ import annotations

import json
import statistics
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene, lasting_scene
from tests.integration.kubeocean.leases import (
    CLOSED,
    POLICY,
    closed_now,
    comes_to_offer,
    decided_by,
    first,
    following,
    listed,
    local_pod,
    offers,
    only_vnodes,
    open_now,
    patch_policy,
    policy_reports,
    policy_status,
    share,
    taints,
    vnode,
    vnode_names,
)
from tests.support.audit import Audit
from tests.support.bound import Body, Bound, apply, condition, delete, get, pod, running
from tests.support.program import PATIENCE, eventually, holds
from tests.support.witness import Record, Seen, watching
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.fixtures import run_apart

FOLLOWS_WITHIN = 2.0
"""In the median; what is noticed by nobody shows by itself only when the node is looked at again, minutes later."""
ACTS_ON_EDGES_WITHIN = 1.0
EDGES = 3
"""Of which the best counts: a machine that runs other tests stands still now and then, who looks every so often is late at each."""
SOONEST = timedelta(seconds=20)
"""From setting a window to its edge: it has to be in force by then."""
HALF = [{"resource": "cpu", "percent": 50}]


@pytest.fixture(scope="module")
def lent_all_along(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("lent")) as made:
        yield made


@pytest.fixture
async def lent(lent_all_along: Scene) -> AsyncIterator[Scene]:
    """One node, leased in full by the policy `default_policy`, and no other one before and after the test."""
    scene = lent_all_along
    await decided_by(scene, default_policy(scene), cpu="64", memory="256Gi", pods="1k")
    yield scene
    extra = {body["metadata"]["name"] for body in await listed(scene.bound.worker, POLICY) if body["spec"]["cluster"] == scene.bound.name}
    for name in extra - {default_policy(scene)}:
        await delete(scene.bound.worker, POLICY, name, "--wait=false")
    body = scene.bound.policy()
    if default_policy(scene) in extra:
        change = json.dumps([{"op": "replace", "path": "/spec", "value": body["spec"]}])
        await scene.bound.worker.kubectl("patch", POLICY, default_policy(scene), "--type=json", "-p", change)
    else:
        await apply(scene.bound.worker, body)


def default_policy(scene: Scene) -> str:
    return f"all-of-{scene.bound.name}"


@frozen
class Closing:
    """A scene whose only window ends at `edge`, and what is written of its node all along."""

    scene: Scene
    edge: datetime
    audit: Audit


@pytest.fixture(scope="module", autouse=True)
def closing(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closing]:
    """Edges are whole minutes, so this one is waited for while the other tests run."""
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("closing")) as made:
        audit = Audit(hub, made.bound.user)
        yield Closing(made, run_apart(_close_at_an_edge(made)), audit)


async def _close_at_an_edge(scene: Scene) -> datetime:
    """Let the only window end at the next whole minute that is far enough; which one."""
    edge = (datetime.now(UTC) + SOONEST + timedelta(minutes=1)).replace(second=0, microsecond=0)
    window = {"start": f"{edge - timedelta(hours=2):%H:%M}", "end": f"{edge - timedelta(minutes=1):%H:%M}"}
    await patch_policy(scene, default_policy(scene), timeZone="UTC", timeWindows=[window])
    return edge


def _added(event: Seen) -> bool:
    return event.kind == "ADDED"


def _succeeded(event: Seen) -> bool:
    return event.phase == "Succeeded"


async def _succeed(scene: Scene, namespace: str, name: str) -> None:
    """What the kubelet writes when the containers have ended."""
    change = json.dumps({"status": {"phase": "Succeeded"}})
    await scene.bound.worker.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", change)


async def test_virtual_node_has_the_leased_half_and_follows_local_pods_within_two_seconds(lent: Scene) -> None:
    """Lines 60, 61, 63 to 65, 67, 68 and 70 of kubeocean-behaviour.md."""
    worker, node = lent.bound.worker, lent.nodes[0]
    await patch_policy(lent, default_policy(lent), resourceLimits=HALF)
    await comes_to_offer(lent, cpu="32", memory="256Gi", pods="1k")
    namespace = await worker.namespace()
    with following(lent, namespace) as follower:
        big = local_pod("big", namespace, node, cpu="333m", memory="1Gi")
        # Kubernetes' own rule: the larger of the start and the run, never their sum.
        big["spec"]["initContainers"] = [{**big["spec"]["containers"][0], "name": "start", "resources": {"requests": {"cpu": "3"}}}]
        await apply(worker, big)
        delays = {"a pod starts": await follower.delay("big", _added, cpu="30500m", memory="255Gi", pods="999")}
        await apply(worker, local_pod("small", namespace, node, cpu="333m"))
        delays["another starts"] = await follower.delay("small", _added, cpu="30333m", memory="255Gi", pods="998")
        await _succeed(lent, namespace, "big")
        delays["a pod ends"] = await follower.delay("big", _succeeded, cpu="31833m", memory="256Gi", pods="999")
        await delete(worker, "pod", "small", "-n", namespace, "--wait=false")
        gone = await follower.delay("small", lambda event: event.kind == "DELETED", cpu="32", memory="256Gi", pods="1k")
        delays["a pod is deleted"] = gone
    print("followed after", {what: f"{delay:.2f} s" for what, delay in delays.items()})
    assert statistics.median(delays.values()) < FOLLOWS_WITHIN, delays


async def test_pods_that_end_one_after_the_other_do_not_keep_the_virtual_node_waiting(lent: Scene) -> None:
    worker, many = lent.bound.worker, 20
    namespace = await worker.namespace()
    await apply(worker, *(local_pod(f"p{i}", namespace, lent.nodes[0], cpu="1") for i in range(many)))
    await comes_to_offer(lent, cpu=str(64 - many))
    with following(lent, namespace) as follower:
        for i in range(many):
            await _succeed(lent, namespace, f"p{i}")
        await eventually(lambda: len(follower.pods.where(_succeeded)) >= many, "the watch tells of the ends")
        began = follower.pods.where(_succeeded)[0]
        rose = await first(follower.nodes, "the virtual node offers more", lambda event: not offers(event, {"cpu": str(64 - many)}))
        took = follower.pods.where(_succeeded)[-1].at - began.at
        await comes_to_offer(lent, cpu="64")
    print(f"pods ended during {took:.2f} s, the node followed after {rose.at - began.at:.2f} s")
    # Who waits for a moment without a change would come after the last of them.
    assert rose.at - began.at < max(FOLLOWS_WITHIN, took)
    await delete(worker, "pods", "--all", "-n", namespace, "--wait=false")


async def test_leased_pods_do_not_lessen_what_the_virtual_nodeoffers(lent: Scene) -> None:
    """Line 60 of kubeocean-behaviour.md: managed pods do not count."""
    hub, worker = lent.bound.hub, lent.bound.worker
    namespace = await hub.namespace()
    body = pod("leased", namespace, node=lent.vnodes[0])
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "4"}}
    await apply(hub, body)
    await running(lent.bound, namespace, "leased")
    # A local pod, counted after the leased one, tells that the sums were made anew.
    local = await worker.namespace()
    await apply(worker, local_pod("local", local, lent.nodes[0], cpu="2"))
    await comes_to_offer(lent, cpu="62", pods="999")
    await hub.kubectl("delete", "pod", "leased", "-n", namespace)
    await worker.kubectl("delete", "pod", "local", "-n", local)


async def test_zero_percent_and_zero_quantity_lease_nothing(lent: Scene) -> None:
    limits = [{"resource": "cpu", "percent": 0}, {"resource": "memory", "quantity": "0"}, {"resource": "pods", "percent": 33}]
    await patch_policy(lent, default_policy(lent), resourceLimits=limits)
    await comes_to_offer(lent, cpu="0", memory="0", pods="330")


async def test_highest_priority_decides_and_among_equals_the_oldest(lent: Scene) -> None:
    """Lines 55 and 56 of kubeocean-behaviour.md, after the priority."""
    bound, worker = lent.bound, lent.bound.worker
    oldest, younger, urgent = default_policy(lent), f"a-{bound.name}", f"m-{bound.name}"
    await _after_a_second(bound, oldest, bound.policy(younger, **share(25)))
    await policy_reports(lent, younger, "Active")
    await decided_by(lent, oldest, cpu="64")
    await apply(worker, bound.policy(urgent, **share(10, priority=5)))
    await decided_by(lent, urgent, cpu="6400m")
    await eventually(lambda: _decides(lent, urgent, oldest), "the status of the policies says which one decides")
    await patch_policy(lent, urgent, priority=-1)
    await decided_by(lent, oldest, cpu="64")
    await worker.kubectl("delete", POLICY, oldest)
    await decided_by(lent, younger, cpu="16")
    node = await vnode(lent)
    assert node is not None and node["metadata"]["annotations"]["kubeocean.io/policy-details"] == f"{younger}(cpu=25%)"


async def _decides(scene: Scene, deciding: str, other: str) -> bool:
    counts = [(await policy_status(scene, name)).get("decidingNodes") for name in (deciding, other)]
    return counts == [1, 0]


async def _after_a_second(bound: Bound, older: str, body: Body) -> None:
    """Create a policy that is younger by its creationTimestamp, which counts whole seconds."""
    created = (await get(bound.worker, POLICY, older))["metadata"]["creationTimestamp"]
    then = datetime.fromisoformat(created) + timedelta(seconds=1.1)
    await eventually(lambda: datetime.now(UTC) > then, "a second has passed since the older policy")
    await apply(bound.worker, body)


async def test_closed_window_hands_over_and_the_node_closes_only_when_none_is_open(lent: Scene) -> None:
    """Lines 91, 96 and 97 of kubeocean-behaviour.md."""
    day, night = f"day-{lent.bound.name}", default_policy(lent)
    await apply(lent.bound.worker, lent.bound.policy(day, **share(50, priority=2, **open_now())))
    await decided_by(lent, day, cpu="32")
    await patch_policy(lent, day, **closed_now())
    await decided_by(lent, night, cpu="64")
    status = await policy_reports(lent, day, "Inactive")
    assert status["activeTimeWindow"] is False and status["conditions"]["Active"]["status"] == "False"
    assert status["conditions"]["Valid"]["status"] == "True" and status["timeZone"] == "UTC" and status["nextEdge"]
    assert CLOSED not in taints(await _existing(lent))

    await patch_policy(lent, night, **closed_now())
    await eventually(lambda: _closed(lent), "the node is closed")
    taint = taints(await _existing(lent))[CLOSED]
    assert (taint["value"], taint["effect"]) == ("true", "NoSchedule") and taint["timeAdded"]
    assert condition(await _existing(lent), "Ready") == "True"

    await patch_policy(lent, night, **open_now())
    await eventually(lambda: _open(lent), "the node is open again")
    status = await policy_reports(lent, night, "Active")
    assert status["activeTimeWindow"] is True and status["conditions"]["Active"]["status"] == "True"


async def _existing(scene: Scene) -> Body:
    node = await vnode(scene)
    assert node is not None
    return node


async def _closed(scene: Scene) -> bool:
    return CLOSED in taints(await _existing(scene))


async def _open(scene: Scene) -> bool:
    return CLOSED not in taints(await _existing(scene))


async def test_invalid_policy_leases_nothing_and_says_so_until_it_is_mended(scene: MakeScene) -> None:
    """Line 7 of kubeocean-behaviour.md."""
    made = await scene(start=False, policies=lambda bound: [bound.policy(f"bad-{bound.name}", timeZone="Europe/Atlantis")])
    bound, name = made.bound, f"bad-{made.bound.name}"
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes:
        made.program.start()
        status = await policy_reports(made, name, "Failed", seconds=STARTS_WITHIN)
        valid = status["conditions"]["Valid"]
        assert valid["status"] == "False" and valid["reason"] == "ValidationError" and "spec.timeZone" in valid["message"]
        assert status["conditions"]["Active"]["status"] == "False" and status["activeTimeWindow"] is False
        await eventually(lambda: _event(bound, "InvalidPolicy", "spec.timeZone"), "an event about the invalid policy")
        # A sound policy of lower priority leases, the invalid one does not get in its way.
        await patch_policy(made, name, priority=9)
        await apply(bound.worker, bound.policy(**share(50)))
        await made.ready()
        await decided_by(made, f"all-of-{bound.name}", cpu="32")
        await patch_policy(made, name, timeZone="Europe/Berlin")
        await decided_by(made, name, cpu="64")
    assert not nodes.where(
        lambda event: event.object["metadata"]["annotations"].get("kubeocean.io/policies-applied") == name and not _sound(event)
    )
    assert (await policy_reports(made, name, "Active"))["conditions"]["Valid"]["status"] == "True"
    await delete(bound.worker, POLICY, name, "--wait=false")


def _sound(event: Seen) -> bool:
    return offers(event, {"cpu": "64"})


async def _event(bound: Bound, reason: str, text: str) -> bool:
    items = await listed(bound.hub, "events", "-A", "--field-selector", f"reason={reason},involvedObject.name={bound.name}")
    return any(text in item["message"] for item in items)


async def _binding_ready(bound: Bound) -> bool:
    return condition(await get(bound.hub, "clusterbinding", bound.name), "Ready") == "True"


async def test_without_a_policy_there_is_no_node_and_the_end_of_the_last_one_drains_it(scene: MakeScene) -> None:
    """Lines 47, 57 and 104 of kubeocean-behaviour.md."""
    made = await scene(start=False)
    bound, policy = made.bound, f"all-of-{made.bound.name}"
    await bound.worker.kubectl("delete", POLICY, policy)
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes:
        made.program.start()
        await eventually(lambda: _binding_ready(bound), "the binding is served", seconds=STARTS_WITHIN)
        assert not nodes.events and not await vnode_names(made)
        await apply(bound.worker, bound.policy())
        await made.ready()
        namespace = await bound.hub.namespace()
        await apply(bound.hub, *(pod(f"p{i}", namespace, node=made.vnodes[0]) for i in range(5)))
        for i in range(5):
            await running(bound, namespace, f"p{i}")
        held = await get(bound.worker, POLICY, policy)
        [claim] = held["metadata"]["finalizers"]
        assert claim.startswith("policy.kubeocean.io/") and bound.name in claim
        await delete(bound.worker, POLICY, policy, "--wait=false")
        await only_vnodes(made, set())
        gone = await first(nodes, "the Node is deleted", lambda event: event.kind == "DELETED")
    assert gone.object["metadata"]["name"] == made.vnodes[0]
    assert not await listed(bound.hub, "pods", "-n", namespace)
    assert not await listed(bound.worker, "pods", "-n", bound.mount)
    await eventually(lambda: _all_gone(made, policy), "policy and Lease are gone")


async def _all_gone(scene: Scene, policy: str) -> bool:
    lease = await get(scene.bound.hub, "lease", scene.vnodes[0], "-n", "kube-node-lease")
    return lease is None and await get(scene.bound.worker, POLICY, policy) is None


async def test_deleted_policy_evicts_during_its_grace_and_deletes_after_it(scene: MakeScene) -> None:
    """Lines 93 and 98 of kubeocean-behaviour.md."""
    grace = 10
    made = await scene(policies=lambda bound: [bound.policy(gracefulReclaimPeriodSeconds=grace)])
    bound = made.bound
    namespace = await bound.hub.namespace()
    guarded = pod("guarded", namespace, node=made.vnodes[0])
    guarded["metadata"]["labels"] = {"guarded": "yes"}
    await apply(bound.hub, guarded, pod("free", namespace, node=made.vnodes[0]), _budget(namespace))
    for name in ("guarded", "free"):
        await running(bound, namespace, name)
    await eventually(lambda: _budget_counts(bound, namespace), "the budget knows its pod")
    with watching(bound.hub.kubeconfig, namespace=namespace) as pods:
        await delete(bound.worker, POLICY, f"all-of-{bound.name}", "--wait=false")
        asked = datetime.fromisoformat((await get(bound.worker, POLICY, f"all-of-{bound.name}"))["metadata"]["deletionTimestamp"])
        await only_vnodes(made, set())
    after = {name: (_deleted_at(pods, name) - asked).total_seconds() for name in ("free", "guarded")}
    assert after["free"] < grace <= after["guarded"] < grace + 10, after


def _deleted_at(pods: Record, name: str) -> datetime:
    """When the deletion of a pod was asked for, which its grace lies after."""
    event = pods.where(lambda event: event.object["metadata"]["name"] == name and event.deleting)[0]
    meta = event.object["metadata"]
    return datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=meta["deletionGracePeriodSeconds"])


def _budget(namespace: str) -> Body:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guarded": "yes"}}},
    }


async def _budget_counts(bound: Bound, namespace: str) -> bool:
    budget = await get(bound.hub, "pdb", "guard", "-n", namespace)
    return bool(budget.get("status", {}).get("currentHealthy") == 1)


async def test_changed_selectors_add_and_remove_nodes_all_at_once(scene: MakeScene) -> None:
    """Lines 40, 48 and 50 of kubeocean-behaviour.md."""
    made = await scene(nodes=4)
    bound, policy = made.bound, f"all-of-{made.bound.name}"
    await only_vnodes(made, {0, 1, 2, 3})
    await patch_policy(made, policy, nodeSelector=_by_name(made.nodes[0]))
    await only_vnodes(made, {0})
    await patch_policy(made, policy, nodeSelector=None)
    await only_vnodes(made, {0, 1, 2, 3})
    before = (await get(bound.hub, "clusterbinding", bound.name))["spec"]["nodeSelector"]
    await _select(bound, _by_name(*made.nodes[1:3]))
    await only_vnodes(made, {1, 2})
    await _select(bound, before)
    await only_vnodes(made, {0, 1, 2, 3})
    await made.ready()
    # Read on binding and policy themselves, these causes are nobody's accident.
    assert not await listed(bound.hub, "events", "-A", "--field-selector", f"reason=RetirementHeld,involvedObject.name={bound.name}")


def _by_name(*names: str) -> Body:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


async def _select(bound: Bound, selector: Body) -> None:
    await bound.hub.kubectl("patch", "clusterbinding", bound.name, "--type=merge", "-p", json.dumps({"spec": {"nodeSelector": selector}}))


async def test_physical_node_made_anew_gets_a_new_virtual_node(scene: MakeScene) -> None:
    """Lines 89 and 101 of kubeocean-behaviour.md."""
    made = await scene()
    bound, node = made.bound, made.nodes[0]
    namespace = await bound.hub.namespace()
    await apply(bound.hub, pod("old", namespace, node=made.vnodes[0]))
    await running(bound, namespace, "old")
    before = await _existing(made)
    await delete(bound.worker, "node", node, "--wait=false")
    # Its kubelet lives and registers it again.
    after = await eventually(lambda: _made_anew(made, before), "a new virtual node")
    physical = await get(bound.worker, "node", node)
    assert after["metadata"]["labels"]["kubeocean.io/physical-node-uid"] == physical["metadata"]["uid"]
    assert await get(bound.hub, "pod", "old", "-n", namespace) is None
    await made.ready()
    await apply(bound.hub, pod("new", namespace, node=made.vnodes[0]))
    await running(bound, namespace, "new")


async def _made_anew(scene: Scene, before: Body) -> Body | None:
    node = await vnode(scene)
    return node if node is not None and node["metadata"]["uid"] != before["metadata"]["uid"] else None


async def _names_its_edge(closing: Closing, name: str) -> None:
    status = await policy_status(closing.scene, name)
    if datetime.now(UTC) < closing.edge:
        assert status.get("nextEdge") and datetime.fromisoformat(status["nextEdge"]) == closing.edge


async def test_window_edge_is_acted_on_within_a_second(closing: Closing) -> None:
    """Line 97 of kubeocean-behaviour.md."""
    made, name = closing.scene, default_policy(closing.scene)
    await holds(lambda: _names_its_edge(closing, name))
    late = [await _closed_after(closing, closing.edge)]
    while min(late) >= ACTS_ON_EDGES_WITHIN and len(late) < EDGES:
        await patch_policy(made, name, **open_now())
        await eventually(lambda: _open(made), "the node is open again")
        late.append(await _closed_after(closing, await _close_at_an_edge(made)))
    print(f"closed {late} s after the edge")
    assert 0 <= min(late) < ACTS_ON_EDGES_WITHIN, late
    assert (await policy_reports(made, name, "Inactive"))["activeTimeWindow"] is False


async def _closed_after(closing: Closing, edge: datetime) -> float:
    """Seconds until the node was closed, by the API server's clock."""
    ahead = (edge - datetime.now(UTC)).total_seconds()
    await eventually(lambda: _closed(closing.scene), "closed at the edge", seconds=max(0.0, ahead) + PATIENCE)

    def written() -> list[float]:
        times = [call.at for call in closing.audit.writes() if (call.verb, call.what) == ("patch", "nodes")]
        # One that comes before its time is seen, too.
        return [(at - edge).total_seconds() for at in times if at > edge - SOONEST / 2]

    return float((await eventually(written, "the audit log has it"))[0])
