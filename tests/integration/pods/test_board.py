"""Statuses on their way to a real API server: what is written, what is not, and what survives."""

from __future__ import annotations

from typing import Any

from tests.integration.pods.conftest import Scripted, World, condition
from tests.support.program import eventually
from vkubelet.api.objects import PODS, Key
from vkubelet.clock import SystemClock
from vkubelet.provider import ContainerReport, PodReport, Running, all_running


def version(pod: dict[str, Any] | None) -> str:
    assert pod is not None
    return str(pod["metadata"]["resourceVersion"])


async def test_restart_with_fifty_running_pods_writes_nothing(world: World) -> None:
    provider = Scripted("board-1")
    async with world.side(provider) as pods:
        for number in range(50):
            await world.create(f"web-{number}", "board-1")
        for number in range(50):
            await world.running(f"web-{number}")
        await pods.published()
    before = await world.client.list(PODS)
    async with world.watched() as record, world.side(provider):
        await eventually(lambda: sum(verb == "sync" for verb, _, _ in provider.calls) == 100, "each pod synced once more")
        await SystemClock().sleep(1.0)
        assert record.events == []
    after = await world.client.list(PODS)
    ours = {pod.key: pod.metadata.resource_version for pod in before.items if pod.node == "board-1"}
    assert ours == {pod.key: pod.metadata.resource_version for pod in after.items if pod.node == "board-1"}
    assert len(provider.calls) == 100


async def test_equal_report_is_not_written_again(world: World) -> None:
    provider = Scripted("board-2")
    async with world.side(provider) as pods:
        created = await world.create("web", "board-2")
        await world.running("web")
        await pods.published()
        before = version(await world.read("web"))
        pods.report(all_running(created, ips=["10.9.9.9"]))
        await SystemClock().sleep(0.5)
        assert version(await world.read("web")) == before


async def test_burst_of_reports_is_one_write(world: World) -> None:
    provider = Scripted("board-3")
    async with world.side(provider) as pods:
        created = await world.create("web", "board-3")
        await world.running("web")
        async with world.watched() as record:
            for number in range(1, 21):
                pods.report(PodReport(created.ref, [ContainerReport("main", Running(), restarts=number)], ["10.9.9.9"]))
            await world.until("web", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 20, "last one")
            # The watch may tell of it later than the read.
            await eventually(lambda: record.events, "the write is seen")
            await SystemClock().sleep(0.3)
            assert len(record.events) == 1


async def test_report_that_comes_before_the_watch_is_synced_is_not_lost(world: World) -> None:
    provider = Scripted("board-4", reports=False)
    created = await world.create("web", "board-4")
    async with world.side(provider) as pods:
        pods.report(all_running(created, ips=["10.9.9.9"]))
        assert pods.store.by_uid(created.metadata.uid) is None
        await world.running("web")


async def test_ready_set_to_false_by_another_is_repaired_at_once_and_a_fight_is_slow(world: World) -> None:
    provider = Scripted("board-5")
    async with world.side(provider):
        created = await world.create("web", "board-5")
        await world.running("web")
        intruder = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
        await world.client.patch(PODS, created.ref, intruder, subresource="status")
        # At once, and not with the sweep of every minute.
        pod = await world.until("web", lambda pod: condition(pod, "Ready") == "True", "repaired")
        assert not any(c.get("reason") for c in pod["status"]["conditions"] if c["type"] == "Ready")
        async with world.watched() as record:
            began = SystemClock().monotonic()
            for _ in range(30):
                await world.client.patch(PODS, created.ref, intruder, subresource="status")
                await SystemClock().sleep(0.05)
            repairs = record.where(lambda seen: seen.condition("Ready") == "True")
            # At most one a second, and ever fewer.
            assert len(repairs) <= SystemClock().monotonic() - began + 1
        await world.until("web", lambda pod: condition(pod, "Ready") == "True", "repaired in the end")


async def test_conditions_labels_and_annotations_of_others_survive_our_writes(world: World) -> None:
    provider = Scripted("board-6")
    async with world.side(provider) as pods:
        created = await world.create("web", "board-6", readinessGates=[{"conditionType": "example.com/gate"}])
        await world.until("web", lambda pod: condition(pod, "ContainersReady") == "True" and condition(pod, "Ready") == "False", "gated")
        gate = {"status": {"conditions": [{"type": "example.com/gate", "status": "True"}]}}
        await world.client.patch(PODS, created.ref, gate, subresource="status")
        await world.client.patch(PODS, created.ref, {"metadata": {"annotations": {"theirs": "1"}, "labels": {"theirs": "2"}}})
        await world.until("web", lambda pod: condition(pod, "Ready") == "True", "gate open")
        pods.report(PodReport(created.ref, [ContainerReport("main", Running(), ready=False)], ["10.9.9.9"]))
        pod = await world.until("web", lambda pod: condition(pod, "Ready") == "False", "unready")
        assert condition(pod, "example.com/gate") == "True"
        assert (pod["metadata"]["annotations"]["theirs"], pod["metadata"]["labels"]["theirs"]) == ("1", "2")


async def test_write_that_met_a_newer_version_is_computed_again(world: World) -> None:
    provider = Scripted("board-7")
    async with world.side(provider) as pods:
        created = await world.create("web", "board-7")
        await world.running("web")
        provider.reports = False
        for number in range(20):
            await world.client.patch(PODS, created.ref, {"metadata": {"annotations": {"theirs": str(number)}}})
            pods.report(PodReport(created.ref, [ContainerReport("main", Running(), restarts=number)], ["10.9.9.9"]))
        pod = await world.until("web", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 19, "last one")
        assert pod["metadata"]["annotations"]["theirs"] == "19"


async def test_terminal_phase_is_never_written_over(world: World) -> None:
    provider = Scripted("board-8")
    async with world.side(provider) as pods:
        created = await world.create("web", "board-8")
        await world.running("web")
        await world.client.patch(PODS, created.ref, {"status": {"phase": "Failed", "reason": "Evicted"}}, subresource="status")
        await eventually(lambda: (seen := pods.store.by_uid(created.metadata.uid)) is not None and seen.terminal, "seen")
        pods.report(all_running(created, ips=["10.9.9.8"]))
        await SystemClock().sleep(0.5)
        pod = await world.read("web")
        assert pod is not None and (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Evicted")


async def test_true_status_travels_with_its_annotations_and_is_no_reason_to_sync_again(world: World) -> None:
    provider = Scripted("board-9", reports=False)
    async with world.watched() as record, world.side(provider) as pods:
        created = await world.create("web", "board-9")
        await eventually(lambda: provider.verbs("web") == ["sync"], "synced")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        mine = {"type": "example.com/mine", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "conditions": [ready, mine], "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}, {"ip": "fd00::1"}]}
        pods.set_pod_status(created.ref, status, annotations={"example.com/physical": "web-1"})
        pod = await world.running("web")
        assert pod["metadata"]["annotations"]["example.com/physical"] == "web-1"
        assert pod["status"]["podIPs"] == [{"ip": "10.1.1.1"}, {"ip": "fd00::1"}]
        pods.set_pod_status(created.ref, {"phase": "Running", "conditions": [ready], "podIP": "10.2.2.2", "podIPs": [{"ip": "10.2.2.2"}]})
        pod = await world.until("web", lambda pod: pod["status"]["podIP"] == "10.2.2.2", "new address")
        assert pod["status"]["podIPs"] == [{"ip": "10.2.2.2"}]
        assert condition(pod, "example.com/mine") == "" and condition(pod, "PodScheduled") == ""
        # The watch may tell of the last write later than the read.
        await eventually(lambda: len(record.events) >= 3, "both writes are seen")
        await SystemClock().sleep(0.3)
        assert provider.verbs("web") == ["sync"]
        assert [seen.kind for seen in record.events] == ["ADDED", "MODIFIED", "MODIFIED"]


async def test_status_of_an_old_uid_never_touches_its_successor(world: World) -> None:
    provider = Scripted("board-10")
    async with world.side(provider) as pods:
        first = await world.create("web", "board-10")
        await world.running("web")
        await world.delete("web", grace=0)
        await world.absent("web")
        second = await world.create("web", "board-10")
        pods.report(PodReport(first.ref, [ContainerReport("main", Running(), restarts=99)], ["10.6.6.6"]))
        pod = await world.running("web")
        await SystemClock().sleep(0.3)
        assert pod["metadata"]["uid"] == second.metadata.uid
        assert (await world.client.get(PODS, Key(world.namespace, "web"))).status["containerStatuses"][0]["restartCount"] == 0
