"""vkubelet is killed, and everything is found again.

Invariant: numbers of processes and start times are the kernel's, read beside the provider.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.integration.process.conftest import NODE, Bench, clear, running
from tests.support.program import eventually
from vkubelet import ContainerReport, Running, SettingsError, Terminated
from vkubelet.provider import LogOptions
from vkubelet_providers.process import Process

COUNT = 20
ENDING = range(5, 10)


def beginning(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


async def killed_with(settings: Process.Settings) -> list[int]:
    """Start pods under a supervisor, and kill it; the processes of the pods."""
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.process.supervisor", settings.directory, settings.cgroup, str(COUNT)),
        cwd=Path(__file__).parents[3],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert supervisor.stdout is not None
        return [int(pid) for pid in json.loads(await asyncio.wait_for(supervisor.stdout.readline(), 60))]
    finally:
        supervisor.kill()
        await supervisor.wait()


async def held_after(bench: Bench) -> dict[str, ContainerReport]:
    """What is known of the containers, once the keepers of those that end have written that down."""

    async def look() -> dict[str, ContainerReport] | None:
        found = {report.pod.name: report.containers[0] for report in await bench.provider.list_containers(NODE)}
        return found if all(isinstance(found[f"pod-{number}"].state, Terminated) for number in ENDING) else None

    reports: dict[str, ContainerReport] = await eventually(look, "the ends are known", every=0.02)
    return reports


async def test_kill_9_restarts_nothing_loses_no_line_and_no_exit_code(settings: Process.Settings) -> None:
    try:
        pids = await killed_with(settings)
        starts = [beginning(pid) for pid in pids]
        for number in ENDING:
            Path(f"{settings.directory}/stop.{number}").touch()
        await eventually(lambda: not any(Path(f"/proc/{pids[number]}").exists() for number in ENDING), "some end meanwhile", every=0.02)
        async with running(settings) as bench:
            reports = await held_after(bench)
            assert len(reports) == COUNT
            for number in range(COUNT):
                report = reports[f"pod-{number}"]
                assert report.restarts == 0 and report.last is None
                if number in ENDING:
                    assert getattr(report.state, "exit_code", None) == number
                else:
                    assert isinstance(report.state, Running) and beginning(pids[number]) == starts[number]
            for number in range(COUNT):
                Path(f"{settings.directory}/stop.{number}").touch()
            for number in range(COUNT):
                held = bench.provider.pods.get(f"uid-pod-{number}")
                assert held is not None
                await eventually(lambda held=held: not held.containers["main"].runs, "it ends", every=0.02)
                assert held.containers["main"].state.exit_code == number
                chunks = bench.provider.stream_logs(held.ref, "main", LogOptions())
                lines = [line.split(b" ", 1)[1] for chunk in [c async for c in chunks] for line in chunk.splitlines()]
                count = int(lines[-1].split()[1])
                assert lines == [*(b"line %d" % i for i in range(count)), b"lines %d" % count] and count >= 1
    finally:
        await clear(settings)
    assert not list((Path(settings.directory) / "pods").iterdir())


async def test_two_providers_do_not_share_a_directory(settings: Process.Settings) -> None:
    async with running(settings):
        try:
            async with running(settings):
                raise AssertionError("both run")
        except* SettingsError as refused:
            assert "provider.directory" in str(refused.exceptions[0])


async def test_what_was_cut_off_while_it_was_made_is_cleared_away(settings: Process.Settings) -> None:
    pods = Path(settings.directory) / "pods"
    (pods / "uid-half").mkdir(parents=True)
    async with running(settings) as bench:
        assert not (pods / "uid-half").exists()
        pod = await bench.start("web", "sleep", "1000")
        held = bench.provider.pods.get("uid-web")
        assert held is not None
        # A start of which nothing came: its directory, and no keeper.
        (held.directory / "containers/main/1/log").mkdir(parents=True)
    async with running(settings) as bench:
        (report,) = await bench.provider.list_containers(NODE)
        assert isinstance(report.containers[0].state, Running) and report.containers[0].restarts == 0
        await bench.provider.remove_pod(pod.ref)


async def test_a_boot_in_between_is_told_as_unknown(settings: Process.Settings) -> None:
    try:
        async with running(settings) as bench:
            pod = await bench.start("web", "sh", "-c", "exit 0")
            await bench.ended(pod)
            held = bench.provider.pods.get(pod.ref.uid)
            assert held is not None
            # Its keeper has told the end before it is gone itself.
            await eventually(lambda: not held.containers["main"].attempt.is_kept(), "its keeper is gone", every=0.02)
        state = Path(settings.directory) / "pods/uid-web/containers/main/0/state.json"
        body = json.loads(state.read_text())
        # As a boot leaves it: of another time, with a number that somebody else has now.
        state.write_text(json.dumps({"pid": 1, "start": 1, "keeper": 1, "boot": "before", "started": body["started"]}))
        async with running(settings) as bench:
            (report,) = await bench.provider.list_containers(NODE)
            ended = report.containers[0].state
            assert isinstance(ended, Terminated)
            assert (ended.exit_code, ended.reason) == (137, "ContainerStatusUnknown")
        assert Path("/proc/1").exists()
    finally:
        await clear(settings)
