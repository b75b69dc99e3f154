"""Many nodes, many pods, by the mock provider."""

from __future__ import annotations

import time

from tests.benchmarks.burst import Bursts
from tests.integration.runtime.fleet import Body, Fleet, audited, complaints
from tests.support.outside import Outside
from tests.support.program import eventually

TAINT = "virtual-kubelet.io/provider"
NODES = 100
PODS = 500
TRIES, LEAST_RATIO = 3, 0.15
"""Of the burst, compared with mere creation; `make bench` asks for 0.4."""


async def test_no_pod_without_the_toleration_is_ever_bound_to_a_new_node(scheduled: Fleet) -> None:
    fleet = scheduled
    names = [fleet.name(f"n-{number}") for number in range(NODES)]
    waiting = [f"intruder-{number}" for number in range(20)]
    with fleet.program("mock", node={}, provider={"node": fleet.name("n"), "nodes": NODES, "resolve": False}) as program:
        async with fleet.watched() as seen:
            await fleet.create(*waiting)
            began = time.monotonic()
            await fleet.ready(names, seconds=60, program=program)
            print(f"{NODES} nodes Ready after {time.monotonic() - began:.1f} s")
            uids = {node["metadata"]["uid"] for node in await fleet.nodes()}

            async def all_new() -> bool:
                now = {node["metadata"]["uid"] for node in await fleet.nodes()}
                return len(now) == NODES and not now & uids

            await fleet.delete_nodes()
            began = time.monotonic()
            await eventually(all_new, "all are registered again", every=0.3)
            await fleet.ready(names, program=program)
            print(f"again after {time.monotonic() - began:.1f} s")
            # The scheduler looked at these nodes: who tolerates the taint gets one.
            began = time.monotonic()
            await fleet.create("guest", tolerations=[{"key": TAINT, "operator": "Exists"}])
            await fleet.running("guest")
            print(f"the guest ran after {time.monotonic() - began:.1f} s")
        bound = {event.key for event in seen.events if event.object["spec"].get("nodeName")}
        assert bound == {f"{fleet.namespace}/guest"}
        assert len({event.key for event in seen.events}) == len(waiting) + 1
        assert complaints(program) == []


async def test_node_is_written_once_however_its_amounts_are_spelled(fleet: Fleet) -> None:
    user = f"{fleet.instance}-spelling"
    fleet.kubeconfig = fleet.plane.client_config(user, ["system:masters"])
    name = fleet.name("m")
    amounts = {"cpu": "0.5", "memory": "262144Ki", "pods": "1000"}
    with fleet.program("mock", provider={"node": name, "resolve": False, **amounts}, lease={"renew_every": 0.5}) as program:
        await fleet.ready([name], program=program)

        def writes(resource: str) -> list[Body]:
            events = (event for event in audited(fleet.plane, user) if event["objectRef"]["resource"] == resource)
            return [event for event in events if event["verb"] not in ("get", "list", "watch")]

        await eventually(lambda: len(writes("leases")) >= 8, "some seconds have passed", every=0.3)
        assert [event["verb"] for event in writes("nodes")] == ["create", "patch"]
        assert complaints(program) == []


async def test_burst_of_five_hundred_pods_runs_within_seconds_by_one_write_each(fleet: Fleet) -> None:
    user = f"{fleet.instance}-burst"
    fleet.kubeconfig = fleet.plane.client_config(user, ["system:masters"])
    name = fleet.name("m")
    with fleet.program("mock", node={}, provider={"node": name, "resolve": False}) as program:
        await fleet.ready([name], program=program)
        bursts = Bursts(fleet, name, Outside(program.process.pid), pods=PODS)
        # Others may use the machine in one half of the comparison and not in the other, so the best of some tries counts.
        while len(bursts.ratios) < TRIES and max(bursts.ratios, default=0.0) <= LEAST_RATIO:
            await bursts.round()
        pods, rate = PODS * len(bursts.rates), max(bursts.rates)
        print(f"{rate:.0f} pods/s ran, {max(bursts.ratios):.2f} of those merely created; {min(bursts.cpu) * 1000:.2f} ms of CPU for each")
        # No ceiling of our own, as that of the Go library of 10 a second.
        assert rate > 20
        assert max(bursts.ratios) > LEAST_RATIO
        assert min(bursts.cpu) < 0.01

        def writes() -> list[Body]:
            events = (event for event in audited(fleet.plane, user) if event["objectRef"]["resource"] == "pods")
            return [event for event in events if event["verb"] not in ("get", "list", "watch")]

        # A write shows in the pod before its answer is in the audit log.
        await eventually(lambda: len(writes()) >= pods, "every write is answered", every=0.3)
        assert {(event["verb"], event["objectRef"]["subresource"], event["responseStatus"]["code"]) for event in writes()} == {
            ("patch", "status", 200)
        }
        assert len(writes()) == pods
        assert complaints(program) == []
        await bursts.clear()


async def test_two_hundred_deleted_pods_end_soon(fleet: Fleet) -> None:
    name = fleet.name("m")
    pods = [f"pod-{number}" for number in range(200)]
    with fleet.program("mock", provider={"node": name, "resolve": False}) as program:
        await fleet.ready([name], program=program)
        await fleet.create(*pods, node=name)

        async def all_run() -> bool:
            return sum(pod["status"].get("phase") == "Running" for pod in await fleet.pods()) == len(pods)

        await eventually(all_run, "all run", every=0.3)
        began = time.monotonic()
        await fleet.kubectl("delete", "pods", "--all", "--wait=false")

        async def none_left() -> bool:
            return not await fleet.pods()

        # One after the other they would take three minutes, as each has a second of grace.
        await eventually(none_left, "all are gone", every=0.3)
        print(f"all gone {time.monotonic() - began:.1f} s after their deletion began")
        assert complaints(program) == []
