"""From the binding of a pod to its end, as a real API server sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from kubernetes import client as k8s

from tests.integration.pods.conftest import HOST_IP, Scripted, World, condition
from tests.integration.tries import median_within
from tests.support.program import eventually
from tests.support.witness import Seen
from vkubelet.api.objects import PODS
from vkubelet.clock import SystemClock
from vkubelet.control.informer import Change
from vkubelet.errors import PodRejected, Unavailable
from vkubelet.provider import ContainerReport, PodReport, Terminated

GRACE = 300
"""Seconds that nobody waits here: what ends does not end by them, nor by the sweep of every minute."""


async def test_bound_pod_is_handed_over_once_and_runs_with_its_whole_status(world: World) -> None:
    provider = Scripted("life-1")
    async with world.side(provider):
        await world.create("web", "life-1")
        pod = await world.running("web")
        assert condition(pod, "Ready") == condition(pod, "ContainersReady") == "True"
        status = pod["status"]
        assert (status["podIP"], status["hostIP"], status["qosClass"]) == ("10.9.9.9", HOST_IP, "BestEffort")
        assert status["observedGeneration"] == pod["metadata"]["generation"]
        assert status["containerStatuses"][0]["started"] is True
        assert provider.verbs("web") == ["sync"]


async def test_label_change_is_synced_once_and_status_changes_are_not(world: World) -> None:
    provider = Scripted("life-2")
    async with world.side(provider):
        created = await world.create("web", "life-2")
        await world.running("web")
        await world.client.patch(PODS, created.ref, {"metadata": {"labels": {"a": "b"}}})
        await eventually(lambda: provider.verbs("web") == ["sync", "sync"], "second sync")
        await world.client.patch(PODS, created.ref, {"status": {"message": "x"}}, subresource="status")
        await world.until("web", lambda pod: "message" not in pod["status"] or pod["status"]["message"] == "x", "written")
        assert provider.verbs("web") == ["sync", "sync"]


async def test_pods_of_other_nodes_never_reach_the_provider(world: World) -> None:
    provider = Scripted("life-3")
    async with world.side(provider) as pods:
        await world.create("foreign", "somebody-elses")
        await world.create("ours", "life-3")
        await world.running("ours")
        assert provider.verbs("foreign") == []
        assert pods.store.by_name(world.namespace, "foreign") is None
        assert [pod.ref.name for pod in pods.store] == ["ours"]


def observes_its_deletion(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["observedGeneration"] == pod["metadata"]["generation"] > 1)


async def test_graceful_deletion_passes_the_grace_once_and_ends_soon_after_the_report(world: World) -> None:
    provider = Scripted("life-4", gone_after_delete=False)
    names, deleted = iter("abcdefgh"), list[Seen]()
    async with world.watched() as record, world.side(provider) as pods:

        async def once() -> float:
            name = next(names)
            created = await world.create(name, "life-4")
            await world.running(name)
            await world.delete(name, grace=GRACE)
            await eventually(lambda: provider.graces(name), "told")
            assert GRACE - 5 < provider.graces(name)[0] <= GRACE
            await world.until(name, observes_its_deletion, "deletion observed")
            began = SystemClock().monotonic()
            pods.report(PodReport(created.ref, [ContainerReport("main", Terminated(0))]))
            pods.pod_gone(created.ref)
            uid = created.metadata.uid
            (last,) = await eventually(lambda: record.where(lambda seen: (seen.kind, seen.uid) == ("DELETED", uid)), "DELETED seen")
            assert len(provider.graces(name)) == 1
            deleted.append(last)
            return float(last.at) - began

        await median_within(1.0, once, "the end after its report")
    for last in deleted:
        assert last.phase == "Succeeded"
        assert "terminated" in last.object["status"]["containerStatuses"][0]["state"]


async def test_terminal_report_alone_removes_the_object_and_the_provider_is_not_pressed(world: World) -> None:
    provider = Scripted("life-5", gone_after_delete=False)
    async with world.side(provider) as pods:
        created = await world.create("web", "life-5")
        await world.running("web")
        await world.delete("web", grace=300)
        await eventually(lambda: provider.graces("web"), "told")
        pods.report(PodReport(created.ref, [ContainerReport("main", Terminated(1))]))
        await world.absent("web")
        await SystemClock().sleep(0.5)
        assert len(provider.graces("web")) == 1


async def test_shorter_grace_is_passed_on_and_zero_follows_when_it_is_over(world: World) -> None:
    provider = Scripted("life-6", gone_after_delete=False)
    async with world.side(provider) as pods:
        created = await world.create("web", "life-6")
        await world.running("web")
        await world.delete("web", grace=100)
        await eventually(lambda: len(provider.graces("web")) == 1, "told")
        await world.delete("web", grace=3)
        await eventually(lambda: len(provider.graces("web")) >= 2, "told again")
        assert provider.graces("web")[1] <= 3
        await eventually(lambda: len(provider.graces("web")) >= 3, "told zero")
        assert provider.graces("web")[2] == 0
        pods.pod_gone(created.ref)
        await world.absent("web")


async def test_force_delete_is_passed_on_and_a_successor_of_the_same_name_runs_beside_it(world: World) -> None:
    provider = Scripted("life-7", gone_after_delete=False)
    async with world.side(provider) as pods:
        first = await world.create("web", "life-7")
        await world.running("web")
        await world.delete("web", grace=0)
        await eventually(lambda: provider.graces("web") == [0.0], "told zero")
        second = await world.create("web", "life-7")
        await world.running("web")
        pods.report(PodReport(first.ref, [ContainerReport("main", Terminated(9))]))
        pods.pod_gone(first.ref)
        await SystemClock().sleep(0.5)
        pod = await world.read("web")
        assert pod is not None and pod["metadata"]["uid"] == second.metadata.uid and pod["status"]["phase"] == "Running"
        assert provider.overlaps == 0


async def test_deletion_cancels_a_running_sync_and_never_syncs_again(world: World) -> None:
    provider = Scripted("life-8", gate=asyncio.Event())
    async with world.side(provider):
        await world.create("web", "life-8")
        await eventually(lambda: provider.verbs("web") == ["sync"], "sync begun")
        await world.delete("web", grace=300)
        await world.absent("web")
        assert provider.verbs("web") == ["sync", "delete"]
        assert provider.overlaps == 0


async def test_pod_deleted_before_it_was_handed_over_ends_at_once_with_a_terminal_phase(world: World) -> None:
    provider = Scripted("life-9")
    async with world.watched() as record, world.side(provider) as pods:
        await eventually(lambda: pods.informer.synced, "synced")
        pods.retire("life-9")
        await world.create("web", "life-9")
        await eventually(lambda: pods.store.by_name(world.namespace, "web"), "seen")
        await world.delete("web", grace=300)
        await world.absent("web")
        assert provider.verbs("web") == []
        last = await eventually(lambda: next((e for e in record.events if e.kind == "DELETED"), None), "DELETED seen")
    assert last.phase == "Failed"


async def test_finalizer_keeps_the_object_without_further_calls(world: World) -> None:
    provider = Scripted("life-10")
    async with world.side(provider):
        created = await world.create("web", "life-10", metadata={"finalizers": ["example.com/keep"]})
        await world.running("web")
        await world.delete("web", grace=30)
        await world.until("web", lambda pod: pod["metadata"].get("deletionGracePeriodSeconds") == 0, "deleted but for the finalizer")
        version = (await world.read("web") or {})["metadata"]["resourceVersion"]
        calls = len(provider.calls)
        await SystemClock().sleep(1.0)
        assert (await world.read("web") or {})["metadata"]["resourceVersion"] == version
        assert len(provider.calls) == calls
        await world.client.patch(PODS, created.ref, {"metadata": {"finalizers": None}})
        await world.absent("web")


async def test_pod_lost_by_the_provider_fails_and_is_not_made_again(world: World) -> None:
    provider = Scripted("life-11")
    async with world.side(provider) as pods:
        created = await world.create("web", "life-11")
        await world.running("web")
        pods.pod_gone(created.ref)
        pod = await world.until("web", lambda pod: pod["status"]["phase"] == "Failed", "Failed")
        assert pod["status"]["reason"] == "ProviderLost"
        assert condition(pod, "Ready") == "False"
        assert provider.verbs("web") == ["sync"]


async def test_rejected_pod_is_failed_for_good_with_an_event(world: World) -> None:
    provider = Scripted("life-12", raises=PodRejected("OutOfcpu", "no room"))
    async with world.side(provider):
        await world.create("web", "life-12")
        pod = await world.until("web", lambda pod: pod["status"]["phase"] == "Failed", "Failed")
        assert (pod["status"]["reason"], pod["status"]["message"]) == ("OutOfcpu", "no room")
        assert await eventually(lambda: events(world, "OutOfcpu"), "event")
        assert provider.verbs("web") == ["sync"]


async def test_failing_sync_shows_as_waiting_reason_and_event_and_is_repeated(world: World) -> None:
    provider = Scripted("life-13", raises=Unavailable("no machine", retry_after=0.3))
    async with world.side(provider):
        began = SystemClock().monotonic()
        await world.create("web", "life-13", restartPolicy="Never")
        pod = await world.until("web", lambda pod: pod["status"].get("containerStatuses"), "waiting reason")
        waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
        assert (pod["status"]["phase"], waiting) == ("Pending", {"reason": "ProviderFailed", "message": "no machine"})
        assert await eventually(lambda: events(world, "FailedSync"), "event")
        provider.raises = None
        await world.running("web")
        assert len(provider.verbs("web")) < 5 + (SystemClock().monotonic() - began) / 0.3


async def test_error_that_is_not_ours_is_retried_without_telling_its_text(world: World) -> None:
    provider = Scripted("life-14", raises=RuntimeError("secret"))
    async with world.side(provider):
        await world.create("web", "life-14")
        await eventually(lambda: len(provider.verbs("web")) >= 2, "tried again")
        pod = await world.until("web", lambda pod: pod["status"].get("containerStatuses"), "waiting reason")
        message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
        assert message == "the provider raised RuntimeError; its log contains the cause"
        provider.raises = None
        await world.running("web")


async def test_deletion_requested_while_nobody_ran_finishes_after_the_start(world: World) -> None:
    provider = Scripted("life-15")
    async with world.side(provider):
        await world.create("web", "life-15")
        await world.running("web")
    await world.delete("web", grace=300)
    async with world.side(provider):
        await world.absent("web")
        assert provider.verbs("web") == ["sync", "delete"]


async def test_force_delete_while_nobody_ran_leaves_the_workload_to_the_search_for_orphans(world: World) -> None:
    provider = Scripted("life-16")
    async with world.side(provider):
        await world.create("web", "life-16")
        await world.running("web")
    await world.delete("web", grace=0)
    async with world.side(provider) as pods:
        await eventually(lambda: pods.informer.synced, "synced")
        await SystemClock().sleep(0.5)
        assert provider.verbs("web") == ["sync"]
        assert list(provider.held)


def events(world: World, reason: str) -> list[k8s.CoreV1Event]:
    found: list[k8s.CoreV1Event] = world.witness.list_namespaced_event(world.namespace, field_selector=f"reason={reason}").items
    return found


async def test_pod_that_a_list_missed_is_asked_for_by_name_before_anything_is_ended(world: World) -> None:
    provider = Scripted("life-17")
    async with world.side(provider) as pods:
        created = await world.create("web", "life-17")
        await world.running("web")
        seen = pods.store.by_uid(created.metadata.uid)
        assert seen is not None
        # A list that lies can not be had from a real server, so its effect on the store is made by hand.
        pods.informer.store.remove(seen.key)
        pods._dispatch._changed(Change(seen.key, seen, None, suspected=True))
        await SystemClock().sleep(0.5)
        assert provider.verbs("web") == ["sync"]
        await world.client.patch(PODS, created.ref, {"metadata": {"labels": {"a": "b"}}})
        await eventually(lambda: provider.verbs("web") == ["sync", "sync"], "goes on")


async def test_deletion_missed_by_the_watch_still_ends_the_workload(world: World) -> None:
    provider = Scripted("life-18")
    async with world.side(provider) as pods:
        created = await world.create("web", "life-18")
        await world.running("web")
        assert world.watch is not None and world.group is not None
        world.watch.cancel()
        await world.delete("web", grace=0)
        second = await world.create("web", "life-18")
        # As after a compaction: the old version is of no use, so the watch begins with a list.
        pods.informer._version = ""
        world.watch = world.group.create_task(pods.informer.run())
        await eventually(lambda: provider.graces("web") == [0.0], "told zero")
        await eventually(lambda: pods._lifecycle.record(created.metadata.uid) is None, "forgotten")
        pod = await world.running("web")
        assert pod["metadata"]["uid"] == second.metadata.uid
        assert provider.overlaps == 0


async def test_two_hundred_hanging_syncs_do_not_hold_up_a_deletion(world: World) -> None:
    provider = Scripted("life-19")
    async with world.side(provider):
        await world.create("web", "life-19")
        await world.running("web")
        provider.gate = asyncio.Event()
        limit = asyncio.Semaphore(20)

        async def create(number: int) -> None:
            async with limit:
                await world.create(f"slow-{number}", "life-19")

        async with asyncio.TaskGroup() as group:
            for number in range(220):
                group.create_task(create(number))
        await eventually(lambda: len(provider.calls) == 201, "as many as may are in flight")
        await world.delete("web", grace=30)
        await world.absent("web")
        provider.gate.set()
        await eventually(lambda: sum(verb == "sync" for verb, _, _ in provider.calls) == 221, "the rest follows")


async def test_provider_that_was_started_anew_is_told_of_every_pod_once_more(world: World) -> None:
    provider = Scripted("life-20", gone_after_delete=False)
    async with world.side(provider) as pods:
        created = await world.create("web", "life-20")
        await world.running("web")
        pods.resync()
        await eventually(lambda: provider.verbs("web") == ["sync", "sync"], "told again")
        await world.delete("web", grace=300)
        await eventually(lambda: len(provider.graces("web")) == 1, "told of its end")
        pods.resync()
        await eventually(lambda: len(provider.graces("web")) == 2, "told of its end again, by one that may have forgotten it")
        assert 290 < provider.graces("web")[1] <= provider.graces("web")[0]
        pods.pod_gone(created.ref)
        await world.absent("web")


async def test_provider_that_was_started_anew_amid_a_sync_is_told_of_that_pod_too(world: World) -> None:
    provider = Scripted("life-21", gate=asyncio.Event())
    async with world.side(provider) as pods:
        await world.create("web", "life-21")
        await eventually(lambda: provider.verbs("web") == ["sync"], "sync begun")
        pods.resync()
        assert provider.gate is not None
        provider.gate.set()
        await eventually(lambda: provider.verbs("web") == ["sync", "sync"], "told again")


async def test_sync_that_waited_for_its_turn_is_left_out_when_the_node_retires_meanwhile(world: World) -> None:
    provider = Scripted("life-22", gate=asyncio.Event())
    async with world.side(provider) as pods:
        pods._lifecycle.slots._limit = 1
        await world.create("first", "life-22")
        await eventually(lambda: provider.verbs("first") == ["sync"], "sync begun")
        second = await world.create("second", "life-22")
        await eventually(lambda: second.metadata.uid in pods._lifecycle.slots, "second waits")
        pods.retire("life-22")
        assert provider.gate is not None
        provider.gate.set()
        await world.running("first")
        await eventually(lambda: second.metadata.uid not in pods._lifecycle.slots or None, "second no longer waits")
        assert provider.verbs("second") == []
