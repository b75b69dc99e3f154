"""The wall clock of a process is set, and the process stands still, while its pods run: windows follow the clock, and nothing else changes.

Crossings of edges in every zone: tests/unit/kubeocean/model/test_windows.py. The same of `vkubelet run`: tests/integration/runtime.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import CLOSED, open_now, patch_policy, taints, vnode, window
from tests.integration.kubeocean.outages import SHORT, all_nodes, events_of, is_released, running_pods
from tests.support.audit import Audit
from tests.support.moments import LEASES, Moments, moments_of
from tests.support.program import PATIENCE, Program, eventually
from tests.support.witness import Record, watching
from vkubelet.control.tokens import FIRST
from vkubelet.node.lease import DURATION

PODS = 4
HOUR = 3600
FOLLOWED_WITHIN = 10.0
"""Seconds from a step of the clock until windows follow it; it is noticed within one."""
AT_THE_EDGE = 5.0
SPRING, AUTUMN = datetime(2027, 3, 28, 1, 0, tzinfo=UTC), datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
"""When the clocks of Berlin change: from 02:00 to 03:00, and from 03:00 to 02:00."""
BEFORE = 15.0
"""Seconds that the clock is set before an edge."""
STOPS = (1.0, 20.0, 60.0)


@frozen
class Clocked:
    """A scene of one node with running pods; `file` has the seconds by which the clock of its process is ahead."""

    scene: Scene
    program: Program
    namespace: str
    file: Path

    @property
    def policy(self) -> str:
        return f"all-of-{self.scene.bound.name}"

    def set(self, ahead: float) -> float:
        """Sets the clock; the moment of that by the monotonic clock."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(str(ahead))
        draft.replace(self.file)
        return time.monotonic()

    def set_to(self, moment: datetime) -> float:
        return self.set((moment - datetime.now(UTC)).total_seconds())

    async def is_closed(self, closed: bool) -> float:
        """Waits until the node is closed, or open; the moment by the monotonic clock."""

        async def check() -> bool:
            node = await vnode(self.scene)
            return node is not None and (CLOSED in taints(node)) is closed

        try:
            await eventually(check, f"the node is {'closed' if closed else 'open'}", seconds=BEFORE + 4 * FOLLOWED_WITHIN)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.program.tail()}") from None
        return time.monotonic()


@pytest.fixture
async def clocked(scene: MakeScene, tmp_path: Path) -> AsyncIterator[Clocked]:
    made = await scene(start=False, settings=SHORT)
    file = tmp_path / "ahead"
    program = Program("tests.support.shifted", str(file), "kubeocean", *made.program.arguments, log=tmp_path / "shifted.log")
    with program:
        await made.ready()
        yield Clocked(made, program, await running_pods(made, PODS), file)


@asynccontextmanager
async def undisturbed(clocked: Clocked) -> AsyncIterator[None]:
    """Nothing happens to the pods, the node stays Ready, and its Lease is renewed."""
    bound, pid = clocked.scene.bound, clocked.program.process.pid
    with _watched(clocked) as (above, below, nodes, renewals):
        began = time.monotonic()
        yield
        longest = renewals.longest(clocked.scene.vnodes, since=began, until=time.monotonic())
    assert clocked.program.alive and clocked.program.process.pid == pid, clocked.program.tail()
    print(f"  longest time without a renewal: {longest:.1f} s")
    assert longest < DURATION
    for record in (above, below):
        assert not record.where(lambda event: event.kind in ("ADDED", "DELETED") or event.deleting or event.restarts > 0)
        assert not record.where(lambda event: event.phase != "Running" or event.condition("Ready") != "True")
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True"), bound.name


@contextmanager
def _watched(clocked: Clocked) -> Iterator[tuple[Record, Record, Record, Moments]]:
    bound = clocked.scene.bound
    with (
        watching(bound.hub.kubeconfig, namespace=clocked.namespace) as above,
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
        moments_of(bound.hub.kubeconfig, LEASES) as renewals,
    ):
        yield above, below, nodes, renewals


async def test_windows_follow_a_clock_that_is_set_and_nothing_else_changes(clocked: Clocked) -> None:
    bound = clocked.scene.bound
    home = Audit(bound.hub, bound.user)
    open_until = {"timeZone": "UTC", "timeWindows": [window(timedelta(hours=-2), timedelta(minutes=30))]}
    await patch_policy(clocked.scene, clocked.policy, **open_until)
    await clocked.is_closed(False)
    async with undisturbed(clocked):
        for ahead, closed in ((HOUR, True), (0, False), (-HOUR, False), (-3 * HOUR, True), (0, False), (HOUR, True)):
            moment = clocked.set(ahead)
            if ahead == -HOUR:
                # What does not change is seen when it had the time to.
                await asyncio.sleep(FOLLOWED_WITHIN)
            took = await clocked.is_closed(closed) - moment
            print(f"clock ahead by {ahead} s: {'closed' if closed else 'open'} {took:.1f} s later")
            assert took < FOLLOWED_WITHIN + (FOLLOWED_WITHIN if ahead == -HOUR else 0)
        # A new token is kept for a part of its lifetime, whatever the clock is set to.
        await eventually(lambda: _issued(home) >= PODS, "tokens that are due by the clock are renewed", seconds=FIRST * HOUR + PATIENCE)
        await asyncio.sleep(FOLLOWED_WITHIN)
    print(f"tokens issued: {_issued(home)}")
    assert _issued(home) <= 2 * PODS, "a clock that is ahead does not make tokens due again and again"


def _issued(home: Audit) -> int:
    return sum(call.what == "serviceaccounts/token" for call in home.writes())


async def test_windows_open_and_close_where_the_clock_of_a_zone_changes(clocked: Clocked) -> None:
    spring = {"timeZone": "Europe/Berlin", "timeWindows": [{"start": "00:00", "end": "02:29"}]}
    autumn = {"timeZone": "Europe/Berlin", "timeWindows": [{"start": "02:00", "end": "02:29"}]}
    half = timedelta(minutes=30)
    # The window ends where its last half hour is skipped; that of the repeated hour opens a second time.
    for windows, edge, closes in (
        (spring, SPRING, True),
        (autumn, AUTUMN - half, True),
        (autumn, AUTUMN, False),
        (autumn, AUTUMN + half, True),
    ):
        await patch_policy(clocked.scene, clocked.policy, **windows)
        async with undisturbed(clocked):
            moment = clocked.set_to(edge - timedelta(seconds=BEFORE))
            await clocked.is_closed(not closes)
            late = await clocked.is_closed(closes) - moment - BEFORE
        print(f"{edge}: {'closed' if closes else 'open'} {late:.1f} s after the edge")
        assert -0.5 < late < AT_THE_EDGE
    clocked.set(0)
    await patch_policy(clocked.scene, clocked.policy, **open_now())


async def test_process_that_stood_still_neither_loses_nor_fails_over_its_pods(scene: MakeScene) -> None:
    made = await scene(settings=SHORT, spec={"onUnreachable": {"mode": "FailOver", "afterSeconds": 40}})
    namespace = await running_pods(made, PODS)
    bound = made.bound
    for seconds in STOPS:
        with (
            watching(bound.hub.kubeconfig, namespace=namespace) as above,
            watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        ):
            made.program.process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                made.program.process.send_signal(signal.SIGCONT)
            began = time.monotonic()
            await all_nodes(made, is_released, what="Ready and open")
            await eventually(lambda: _all_ready(above), "no pod is left that is not Ready", every=0.3)
            print(f"stopped for {seconds:g} s: in step {time.monotonic() - began:.1f} s later")
        assert made.program.alive, made.program.tail()
        for record in (above, below):
            assert not record.where(lambda event: event.kind in ("ADDED", "DELETED") or event.deleting or event.restarts > 0)
        assert not below.where(lambda event: event.condition("Ready") != "True")
    assert not await events_of(made, "FailingOver")


def _all_ready(above: Record) -> bool:
    """The node controller reports the pods of a silent node as not ready; each was Ready when it was seen last."""
    return all(events[-1].condition("Ready") == "True" for events in above.by_uid().values())
