"""Many pods that live and end in every way.

Invariant: what is left is looked for in the kernel's own books, by a mark in the environment of everything that the pods start.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from contextlib import suppress
from pathlib import Path

from tests.integration.process.conftest import Bench, groups
from tests.support.program import eventually
from vkubelet import Unavailable
from vkubelet.testing.host import make_pod
from vkubelet_providers.process import Process
from vkubelet_providers.process.keeper import procfs

PODS = 500
AT_ONCE = 8

SCRIPTS = [
    "exit 0",
    "exit 3",
    "echo out; echo err >&2; kill -9 $$",
    "sleep 1000",
    "sleep 1000 & sleep 1000 & exit 0",
    "setsid sleep 1000 & (setsid setsid sleep 1000 &) ; exit 5",
    "trap '' TERM; (setsid sh -c \"trap '' TERM; sleep 1000; sleep 1000\" &); while :; do sleep 0.2; done",
    "seq 1 5000",
    "mkdir -p sub/deep; touch sub/deep/file; chmod 000 sub; sleep 1000",
]


def marked(mark: str) -> list[str]:
    """Processes that have the mark in their environment."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(f"{name}: {Path(f'/proc/{name}/stat').read_text()}")
        except OSError:
            continue
    return found


def holders(directory: str) -> list[str]:
    """Other processes that have a file below it open, such as keepers."""
    found = []
    for name in os.listdir("/proc"):
        try:
            files = os.listdir(f"/proc/{name}/fd") if name.isdigit() and int(name) != os.getpid() else []
            found += [name for file in files if os.readlink(f"/proc/{name}/fd/{file}").startswith(directory)]
        except OSError:
            continue
    return found


def zombies() -> list[int]:
    """Children of this process that ended and that nobody has waited for."""
    found = (procfs.stat_of(pid) for pid in procfs.children(os.getpid()))
    return [each.pid for each in found if each is not None and each.state == "Z"]


def descriptors() -> list[str]:
    """Of this process."""
    return sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


async def one_life(bench: Bench, number: int, *, mark: str, seed: int) -> str:
    """Some life of one pod, and its removal; what kind it was."""
    dice = random.Random(seed * 1000 + number)
    spec = {"volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 1}
    pod = make_pod(f"pod-{number}", node="node", spec=spec)
    kind = dice.choice(["removed", "stopped", "restarted", "cut off", "keeper killed"])
    command = ("sh", "-c", dice.choice(SCRIPTS))
    start = bench.start(pod.metadata.name, *command, pod=pod, env={"MARK": mark})
    if kind == "cut off":
        try:
            await asyncio.wait_for(start, dice.random() * 0.06)
        except (TimeoutError, Unavailable):
            pass
    else:
        await start
    if kind == "stopped":
        await bench.provider.stop_container(pod.ref, "main", grace=dice.choice([0, 0.1]))
        await bench.ended(pod)
    elif kind == "restarted":
        await bench.provider.stop_container(pod.ref, "main", grace=0)
        await bench.ended(pod)
        await bench.start(pod.metadata.name, *command, pod=pod, env={"MARK": mark}, restarts=1)
    elif kind == "keeper killed":
        held = bench.provider.pods.get(pod.ref.uid)
        assert held is not None
        one = held.containers["main"]
        if one.runs:
            with suppress(ProcessLookupError):
                # Its container may have ended by itself just now.
                os.kill(one.state.keeper, signal.SIGKILL)
            await bench.ended(pod)
    await bench.remove(pod)
    return kind


async def test_many_pods_of_random_life_leave_nothing(bench: Bench, settings: Process.Settings) -> None:
    mark, kinds = uuid.uuid4().hex, set[str]()
    seed = int(os.environ.get("CHURN_SEED", "1"))
    numbers = iter(range(int(os.environ.get("CHURN_PODS", PODS))))

    async def worker() -> None:
        for number in numbers:
            kinds.add(await one_life(bench, number, mark=mark, seed=seed))

    before = len(os.listdir("/proc/self/fd"))
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    assert len(kinds) == 5
    # Without control groups nobody waits for what was killed; nothing of it ends by itself in this time.
    await eventually(lambda: not marked(mark), "no process is left")
    # A keeper lets go of its lock before it has ended.
    await eventually(lambda: not holders(settings.directory), "no keeper is left")
    await eventually(lambda: not zombies(), "every child is waited for")
    assert not list((Path(settings.directory) / "pods").iterdir())
    assert not [path for path in groups(settings.cgroup) if "pod" in path.name]
    assert settings.directory + "/" not in Path("/proc/self/mountinfo").read_text()
    # The socket of the nursery has come to be, and the file of the log.
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 2, f"no descriptor is left, of {descriptors()}")
