"""What is read of both clusters becomes the input of a decision as in the process of the binding."""

from __future__ import annotations

from kubeocean.binding.virtual_nodes import description_of
from kubeocean.commands.reading import binding_of, empty_worker, lease_of
from kubeocean.leasing.capacity import Usage
from kubeocean.model import keys
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.nodes.describe import closed_since, lease_record
from tests.unit.kubeocean.builders import OWNER, binding, node, pod, unknown
from tests.unit.kubeocean.world import World, listed, local_pod, policy_body, process
from vkubelet.api.quantity import format_resources
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client


async def test_the_lease_that_is_read_is_the_one_that_the_process_decided() -> None:
    """The real reconcilers decide, and what they wrote is read back."""
    world = World(nodes=2, cpu="4")
    world.policies["night"] = policy_body("night", timeWindows=[{"start": "00:00", "end": "11:59"}], forceReclaim=True)
    world.local["one"] = local_pod("500m")
    async with process(world) as running:
        world.write_nodes()
        virtual = {each.metadata.name: each for each in world.hub_nodes.store}
        made = await lease_of(binding(), worker=running.worker, policies=running.policies.current, virtual=virtual, pods=world.host.store)
        assert [each.virtual for each in made.nodes] == sorted(virtual)
        for each in made.nodes:
            last = description_of(virtual[each.virtual])
            assert each.record == lease_record(last) is not None and each.closed_since == closed_since(last, each.record)
            assert format_resources(each.used) == format_resources(running.nodes.usage.local(each.facts.name))
            assert len(each.pods) == world.pods
        assert [policy.name for policy in made.policies] == ["night"] and made.named("foreign") is None


async def test_nodes_that_are_never_leased_have_their_reason() -> None:
    worker = empty_worker(Client(Connection("https://worker.invalid")), binding(), OWNER)
    for name, more in (
        ("gone", {"deletionTimestamp": "2026-01-05T08:00:00Z"}),
        ("other", {"labels": {keys.NODE_TYPE: keys.VIRTUAL_KUBELET}}),
        ("plain", {}),
        ("replaced", {}),
    ):
        worker.nodes.adopt(node(name=name, uid=name, resourceVersion="5", **more))
    listed(worker.nodes)
    old = keys.vnode_name("demo", "replaced")
    virtual = {old: node(name=old, labels={keys.PHYSICAL_NODE_UID: "earlier"})}
    made = await lease_of(binding(), worker=worker, policies=[], virtual=virtual, pods=[])
    assert {each.facts.name: each.excluded.partition(",")[0] for each in made.nodes} == {
        "gone": "the physical node is being deleted",
        "other": "it is a virtual node itself",
        "plain": "",
        "replaced": "its virtual node was created for an earlier physical node of this name",
    }


async def test_pods_that_use_no_leased_capacity_are_not_counted() -> None:
    worker = empty_worker(Client(Connection("https://worker.invalid")), binding(), OWNER)
    worker.nodes.adopt(node(name="node-1", resourceVersion="5"))
    pods = [
        pod(),
        pod(namespace="kube-system", uid="s"),
        pod(uid="t", status={"phase": "Failed"}),
        pod(uid="d", deletionTimestamp="2026-01-05T08:00:00Z"),
    ]
    (only,) = (await lease_of(binding(), worker=worker, policies=[], virtual={}, pods=pods)).nodes
    assert [each.ref.uid for each in only.pods] == ["uid-1"] and Usage().local("node-1") == {}


async def test_the_zone_of_the_process_is_read_from_the_status_of_a_policy() -> None:
    body = {**policy_body("p"), "status": {"timeZone": "Europe/Berlin"}}
    worker = empty_worker(Client(Connection("https://worker.invalid")), binding(), OWNER)
    seen = [ResourceLeasingPolicy.parse(unknown(body))]
    assert str((await lease_of(binding(), worker=worker, policies=seen, virtual={}, pods=[])).terms.zone) == "Europe/Berlin"
    fixed = binding({"timeZone": "Asia/Tokyo"})
    assert str((await lease_of(fixed, worker=worker, policies=seen, virtual={}, pods=[])).terms.zone) == "Asia/Tokyo"


def test_the_binding_of_a_node_is_found_by_its_label() -> None:
    found = [binding(), binding(name="far")]
    assert binding_of(node(labels={keys.CLUSTER_BINDING: "far"}), found) is found[1]
    assert binding_of(node(), found) is None
