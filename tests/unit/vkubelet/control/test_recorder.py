"""What of recording can be told without a server: it never waits, and its memory is bounded."""

import asyncio

import pytest

from tests.support.memory_api import MemoryApi
from vkubelet.api.objects import NODES, PODS, Node, ObjectMeta, Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.control.recorder import BURST, QUEUE_LIMIT, REFILL, ObjectReference, Recorder
from vkubelet.errors import Forbidden
from vkubelet.testing.clock import ManualClock


def recorder(clock: ManualClock) -> Recorder:
    """Its client is never opened, so writing anything would raise."""
    return Recorder(Client(Connection("https://127.0.0.1:1")), "vkubelet", clock=clock)


def pod(number: int = 0) -> ObjectReference:
    return ObjectReference("v1", "Pod", f"web-{number}", "default", f"uid-{number}")


def test_reference_to_an_object_as_read() -> None:
    metadata = ObjectMeta(name="web", namespace="default", uid="u1")
    reference = ObjectReference.of(PODS, Pod(metadata, "n", "", b"{}", b"{}"))
    assert reference.body() == {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "default", "uid": "u1"}


def test_reference_to_a_cluster_scoped_object_has_no_namespace() -> None:
    reference = ObjectReference.of(NODES, Node(ObjectMeta(name="n", uid="u"), b"{}", b"{}"))
    assert reference.body() == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}


async def test_talkative_object_is_cut_off_after_its_burst_without_silencing_others() -> None:
    clock = ManualClock()
    events = recorder(clock)
    for number in range(BURST + 10):
        events.event(pod(), "Noise", f"message {number}")
    assert events.dropped == 10
    events.event(pod(1), "Started", "other pod")
    assert events.dropped == 10
    await clock.advance(REFILL)
    events.event(pod(), "Noise", "later")
    assert events.dropped == 10


def test_full_queue_drops_the_oldest_and_counts_them() -> None:
    events = recorder(ManualClock())
    for number in range(QUEUE_LIMIT + 7):
        events.event(pod(number), "Started", "hello")
    assert events.dropped == 7


def test_equal_events_share_one_place_in_the_queue() -> None:
    events = recorder(ManualClock())
    for _ in range(BURST):
        events.event(pod(), "Started", "hello")
    for number in range(1, QUEUE_LIMIT):
        events.event(pod(number), "Started", "hello")
    assert events.dropped == 0


@pytest.mark.parametrize("message", ['exec: "/bin/\udcff": no such file', "plain"])
async def test_an_event_that_cannot_be_written_stops_no_other(message: str, caplog: pytest.LogCaptureFixture) -> None:
    api = MemoryApi()
    events = Recorder(api.client(), "vkubelet", clock=ManualClock())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(events.run())
        events.event(pod(), "Failed", message)
        events.event(ObjectReference("v1", "Pod", "web", "default", object()), "Failed", "cannot be encoded")  # type: ignore[arg-type]
        events.event(pod(1), "Started", "other pod")
        await events.written()
        running.cancel()
    written = [write.body["message"] for write in api.writes]
    assert written == [message.replace("\udcff", "?"), "other pod"]
    assert events.dropped == 1
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_what_must_not_be_published_is_removed_before_the_message_is_cut() -> None:
    api, secret = MemoryApi(), "s" * 2000
    events = Recorder(api.client(), "vkubelet", clock=ManualClock(), redact=lambda uid, text: text.replace(secret, uid))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(events.run())
        events.event(pod(7), "Failed", f"no {secret}")
        await events.written()
        running.cancel()
    assert [write.body["message"] for write in api.writes] == ["no uid-7"]


class Refusing(MemoryApi):
    """Refuses each request with this message."""

    message = ""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.message:
            raise Forbidden(call.attempt, self.message, status=403)
        return await super().fetch(call, timeout)


RIGHT = 'events is forbidden: User "u" cannot create resource "events" in API group "" in the namespace "default"'
TERMINATING = 'events "e" is forbidden: unable to create new content in namespace default because it is being terminated'


@pytest.mark.parametrize(("message", "warnings"), [(RIGHT, 2), (TERMINATING, 0)])
async def test_a_missing_right_is_logged_once_until_an_event_is_written(
    message: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    api = Refusing()
    events = Recorder(api.client(), "vkubelet", clock=ManualClock())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(events.run())
        for number, api.message in enumerate((message, message, "", message)):
            events.event(pod(number), "Started", "hello")
            await events.written()
        running.cancel()
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == ["WARNING"] * warnings
