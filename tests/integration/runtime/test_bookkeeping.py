"""What the program does about pods that end, vanish, or are known to one side only; the puppet's backend remembers everything."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tests.integration.runtime.fleet import Body, Fleet
from tests.support.bound import condition
from tests.support.program import eventually

SWEEP = {"list_interval": 0.5}


def workload(fleet: Fleet, node: str, *names: str) -> None:
    """In the backend of that node, and unknown to the cluster."""
    directory = fleet.directory / "pods"
    directory.mkdir(exist_ok=True)
    for name in names:
        ref = {"namespace": fleet.namespace, "name": name, "uid": f"uid-of-{name}", "node": node}
        body = {"ref": ref, "containers": ["main"], "started": "2026-01-01T00:00:00+00:00", "ended": ""}
        (directory / f"uid-of-{name}").write_text(json.dumps(body))


def ended(fleet: Fleet) -> set[str]:
    return {line.split()[1] for line in fleet.calls("delete ")}


async def alarms(fleet: Fleet, node: str) -> list[Body]:
    selector = f"reason=TooManyOrphans,involvedObject.name={node}"
    items: list[Body] = json.loads(await fleet.plane.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"]
    return items


async def test_pods_of_others_stay_alone_and_what_vanishes_or_stays_is_told(fleet: Fleet) -> None:
    (node,) = fleet.declare("a")
    fleet.tell("stubborn", "stubborn")
    with fleet.program() as program:
        await fleet.ready([node], program=program)
        await fleet.create("foreign", node="somebody-elses")
        await fleet.create("lost", "stubborn", node=node)
        await fleet.running("lost", "stubborn")
        fleet.tell("lose", "lost")
        lost = await fleet.until_pod("lost", lambda body: body["status"]["phase"] == "Failed", "Failed")
        assert (lost["status"]["reason"], condition(lost, "Ready")) == ("ProviderLost", "False")
        assert lost["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
        began = time.monotonic()
        await fleet.kubectl("delete", "pod", "stubborn", "--grace-period=3", "--wait=false")
        await eventually(lambda: fleet.calls("grace stubborn")[1:], "it is told again")
        assert time.monotonic() - began > 2, "not before the grace was over"
        assert fleet.calls("grace stubborn")[-1] == "grace stubborn 0"
        await eventually(lambda: absent(fleet, ["stubborn"]), "the object goes with its containers")
        assert fleet.calls("sync lost") == ["sync lost"], "what is lost is not made again"
    assert not [call for call in fleet.calls() if "foreign" in call]


async def absent(fleet: Fleet, names: Sequence[str]) -> bool:
    return not {pod["metadata"]["name"] for pod in await fleet.pods()}.intersection(names)


async def test_start_ends_what_was_deleted_meanwhile_and_orphans_but_never_too_many(fleet: Fleet) -> None:
    (node,) = fleet.declare("a")
    with fleet.program(pods=SWEEP) as first:
        await fleet.ready([node], program=first)
        await fleet.create("asked", "forced", "stays", node=node)
        await fleet.running("asked", "forced", "stays")
        assert first.terminate() == 0
    await fleet.kubectl("delete", "pod", "asked", "--grace-period=20", "--wait=false")
    await fleet.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    fleet.tell("blind")
    many = [f"many-{number}" for number in range(6)]
    workload(fleet, node, *many)
    workload(fleet, "somebody-elses", "foreign")
    with fleet.program(log="b", pods=SWEEP) as second:
        await eventually(lambda: absent(fleet, ["asked"]), "the deletion that nobody heard of is done")
        # Nothing is an orphan as long as the backend can not be listed.
        assert ended(fleet) == {"asked"}
        fleet.untell("blind")
        await eventually(lambda: alarms(fleet, node), "too many are an alarm")
        assert ended(fleet) == {"asked"}
        for name in many[:2]:
            (fleet.directory / "pods" / f"uid-of-{name}").unlink()
        await eventually(lambda: ended(fleet) == {"asked", "forced", *many[2:]}, "as many as may be are ended")
        await fleet.running("stays")
        assert fleet.calls("start stays") == ["start stays"]
        assert second.alive


async def test_a_backend_that_is_only_asked_shows_the_same(fleet: Fleet) -> None:
    node = fleet.name("polled")
    with fleet.program("mock", provider={"node": node, "poll_interval": 0.3}) as program:
        await fleet.ready([node], program=program)
        script = {"mock.vkubelet.io/run-for": "1"}
        spec = {"nodeName": node, "restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ends", "annotations": script}, "spec": spec}
        await fleet.kubectl("create", "-f", "-", stdin=json.dumps(body))
        await fleet.create("goes", node=node)
        await fleet.until_pod("ends", lambda pod: pod["status"]["phase"] == "Succeeded", "Succeeded")
        await fleet.running("goes")
        await fleet.kubectl("delete", "pod", "goes", "--grace-period=30", "--wait=false")
        await eventually(lambda: absent(fleet, ["goes"]), "gone when the backend does not show it any more")
