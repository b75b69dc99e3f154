"""The tutorial on a backend of one's own, done as a reader does it: its files are written, its commands are run, in the order of the page.

Invariant: nothing is run that the page does not show; only the address of the node and the way to the cluster come from here.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from attrs import frozen

from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.conformance import RULES

PAGE = Path(__file__).parents[2] / "docs" / "build" / "tutorial.md"
SECONDS = 600.0
"""For the whole page, in which what waits has a limit of its own; only what hangs takes longer, for good."""
ROUNDS, SEED = 15, 7

pytestmark = pytest.mark.timeout(700)


@frozen
class Block:
    """One fenced block of the page."""

    language: str
    text: str


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def write_files(blocks: list[Block], directory: Path) -> list[Path]:
    """Each Python block says in its first line as which file to save it."""
    files = []
    for block in blocks:
        if block.language == "python":
            name = block.text.splitlines()[0].removeprefix("# ")
            files.append(directory / name)
            files[-1].write_text(block.text)
    return files


def environment(cluster: ControlPlane, kubectl: Path, directory: Path) -> Mapping[str, str]:
    """kubectl and our commands are found, and both find the cluster."""
    programs = directory / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl)
    path = os.pathsep.join((str(Path(sys.executable).parent), str(programs), os.environ["PATH"]))
    more = {"PATH": path, "KUBECONFIG": str(cluster.kubeconfig), "NODE_ADDRESS": cluster.host_address, "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **more}


def run(commands: str, *, directory: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """In one shell, as in one terminal; whatever it started in the background ends with it."""
    process = subprocess.Popen(
        ["bash", "-c", commands],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=SECONDS)
        return process.returncode, out
    except subprocess.TimeoutExpired:
        print(subprocess.run(["ps", "-o", "pid,ppid,stat,etime,wchan,args", "-s", str(process.pid)], capture_output=True, text=True).stdout)
        os.killpg(process.pid, signal.SIGTERM)
        process.kill()
        print(process.communicate()[0])
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.kill()


async def test_the_page_leads_to_a_provider_that_keeps_the_rules(blocks: list[Block], bare_hub: ControlPlane, tmp_path: Path) -> None:
    kubectl = (await bare_hub.site.binaries.ensure(["kubectl"]))["kubectl"]
    assert {file.name for file in write_files(blocks, tmp_path)} == {"batch.py", "provider.py"}
    shell = [block.text for block in blocks if block.language == "bash"]
    # A failing command ends the reader's work, and the end of each block is marked.
    commands = "set -euo pipefail\n" + "".join(f"{text}\necho '=== {number}'\n" for number, text in enumerate(shell))
    try:
        code, out = run(commands, directory=tmp_path, env=environment(bare_hub, kubectl, tmp_path))
    finally:
        log = tmp_path / "vkubelet.log"
        print(log.read_text() if log.exists() else "the node never ran")
        await bare_hub.kubectl("delete", "pod", "greeter", "--ignore-not-found", "--force", "--grace-period=0")
        await bare_hub.kubectl("delete", "node", "batch", "--ignore-not-found")
    print(out)
    assert code == 0
    parts = re.split(r"^=== \d+$", out, flags=re.MULTILINE)
    assert len(parts) == len(shell) + 1
    shows(parts, blocks)
    assert not list((tmp_path / "jobs").iterdir()), "jobs were left behind"


def shows(parts: list[str], blocks: list[Block]) -> None:
    """What the page says that a command shows: the capabilities, the log of the pod, and the table of the suite."""
    checked, node, suite = parts[1], parts[2], parts[3]
    assert "SupportsPolling: yes" in checked and "SupportsExec: no" in checked
    greeting, rules = [block.text for block in blocks if block.language == "text"]
    assert re.fullmatch(r"hello from job \d+", node.strip().splitlines()[-1])
    assert re.fullmatch(r"hello from job \d+\n", greeting)
    for line in rules.splitlines():
        name, outcome, *_ = line.split()
        assert re.search(rf"^{name} +{outcome} ", suite, re.MULTILINE), name
    assert len(re.findall(r" passed ", suite)) >= sum(not rule.needs for rule in RULES)
    assert re.search(r"^\d+ passed, 0 failed, \d+ skipped$", suite, re.MULTILINE)


async def test_the_batch_system_goes_on_when_jobs_end_while_they_are_removed(blocks: list[Block], tmp_path: Path) -> None:
    write_files(blocks, tmp_path)
    jobs, randomness = tmp_path / "jobs", Random(SEED)
    jobs.mkdir()
    batch = subprocess.Popen([sys.executable, "batch.py", "jobs"], cwd=tmp_path)
    try:
        for number in range(ROUNDS):
            # Each removal meets some jobs that end at that moment.
            for job in range(10):
                draft = jobs / f"{number}-{job}.draft"
                draft.write_text(f"sleep {randomness.uniform(0.0, 0.25):.3f}\n")
                draft.rename(draft.with_suffix(".job"))
            await eventually(lambda first=f"{number}-*.out": len(list(jobs.glob(first))) == 10 or ended(batch), "all jobs run", every=0.02)
            await asyncio.sleep(randomness.uniform(0.0, 0.2))
            for file in jobs.glob(f"{number}-*.job"):
                file.unlink()
        await eventually(lambda: not list(jobs.iterdir()) or ended(batch), "nothing is left of the jobs")
        batch.terminate()
        assert batch.wait(timeout=30) == 0
    finally:
        batch.kill()
        batch.wait()


def ended(process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"it exited with {process.returncode}"
    return False


def test_the_page_is_reached_from_the_others() -> None:
    docs = PAGE.parents[1]
    for page in ("index.md", "start/provider.md", "build/guide.md"):
        assert PAGE.name in (docs / page).read_text(), page
