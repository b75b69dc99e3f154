"""The mock provider behind the pods' side, on a real API server."""

from __future__ import annotations

from tests.integration.pods.conftest import World, condition
from tests.support.program import eventually
from vkubelet_providers.minimal import Minimal
from vkubelet_providers.mock import Mock


def script(**values: object) -> dict[str, dict[str, str]]:
    return {"annotations": {f"mock.vkubelet.io/{key.replace('_', '-')}": str(value) for key, value in values.items()}}


async def test_scripts_of_pods_on_several_nodes_come_true(world: World) -> None:
    mock = Mock(Mock.Settings(node="mock-a", nodes=2))
    async with world.side(mock):
        await world.create("late", "mock-a-0", metadata=script(start_delay=0.5, ready_delay=0.5))
        await world.create("job", "mock-a-1", metadata=script(run_for=0.3, exit_code=0), restartPolicy="Never")
        await world.create("bad-job", "mock-a-1", metadata=script(run_for=0.3, exit_code=7), restartPolicy="Never")
        await world.create("crash", "mock-a-0", metadata=script(run_for=0.3, exit_code=1, restart_delay=0.2))
        await world.create("refused", "mock-a-0", metadata=script(reject="OutOfcpu"))
        await world.until("late", lambda pod: condition(pod, "Ready") == "True", "Ready")
        await world.until("job", lambda pod: pod["status"]["phase"] == "Succeeded", "Succeeded")
        failed = await world.until("bad-job", lambda pod: pod["status"]["phase"] == "Failed", "Failed")
        assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
        crash = await world.until("crash", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 2, "restarts")
        assert crash["status"]["phase"] == "Running"
        refused = await world.until("refused", lambda pod: pod["status"]["phase"] == "Failed", "rejected")
        assert refused["status"]["reason"] == "OutOfcpu"


async def test_deletion_takes_as_long_as_the_script_says(world: World) -> None:
    mock = Mock(Mock.Settings(node="mock-b"))
    async with world.watched() as record, world.side(mock):
        await world.create("quick", "mock-b")
        await world.create("slow", "mock-b", metadata=script(stop_delay=600))
        await world.running("quick")
        await world.running("slow")
        # Neither the grace of the one nor the script of the other is waited for here.
        await world.delete("quick", grace=600)
        await world.absent("quick")
        await world.delete("slow", grace=2)
        await world.absent("slow")
        assert not mock.pods
        await eventually(lambda: len(record.where(lambda seen: seen.kind == "DELETED")) == 2, "both deleted")
    ends = record.where(lambda seen: seen.kind == "DELETED")
    assert {end.object["metadata"]["name"]: end.phase for end in ends} == {"quick": "Succeeded", "slow": "Failed"}


async def test_backend_that_tells_nothing_is_polled(world: World) -> None:
    mock = Mock(Mock.Settings(node="mock-p", poll_interval=0.2))
    async with world.side(mock):
        await world.create("web", "mock-p", metadata=script(ready_delay=0.3))
        await world.until("web", lambda pod: condition(pod, "Ready") == "True", "Ready")
        await world.create("job", "mock-p", metadata=script(run_for=0.3, exit_code=7), restartPolicy="Never")
        await world.until("job", lambda pod: pod["status"]["phase"] == "Failed", "Failed")
        await world.delete("web", grace=600)
        await world.absent("web")


async def test_minimal_provider_runs_and_ends_pods(world: World) -> None:
    async with world.side(Minimal(Minimal.Settings("tiny"))):
        await world.create("web", "tiny", initContainers=[{"name": "first", "image": "image"}])
        pod = await world.running("web")
        assert condition(pod, "Initialized") == condition(pod, "Ready") == "True"
        await world.delete("web")
        await world.absent("web")
