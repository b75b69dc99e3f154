"""`kubectl logs` from the computing cluster, with every option, and kubectl's usual errors."""

from __future__ import annotations

import asyncio
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.bound import Bound, apply, get, pod, running
from tests.support.program import LONG, PATIENCE, eventually, holds
from vkubelet.testing.cluster import CommandFailed
from vkubelet.testing.fixtures import run_apart

COUNT = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo line $i; done; "
DIE_ONCE = "if [ ! -e /state/once ]; then touch /state/once; echo dying; exit 3; fi; "
SECOND = "echo second; trap 'exit 0' TERM; while true; do sleep 0.2; done"


@pytest.fixture(scope="session")
def talkative(leased: Bound) -> tuple[str, str]:
    """A pod with two containers: `main` said 20 lines long ago and `ticker` says one each 0.2 s; `main` was restarted once."""

    async def start() -> tuple[str, str]:
        namespace = await leased.hub.namespace("logs")
        body = pod("talks", namespace)
        main = body["spec"]["containers"][0]
        main["command"] = ["sh", "-c", COUNT + DIE_ONCE + SECOND]
        main["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
        ticker = dict(
            main, name="ticker", command=["sh", "-c", "trap 'exit 0' TERM; i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.2; done"]
        )
        body["spec"]["containers"].append(ticker)
        body["spec"]["volumes"] = [{"name": "state", "emptyDir": {}}]
        await apply(leased.hub, body)
        await running(leased, namespace, "talks")

        async def restarted() -> bool:
            found = await get(leased.hub, "pod", "talks", "-n", namespace)
            main = next(c for c in found["status"]["containerStatuses"] if c["name"] == "main")
            return bool(main["restartCount"] == 1 and "running" in main["state"] and "terminated" in main["lastState"])

        await eventually(restarted, "main was restarted", seconds=LONG, every=0.3)

        async def said_all() -> bool:
            return "second\n" in await leased.hub.kubectl("logs", "talks", "-n", namespace, "-c", "main")

        await eventually(said_all, "it has said all", every=0.3)
        return namespace, "talks"

    return run_apart(start())


async def logs(bound: Bound, pod_of: tuple[str, str], *options: str) -> list[str]:
    namespace, name = pod_of
    return (await bound.hub.kubectl("logs", name, "-n", namespace, *options)).splitlines()


async def test_container_is_chosen_by_c(leased: Bound, talkative: tuple[str, str]) -> None:
    assert await logs(leased, talkative, "-c", "main") == [*(f"line {i}" for i in range(1, 21)), "second"]
    assert (await logs(leased, talkative, "-c", "ticker"))[0] == "tick 1"


async def test_tail_gives_the_last_lines_and_zero_gives_none(leased: Bound, talkative: tuple[str, str]) -> None:
    assert await logs(leased, talkative, "-c", "main", "--tail=2") == ["line 20", "second"]
    assert await logs(leased, talkative, "-c", "main", "--tail=0") == []


async def test_previous_gives_the_run_before_the_restart(leased: Bound, talkative: tuple[str, str]) -> None:
    assert (await logs(leased, talkative, "-c", "main", "-p"))[-2:] == ["line 20", "dying"]


async def test_timestamps_are_rfc_3339(leased: Bound, talkative: tuple[str, str]) -> None:
    stamp, _, text = (await logs(leased, talkative, "-c", "main", "--tail=1", "--timestamps"))[0].partition(" ")
    assert text == "second"
    assert stamp.startswith("20") and stamp.endswith("Z") and "T" in stamp


async def test_since_leaves_out_what_is_older(leased: Bound, talkative: tuple[str, str]) -> None:
    async def old_is_left_out() -> bool:
        return await logs(leased, talkative, "-c", "main", "--since=2s") == []

    await eventually(old_is_left_out, "nothing of main is younger than 2 s")

    async def is_what_is_younger() -> None:
        asked = datetime.now(UTC)
        recent = await stamped(leased, talkative, "--since=2s")
        answered = datetime.now(UTC)
        everything = await stamped(leased, talkative)
        span, written = timedelta(seconds=2), timedelta(seconds=0.5)
        assert recent and set(recent) < set(everything) and min(recent.values()) >= asked - span
        # Up to what was written when it was asked, if only just.
        assert {line for line, at in everything.items() if answered - span <= at <= asked - written} <= set(recent)

    # A machine that stands still says nothing for a while, or writes later what was said.
    await holds(is_what_is_younger)


async def stamped(bound: Bound, pod_of: tuple[str, str], *options: str) -> dict[str, datetime]:
    """When each line of the ticker was written, by this machine's clock."""
    pairs = [line.split(" ", 1) for line in await logs(bound, pod_of, "-c", "ticker", "--timestamps", *options)]
    return {text: datetime.fromisoformat(stamp) for stamp, text in pairs}


async def test_limit_bytes_cuts(leased: Bound, talkative: tuple[str, str]) -> None:
    namespace, name = talkative
    assert await leased.hub.kubectl("logs", name, "-n", namespace, "-c", "main", "--limit-bytes=10") == "line 1\nlin"


async def test_follow_streams_live_lines(leased: Bound, talkative: tuple[str, str]) -> None:
    namespace, name = talkative
    binary = (await leased.hub.site.binaries.ensure(["kubectl"]))["kubectl"]
    follower = await asyncio.create_subprocess_exec(
        str(binary),
        f"--kubeconfig={leased.hub.kubeconfig}",
        "logs",
        name,
        "-n",
        namespace,
        "-c",
        "ticker",
        "-f",
        "--tail=1",
        stdout=subprocess.PIPE,
    )
    assert follower.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            numbers = [int((await follower.stdout.readline()).split()[1]) for _ in range(10)]
        assert numbers == list(range(numbers[0], numbers[0] + 10))
        assert numbers[0] > 1
    finally:
        follower.kill()
        await follower.wait()


async def test_follow_ends_with_the_container(leased: Bound) -> None:
    namespace = await leased.hub.namespace()
    body = pod("ends", namespace, restartPolicy="Never")
    body["spec"]["containers"][0]["command"] = ["sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"]
    await apply(leased.hub, body)

    async def started() -> Any:
        found = await get(leased.hub, "pod", "ends", "-n", namespace)
        return found["status"]["phase"] in ("Running", "Succeeded")

    await eventually(started, "the container started")
    async with asyncio.timeout(60):
        assert (await leased.hub.kubectl("logs", "ends", "-n", namespace, "-f")).split() == ["1", "2", "3", "4", "5", "6"]


async def test_wrong_container_and_missing_pod_give_the_usual_errors(leased: Bound, talkative: tuple[str, str]) -> None:
    with pytest.raises(CommandFailed, match="container nope is not valid for pod talks"):
        await logs(leased, talkative, "-c", "nope")
    with pytest.raises(CommandFailed, match='pods "nobody" not found'):
        await logs(leased, (talkative[0], "nobody"))


async def test_container_that_has_not_started_says_what_it_waits_for(leased: Bound) -> None:
    namespace = await leased.hub.namespace()
    body = pod("waits", namespace)
    body["spec"]["containers"][0]["image"] = "localhost/nowhere:none"
    body["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    await apply(leased.hub, body)

    async def waiting() -> Any:
        found = await get(leased.hub, "pod", "waits", "-n", namespace)
        statuses = found["status"].get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull"

    await eventually(waiting, "the virtual pod shows why its container waits")
    with pytest.raises(CommandFailed, match='container "main" in pod "waits" is waiting to start: ErrImageNeverPull'):
        await logs(leased, (namespace, "waits"))
