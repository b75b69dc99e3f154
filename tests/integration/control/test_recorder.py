"""Events as the official client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.program import eventually
from vkubelet.api.objects import CONFIGMAPS, NODES
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.control.leader import LeaderFence
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.testing.clock import ManualClock


@asynccontextmanager
async def running(recorder: Recorder) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(recorder.run())
        yield
        task.cancel()


async def subject(client: Client, namespace: str, name: str = "subject") -> ObjectReference:
    made = await client.create(CONFIGMAPS, {"metadata": {"name": name}}, namespace=namespace)
    return ObjectReference.of(CONFIGMAPS, made)


def events_about(witness: Any, namespace: str, about: ObjectReference) -> list[Any]:
    found = witness.list_namespaced_event(namespace).items
    return [event for event in found if (event.involved_object.kind, event.involved_object.name) == (about.kind, about.name)]


async def test_event_is_written_with_all_that_kubectl_shows(client: Client, namespace: str, witness: Any) -> None:
    about = await subject(client, namespace)
    recorder = Recorder(client, "vkubelet", host="instance-1", clock=SystemClock())
    async with running(recorder):
        recorder.event(about, "Rejected", "the pod asks for what is not there", warning=True)
        (event,) = await eventually(lambda: events_about(witness, namespace, about), "the event")
    assert (event.type, event.reason, event.message) == ("Warning", "Rejected", "the pod asks for what is not there")
    assert event.involved_object.uid == about.uid
    assert (event.source.component, event.source.host) == ("vkubelet", "instance-1")
    assert (event.reporting_component, event.reporting_instance) == ("vkubelet", "instance-1")
    assert event.count == 1
    assert event.first_timestamp == event.last_timestamp is not None
    assert recorder.dropped == 0


async def test_repetition_counts_up_instead_of_making_new_events(client: Client, namespace: str, witness: Any) -> None:
    about = await subject(client, namespace)
    clock = ManualClock()
    recorder = Recorder(client, "vkubelet", clock=clock)
    async with running(recorder):
        recorder.event(about, "Retry", "again")
        await eventually(lambda: events_about(witness, namespace, about), "the first")
        await clock.advance(2)
        for _ in range(3):
            recorder.event(about, "Retry", "again")
        recorder.event(about, "Retry", "another message")

        def counted() -> list[Any] | None:
            both = events_about(witness, namespace, about)
            return both if {event.message: event.count for event in both} == {"again": 4, "another message": 1} else None

        found = await eventually(counted, "one of them counts up")
    assert len(found) == 2
    (first,) = [event for event in found if event.message == "again"]
    assert first.last_timestamp > first.first_timestamp


async def test_event_that_expired_on_the_server_begins_anew(client: Client, namespace: str, witness: Any) -> None:
    about = await subject(client, namespace)
    recorder = Recorder(client, "vkubelet", clock=SystemClock())
    async with running(recorder):
        recorder.event(about, "Retry", "again")
        (event,) = await eventually(lambda: events_about(witness, namespace, about), "the first")
        witness.delete_namespaced_event(event.metadata.name, namespace)
        recorder.event(about, "Retry", "again")
        (event,) = await eventually(lambda: events_about(witness, namespace, about), "the second")
        assert event.count == 1
        recorder.event(about, "Retry", "again")
        await eventually(lambda: events_about(witness, namespace, about)[0].count == 2, "it counts again")


async def test_event_about_a_node_is_kept_in_the_default_namespace(client: Client, witness: Any) -> None:
    node = await client.create(NODES, {"metadata": {"name": "recorder-test"}})
    try:
        about = ObjectReference.of(NODES, node)
        recorder = Recorder(client, "vkubelet", clock=SystemClock())
        async with running(recorder):
            recorder.event(about, "Started", "hello")
            await eventually(lambda: events_about(witness, "default", about), "the event")
    finally:
        await client.delete(NODES, "recorder-test")


async def test_refused_event_is_dropped_and_later_ones_are_written(client: Client, namespace: str, witness: Any) -> None:
    about = await subject(client, namespace)
    recorder = Recorder(client, "vkubelet", clock=SystemClock())
    async with running(recorder):
        recorder.event(ObjectReference("v1", "Pod", "web", "no-such-namespace", "u"), "Started", "lost")
        recorder.event(about, "Started", "kept")
        await eventually(lambda: events_about(witness, namespace, about), "the second event")
        await eventually(lambda: recorder.dropped == 1, "the first one is dropped")


async def test_behind_a_closed_fence_events_are_dropped_quickly(client: Client, namespace: str, witness: Any) -> None:
    about = await subject(client, namespace)
    recorder = Recorder(client.fenced(LeaderFence(SystemClock())), "vkubelet", clock=SystemClock())
    async with running(recorder):
        recorder.event(about, "Started", "not by a follower")
        await eventually(lambda: recorder.dropped == 1, "the drop")
    assert events_about(witness, namespace, about) == []


async def test_what_waits_at_the_end_is_still_written(client: Client, namespace: str, witness: Any) -> None:
    about = await subject(client, namespace)
    recorder = Recorder(client, "vkubelet", clock=SystemClock())
    async with running(recorder):
        await asyncio.sleep(0)
        # Few, as all of them get two seconds.
        for number in range(2):
            recorder.event(about, "Stopping", f"last words {number}")
    assert len(events_about(witness, namespace, about)) == 2


async def test_server_that_hangs_does_not_hold_up_the_end() -> None:
    hanging = await asyncio.start_server(lambda reader, writer: reader.read(), "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
        async with Client(Connection(url)) as far:
            recorder = Recorder(far, "vkubelet", clock=SystemClock())
            async with asyncio.timeout(10), running(recorder):
                await asyncio.sleep(0)
                recorder.event(ObjectReference("v1", "Pod", "web", "default", "u"), "Stopping", "into the void")
    finally:
        hanging.close()
