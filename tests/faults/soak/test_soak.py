"""Minutes of churn, open streams, windows that open and close, and faults at random: nothing grows, and nothing is left.

`python -m tests.faults.soak --minutes 30` is the long run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from tests.faults.soak.churn import MINUTES, PODS_A_SECOND, RATE, SEED, Churn, Line, Measured, Timed, following
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import closed_now, open_now, patch_policy
from tests.integration.kubeocean.test_window_edge import policy
from tests.support.bound import Body, Bound
from tests.support.outside import Outside
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

SHORT = 2.0
"""Minutes, unless the environment sets more."""
NODES = 4
WINDOWED = NODES - 1
"""The node whose window opens and closes; its pods are not timed."""
WARM = 5.0
"""Minutes after which memory is flat; a short run compares its last two thirds."""
GROWTH, GROWTH_OF_SHORT = 1.05, 1.10
DESCRIPTORS = 4
"""So many more may be open when everything is as it was before: connections that nothing uses are closed within two minutes."""
LATE = 0.001
"""Of the pods of a calm time, the share that may not run before it is deleted."""
SLOWER, LEAST = 1.25, 0.2
"""p99 of the last third over that of the first one, and the seconds that are noise."""
STREAMS = (
    ("logs", "-f", "steady-0"),
    ("logs", "-f", "steady-1"),
    ("exec", "-i", "steady-0", "--", "cat"),
    ("exec", "-i", "steady-1", "--", "cat"),
    ("port-forward", "steady-2", ":80"),
)
QUIET = {"log": {"level": "INFO"}}
SETTLES = 150.0
"""Seconds until nothing is left."""


def _policies(bound: Bound) -> list[Body]:
    return [policy(bound, _policy_of(bound, number), f"sim-{bound.name}-{number}") for number in range(NODES)]


def _policy_of(bound: Bound, number: int) -> str:
    return f"soak-{number}-{bound.name}"


@asynccontextmanager
async def _steady(stage: Stage) -> AsyncIterator[list[str]]:
    """Pods that stay, on nodes whose window does not close; their UIDs."""
    uids = []
    for number in range(3):
        body = stage.body(f"steady-{number}", script={"log-interval": "1"}, restartPolicy="Never")
        body["spec"]["nodeName"] = stage.bound.vnode(stage.nodes[number % WINDOWED])
        uids.append((await stage.home.create("pods", body))["metadata"]["uid"])
    for number in range(3):
        await stage.running(f"steady-{number}")
    yield uids


async def test_nothing_grows_while_pods_come_and_go(hub: ControlPlane, worker: ControlPlane, scene: MakeScene, tmp_path: Path) -> None:
    minutes, seed = float(os.environ.get(MINUTES, SHORT)), os.environ.get(SEED, "1")
    with ExitStack() as stack:
        lines = {plane.name: stack.enter_context(Line(plane.port)) for plane in (hub, worker)}

        def way(plane: ControlPlane, user: str) -> Path:
            path = tmp_path / f"{plane.name}-{user}.kubeconfig"
            path.write_text(plane.client_config(user).read_text().replace(f":{plane.port}", f":{lines[plane.name].port}"))
            return path

        made = await scene(nodes=NODES, way=way, policies=_policies, settings=QUIET)
        stage = await Stage.of(made.bound, made.nodes)
        pids = made.program.process.pid, made.kubelet.process.pid
        async with _steady(stage) as uids:
            before = [process.descriptors() for process in _processes(made)]
            churn = await _soak(made, stage, list(lines.values()), seconds=minutes * 60, seed=seed)
            assert (made.program.process.pid, made.kubelet.process.pid) == pids and made.program.alive and made.kubelet.alive
            await eventually(lambda: _only(stage, uids), "nothing but the steady pods is left on either side", seconds=SETTLES)
            await eventually(lambda: _closed(made, before), f"as many descriptors as before, {before}", seconds=SETTLES)
    _judge(churn, minutes * 60)


async def _soak(made: Scene, stage: Stage, lines: Sequence[Line], *, seconds: float, seed: str) -> Churn:
    measured = [Measured(name, process) for name, process in zip(("kubeocean", "vkubelet"), _processes(made), strict=True)]
    timed = Timed(time.monotonic())
    rate = float(os.environ.get(RATE, PODS_A_SECOND))
    churn = Churn(stage, made.vnodes, made.vnodes[:WINDOWED], lines, rate, Random(seed), timed, measured)
    print(f"\nsoak of {seconds:.0f} s with {rate:g} pods a second, seed {seed}")

    async def turn(is_open: bool) -> None:
        await patch_policy(made, _policy_of(made.bound, WINDOWED), **(open_now() if is_open else closed_now()))

    with following(stage, timed.see):
        async with asyncio.TaskGroup() as group:
            group.create_task(churn.pods(seconds))
            group.create_task(churn.troubles(seconds))
            group.create_task(churn.windows(turn, seconds))
            group.create_task(churn.measure(seconds))
            for arguments in STREAMS:
                group.create_task(churn.stream(*arguments, until=seconds))
    return churn


def _processes(made: Scene) -> list[Outside]:
    return [Outside(made.program.process.pid), Outside(made.kubelet.process.pid)]


async def _closed(made: Scene, before: Sequence[int]) -> bool:
    return all(process.descriptors() <= count + DESCRIPTORS for process, count in zip(_processes(made), before, strict=True))


async def _only(stage: Stage, uids: Sequence[str]) -> bool:
    above = await stage.home.list("pods", stage.namespace)
    below = await stage.there.list("pods", stage.bound.mount)
    return sorted(body["metadata"]["uid"] for body in above) == sorted(uids) and len(below) == len(uids)


def _judge(churn: Churn, seconds: float) -> None:
    """Prints the figures of each minute or so, then compares."""
    warm = min(WARM * 60, seconds / 3)
    span = (seconds - warm) / 3
    thirds = [(warm + number * span, warm + (number + 1) * span) for number in range(3)]
    print(f"{churn.timed.created} pods, faults {churn.faults}, streams opened {churn.opened} times, {len(churn.timed.took)} pods timed")
    p99 = [churn.timed.p99(*third) for third in thirds]
    print("p99 until a pod runs, by thirds:", [f"{value:.2f} s" for value in p99])
    growths = {}
    for each in churn.measured:
        memory, open_files = [each.memory(*third) for third in thirds], [each.descriptors(*third) for third in thirds]
        growths[each.name] = memory[-1] / memory[0]
        cost = each.cpu / max(1, churn.timed.created) * 1000
        print(f"{each.name}: by thirds {[f'{mib:.1f} MiB' for mib in memory]}, descriptors {open_files}, {cost:.1f} ms of CPU a pod")
    late, timed = churn.timed.late, len(churn.timed.took)
    assert len(late) <= LATE * timed, f"{len(late)} of {timed} pods did not run in a calm time: {late[:20]}"
    most = GROWTH if seconds >= 2 * WARM * 60 else GROWTH_OF_SHORT
    for name, grown in growths.items():
        assert grown < most, f"{name}: memory grew to {grown:.3f} of what it was"
    assert p99[-1] <= max(SLOWER * p99[0], p99[0] + LEAST), p99
