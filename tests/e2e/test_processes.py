"""Pods on a node of processes live as on a real kubelet: the same manifests go to both at once, and what becomes of them is compared.

Invariant: nothing is expected of one node that the other does not show. Of times both nodes are held to what must not be sooner, and ours
to being sooner than with another value of what is tested: a machine that is late is no mistake of either. The scenes are played beside one
another, because most of each is waiting; a test judges one of them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.background import background
from tests.support.controller_scenes import JOBS, cron_job, daemonset, deployment, jobs, pod_on, statefulset
from tests.support.pod_scenes import (
    ENDS,
    FAILING,
    GRACE_OF_GATED,
    HOOKED,
    LAST_WORDS,
    LEAVING,
    OPEN,
    RESTARTED,
    SHUT,
    STAYS,
    crash_loop,
    hooks,
    probes,
    service,
    statuses,
)
from tests.support.process_node import ProcessNode
from tests.support.sides import Scene, listening, pretty, side_by_side
from vkubelet.testing.cluster import ControlPlane, WorkerNode

Played = Callable[[Scene], Awaitable[Any]]

BACK_OFF = (0, 10, 20, 40)
DEFAULT_GRACE = 30
LIVED = (3, 20)
"""Seconds of a first run that a probe ends: what all of these probes need, and what two failures need with the default period of 10."""

AT_LEAST = {"polite": 2, "endless": 5, "failing": 0, "deaf": 2}
"""Seconds from the deletion to the end: a hook, a grace of three seconds that it used up, and the two that every container gets."""


async def test_statuses_and_events_are_those_of_a_kubelet(played: Played) -> None:
    found = await played(statuses)
    for name, ((real_status, real_events), (our_status, our_events)) in found.items():
        assert our_status == real_status, f"{name}{pretty(real_status, our_status)}"
        assert our_events == real_events, f"{name}{pretty(real_events, our_events)}"
    assert len(found) == len(ENDS) + len(STAYS)


async def test_probes_restart_and_hold_back_as_those_of_a_kubelet(played: Played) -> None:
    found = await played(probes)
    for name in RESTARTED:
        (*real, real_ran, real_pause), (*ours, our_ran, our_pause) = found[name]
        print(
            f"{name}: ran {real_ran:g} s on the real node, {our_ran:g} s on ours; started again after {real_pause:g} s and {our_pause:g} s"
        )
        assert ours == real, f"{name}{pretty(real, ours)}"
        assert LIVED[0] <= real_ran and LIVED[0] <= our_ran < LIVED[1]
        assert our_pause < BACK_OFF[1], "the first restart is not held back"
    assert found["sick"][1][2]["exitCode"] == 7 and found["stubborn"][1][2]["exitCode"] == 137
    for name in FAILING:
        (real_texts, real_conditions), (our_texts, our_conditions) = found[name]
        assert our_texts == real_texts, pretty(real_texts, our_texts)
        assert our_conditions == real_conditions


async def test_readiness_gates_a_service_as_on_a_kubelet(played: Played) -> None:
    (real, real_delays), (ours, our_delays) = await played(service)
    print(*(f"{name}: {[round(each, 1) for each in delays]} s" for name, delays in (("real", real_delays), ("process", our_delays))))
    assert ours == real == [[SHUT], [OPEN], [SHUT], [OPEN], [LEAVING], []]
    assert 3 <= our_delays[-1] < GRACE_OF_GATED, "it was left until its hook was through"


async def test_hooks_and_grace_are_those_of_a_kubelet(played: Played) -> None:
    found = await played(hooks)
    for name in HOOKED:
        (*real, real_took), (*ours, our_took) = found[name]
        print(f"{name}: gone after {real_took:.1f} s on the real node, {our_took:.1f} s on ours")
        assert ours == real, f"{name}{pretty(real, ours)}"
        assert AT_LEAST[name] <= our_took < DEFAULT_GRACE and AT_LEAST[name] <= real_took, name
    assert found["polite"][1][0][3] == "hook\nterm\n"
    real_hook, our_hook = found["unhooked"]
    assert our_hook == real_hook, pretty(real_hook, our_hook)


async def test_jobs_end_as_on_a_kubelet(played: Played) -> None:
    real, ours = await played(jobs)
    for name in JOBS:
        assert ours[name] == real[name], f"{name}{pretty(real[name], ours[name])}"
    assert [each[0] for each in ours["mended"]["pods"]] == ["Succeeded"] * 3 and ours["hopeless"]["counts"]["failed"] == 2


async def test_deployment_rolls_forth_and_back_as_on_a_kubelet(played: Played) -> None:
    real, ours = await played(deployment)
    print(f"two replicas rolled out in {real['took']:.1f} s on the real node, {ours['took']:.1f} s on ours")
    assert ours["story"] == real["story"] == ["False ProgressDeadlineExceeded", 3, "True NewReplicaSetAvailable"]
    assert ours["ready"] == real["ready"] == 2, "never fewer than asked for"


async def test_statefulset_keeps_order_and_names_as_on_a_kubelet(played: Played) -> None:
    real, ours = await played(statefulset)
    assert ours == real, pretty(real, ours)
    assert ours[:4] == ["db-0 #1 comes", "db-0 #1 is ready", "db-1 #1 comes", "db-1 #1 is ready"]


async def test_daemonset_is_on_both_nodes_and_renewed_on_both(played: Played, worker_node: WorkerNode, process_node: ProcessNode) -> None:
    before, after, status, (real, ours) = await played(daemonset)
    for name in (worker_node.name, process_node.name):
        assert pod_on(before, name)["metadata"]["uid"] != pod_on(after, name)["metadata"]["uid"]
    keys = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
    assert [status.get(key) for key in keys] == [2] * 5
    assert ours == real, pretty(real, ours)


async def test_crash_loops_back_off_as_on_a_kubelet(played: Played) -> None:
    real, ours = await played(crash_loop)
    for name, found in (("real", real), ("process", ours)):
        print(f"{name}: started again after {list(found['gaps'].values())} s", *found["course"], sep="\n  ")
    for key in ("waiting", "events"):
        assert ours[key] == real[key], f"{key}{pretty(real[key], ours[key])}"
    # A loaded machine tells of no short run before it tells of its end, and a kubelet there misses the beginning of a back-off.
    runs = [f"Running, ready True, {number} restarts, runs" for number in range(len(BACK_OFF))]
    (real_told, real_waits), (our_told, our_waits) = (split(found["course"], runs) for found in (real, ours))
    assert our_waits[-1].endswith(LAST_WORDS) and len(our_waits) == len(BACK_OFF) - 1, pretty(real["course"], ours["course"])
    assert real_waits == [step for step in our_waits if step in real_waits], pretty(real["course"], ours["course"])
    assert min(len(real_told), len(our_told)) >= 2, pretty(real["course"], ours["course"])
    for number, (due, next_due) in enumerate(itertools.pairwise(BACK_OFF), start=1):
        mine, theirs = ours["gaps"].get(number, due), real["gaps"].get(number, due)
        assert due <= mine + 1 and mine < next_due and due <= theirs + 1


def split(course: Sequence[str], apart: Sequence[str]) -> tuple[list[str], list[str]]:
    """The steps that are among those of `apart`, and all others; each in order."""
    return [step for step in course if step in apart], [step for step in course if step not in apart]


async def test_cron_job_fires_on_both(played: Played) -> None:
    real, ours = await played(cron_job)
    (due, *_) = sorted(real.keys() & ours.keys())
    assert ours[due] == real[due] and ours[due][0] == 1


# --- The play ----------------------------------------------------------------------------------------------------------------------------

CHAINS: Sequence[Sequence[Scene]] = (
    (crash_loop,),
    (cron_job,),
    (probes, hooks),
    (statuses, service),
    (jobs, daemonset),
    (deployment, statefulset),
)
"""Played beside one another, each in its order: nearly all of each is waiting."""


@pytest.fixture(scope="module")
def played(worker: ControlPlane, worker_node: WorkerNode, process_node: ProcessNode) -> Iterator[Played]:
    """What a scene found, to be awaited."""
    results: dict[Scene, concurrent.futures.Future[Any]] = {scene: concurrent.futures.Future() for chain in CHAINS for scene in chain}

    async def play(chain: Sequence[Scene]) -> None:
        for scene in chain:
            try:
                results[scene].set_result(await seen(scene))
            except Exception as error:
                results[scene].set_exception(error)

    async def seen(scene: Scene) -> Any:
        """Played once more where the engine of the real node has failed a start: it was no measure then."""
        async with side_by_side(worker, told, real=worker_node.name, ours=process_node.name) as sides:
            try:
                found = await scene(sides)
            except Exception:
                if not sides.engine_failed():
                    raise
            else:
                if not sides.engine_failed():
                    return found
            print(f"{scene.__name__} is played again:", *sides.engine_failed(), sep="\n  ")
        async with side_by_side(worker, told, real=worker_node.name, ours=process_node.name) as sides:
            return await scene(sides)

    async def play_all() -> None:
        async with asyncio.TaskGroup() as group:
            for chain in CHAINS:
                group.create_task(play(chain))

    with listening(worker) as told, background(play_all()):
        yield lambda scene: asyncio.wrap_future(results[scene])
