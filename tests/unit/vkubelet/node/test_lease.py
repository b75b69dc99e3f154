"""The body of a node Lease, and whom a conflict over it speaks of."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from tests.support.memory_api import MemoryApi
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Lease
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.errors import Unreachable
from vkubelet.metrics import Metrics
from vkubelet.node.lease import LeaseKeeper, LeaseSettings, lease_body, successor
from vkubelet.testing.clock import ManualClock

NOW = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def keeper_of(api: MemoryApi, clock: ManualClock) -> LeaseKeeper:
    """Renews Leases in `api`."""
    client = api.client()
    return LeaseKeeper(lambda node: client, identity="me", clock=clock, settings=LeaseSettings(), metrics=Metrics(CollectorRegistry()))


def lease(by: str, renewed: datetime | None = NOW) -> Lease:
    body = {
        "metadata": {
            "name": "n",
            "namespace": "kube-node-lease",
            "resourceVersion": "7",
            "labels": {"theirs": "1"},
            "annotations": {"theirs": "2", "vkubelet/renewed-by": by},
        },
        "spec": {"renewTime": renewed.isoformat() if renewed else None},
    }
    return decode_object(Lease, encode_json(body))


def test_new_lease_names_node_owner_and_process() -> None:
    body = lease_body("n", "uid-1", identity="me", now=NOW, found=None)
    assert body["spec"] == {"holderIdentity": "n", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T12:00:00.123456Z"}
    assert body["metadata"] == {
        "name": "n",
        "namespace": "kube-node-lease",
        "annotations": {"vkubelet/renewed-by": "me"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "uid-1"}],
    }


def test_renewal_keeps_marks_of_others_and_requires_the_version_that_was_read() -> None:
    metadata = lease_body("n", "uid-2", identity="me", now=NOW, found=lease("other"))["metadata"]
    assert metadata["resourceVersion"] == "7"
    assert metadata["labels"] == {"theirs": "1"}
    assert metadata["annotations"] == {"theirs": "2", "vkubelet/renewed-by": "me"}
    assert metadata["ownerReferences"][0]["uid"] == "uid-2"


@pytest.mark.parametrize("back", [timedelta(0), timedelta(microseconds=1), timedelta(hours=1), timedelta(days=400)], ids=str)
def test_renew_time_moves_forward_also_when_the_clock_was_set_back(back: timedelta) -> None:
    body = lease_body("n", "uid-1", identity="me", now=NOW - back, found=lease("me", NOW))
    assert body["spec"]["renewTime"] == "2026-01-01T12:00:00.123457Z"


def test_renewal_at_the_end_of_time_is_still_a_time() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    assert lease_body("n", "uid-1", identity="me", now=NOW, found=lease("other", end))["spec"]["renewTime"] == "2026-01-01T12:00:00.123456Z"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lease("other", NOW + timedelta(seconds=1)), "other"),
        (lease("other", NOW - timedelta(seconds=1)), ""),
        (lease("other", None), ""),
        (lease("me", NOW + timedelta(seconds=1)), ""),
        (lease("", NOW + timedelta(seconds=1)), ""),
    ],
    ids=["other and newer", "other and older", "other who never renewed", "our own lost answer", "edited by hand"],
)
def test_only_another_process_that_renewed_later_is_a_successor(found: Lease, expected: str) -> None:
    assert successor(found, identity="me", renewed_at=NOW) == expected


@pytest.mark.parametrize("problem", [Unreachable("get", "cut"), asyncio.CancelledError()], ids=lambda problem: type(problem).__name__)
async def test_lease_stays_in_the_round_whatever_befalls_a_renewal(problem: BaseException) -> None:
    clock, asked = ManualClock(), list[float]()

    def client(node: str) -> Client:
        asked.append(clock.monotonic())
        raise problem

    keeper = LeaseKeeper(client, identity="me", clock=clock, settings=LeaseSettings(), metrics=Metrics())
    keeper.keep("n", "uid-1")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keeper.run())
        await clock.advance(40)
        task.cancel()
    assert len(asked) >= 5
    assert max(after - before for before, after in zip(asked, asked[1:], strict=False)) < 9


async def test_a_lease_that_cannot_be_understood_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = MemoryApi(), ManualClock()
    odd = "0000-01-01T00:00:00.000000Z"
    api.put(f"{LEASES}/odd", {"metadata": {"name": "odd", "namespace": "kube-node-lease"}, "spec": {"renewTime": odd}})
    keeper = keeper_of(api, clock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        for name in ("odd", "plain"):
            keeper.keep(name, f"uid-{name}")
        await clock.advance(30.0)
        running.cancel()
    assert sum(write.path.endswith("/plain") or write.body["metadata"]["name"] == "plain" for write in api.writes) >= 3
    assert len([record for record in caplog.records if record.exc_info]) == 1


class Gate(MemoryApi):
    """Answers a PUT when it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "PUT":
            await self.opened.wait()
        return await super().fetch(call, timeout)


@pytest.mark.parametrize("dropped", [False, True])
async def test_a_renewal_in_progress_does_not_create_the_lease_of_a_deleted_node(dropped: bool) -> None:
    api, clock = Gate(), ManualClock()
    keeper, path = keeper_of(api, clock), f"{LEASES}/n"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        keeper.keep("n", "uid-1")
        await clock.advance(11.0)
        assert path in api.objects
        if dropped:
            keeper.drop("n")
        releasing = group.create_task(keeper.release("n"))
        await clock.advance(1.0)
        assert not releasing.done(), "the renewal is in progress"
        api.opened.set()
        await releasing
        await clock.advance(60.0)
        running.cancel()
    assert path not in api.objects and api.writes[-1].method == "DELETE"


async def test_a_node_without_a_renewal_in_progress_is_released_at_once() -> None:
    api, clock = MemoryApi(), ManualClock()
    keeper = keeper_of(api, clock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        keeper.keep("n", "uid-1")
        await clock.advance(1.0)
        await keeper.release("n")
        running.cancel()
    assert not api.objects


async def test_the_lease_of_a_node_that_is_not_kept_any_more_is_not_created() -> None:
    api, clock = Gate(), ManualClock()
    keeper, path = keeper_of(api, clock), f"{LEASES}/n"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        keeper.keep("n", "uid-1")
        await clock.advance(11.0)
        keeper.drop("n")
        api.delete(path)
        api.opened.set()
        await clock.advance(60.0)
        running.cancel()
    assert path not in api.objects
