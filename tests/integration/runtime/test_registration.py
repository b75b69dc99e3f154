"""What a new virtual node looks like in the cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl

from tests.integration.runtime.fleet import Body, Fleet, complaints, listens, port
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.troubles import Trouble


async def test_node_bears_labels_taints_capacity_address_and_port(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program(node={"taint": "virtual-kubelet.io/provider=puppet:NoSchedule"}) as program:
        (node,) = await fleet.ready([name], program=program)
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "vkubelet.io/instance": fleet.instance,
            "puppet": name,
        }
        assert labels.items() <= node["metadata"]["labels"].items()
        ours = [taint for taint in node["spec"]["taints"] if not taint["key"].startswith("node.kubernetes.io/")]
        assert ours == [{"key": "virtual-kubelet.io/provider", "value": "puppet", "effect": "NoSchedule"}]
        resources = {"cpu": "8", "memory": "32Gi", "pods": "500"}
        assert node["status"]["capacity"] == node["status"]["allocatable"] == resources
        assert node["status"]["addresses"] == [{"type": "InternalIP", "address": fleet.plane.host_address}]
        assert listens(node)
        assert complaints(program) == []


async def test_lease_names_the_node_as_holder_and_owner(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        (node,) = await fleet.ready([name], program=program)
        lease = await eventually(lambda: fleet.lease(name), "a Lease")
        assert lease["spec"]["holderIdentity"] == name
        assert lease["spec"]["leaseDurationSeconds"] == 40
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        assert lease["metadata"]["ownerReferences"] == [owner]


async def test_node_is_ready_only_when_its_server_listens_and_can_be_verified(fleet: Fleet) -> None:
    """A handshake is tried the moment the first node is seen Ready."""
    names = fleet.declare(" ".join(map(str, range(20))))
    server = {"node_address": fleet.plane.host_address, "main_port": 0, "certificate": "csr", "approve_own_csr": True}
    async with fleet.watched("nodes") as seen:
        with fleet.program(server=server) as program:
            ready = await eventually(lambda: seen.where(lambda event: event.condition("Ready") == "True"), "one is Ready", seconds=60)
            status = ready[0].object["status"]
            address, port = status["addresses"][0]["address"], status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
            _, writer = await asyncio.open_connection(address, port, ssl=ssl.create_default_context(cafile=fleet.plane.ca))
            writer.close()
            await fleet.ready(names, program=program)
            assert len(await fleet.nodes()) == 20
    ready = seen.where(lambda event: event.condition("Ready") == "True")
    assert all(event.object["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] for event in ready)


async def test_node_is_not_ready_before_its_pods_are_known(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    fleet.kubeconfig = fleet.plane.client_config(fleet.instance)
    for role, resources in (("nodes", "nodes,nodes/status,leases.coordination.k8s.io,events,configmaps"), ("pods", "pods,pods/status")):
        await fleet.plane.kubectl("create", "clusterrole", f"{fleet.instance}-{role}", "--verb=*", f"--resource={resources}")
    await allow(fleet, "nodes")
    try:
        with fleet.program() as program:
            await eventually(lambda: program.text().count('"path": "/api/v1/pods"') >= 2, "it asks for pods in vain, again and again")
            await eventually(lambda: fleet.calls("run"), "the provider runs and has declared the node")
            assert await fleet.node(name) is None
            await allow(fleet, "pods")
            await fleet.ready([name], program=program)
    finally:
        names = [f"{fleet.instance}-{role}" for role in ("nodes", "pods")]
        await fleet.plane.kubectl("delete", "clusterrole,clusterrolebinding", "--ignore-not-found", *names)


async def allow(fleet: Fleet, role: str) -> None:
    name = f"{fleet.instance}-{role}"
    await fleet.plane.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={fleet.instance}")


async def test_port_is_read_back_from_the_node(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        (node,) = await fleet.ready([name], program=program)
    moved = _free_behind(fleet.plane.host_address, port(node))
    change = f'{{"status":{{"daemonEndpoints":{{"kubeletEndpoint":{{"Port":{moved}}}}}}}}}'
    await fleet.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", change)
    with fleet.program(log="b") as program:
        await eventually(lambda: listens({**node, "status": {**node["status"], **_endpoint(moved)}}), "listens where it did")
        async with fleet.watched("nodes") as seen:
            await fleet.create("p", node=name)
            await fleet.running("p")
        assert not [event for event in seen.events if port(event.object) != moved]
    assert program.process.returncode == 0


async def test_ports_of_earlier_nodes_open_before_all_are_written(fleet: Fleet) -> None:
    """As after a restart or a change of the leader: with thousands of nodes the last one is written many seconds later."""
    names = fleet.declare(" ".join(map(str, range(40))))
    with fleet.program() as program:
        nodes = await fleet.ready(names, program=program)
    writes = Trouble(when=lambda asked: asked.is_write and asked.resource == "nodes", hangs=True)
    with Gate() as gate, gate.trouble(writes) as held:
        fleet.kubeconfig = gate.lead(fleet.plane, fleet.plane.kubeconfig)
        with fleet.program(log="b", node={"taint": "example.com/later=yes:NoSchedule"}) as program:
            await eventually(lambda: held.met, "a node is written", by=[program])
            await eventually(lambda: all(listens(node) for node in nodes), "all listen where they did", by=[program])
            assert len(held.met) <= 16, "as many as are written at a time"


def _free_behind(address: str, number: int) -> int:
    """A port of a node's range that nobody has."""
    for candidate in (*range(number + 1, 30000), *range(15000, number)):
        try:
            socket.create_server((address, candidate)).close()
        except OSError:
            continue
        return candidate
    raise AssertionError("no port is free")


def _endpoint(number: int) -> Body:
    return {"daemonEndpoints": {"kubeletEndpoint": {"Port": number}}}
