"""The demonstration runs to its end, twice, and leaves nothing when it is taken down."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_SILENCE = 20.0
SECOND_RUN = 60.0


def demonstrate(directory: Path) -> tuple[str, float]:
    """What it printed, and the longest time between two lines. It must end with exit code 0."""
    command = [sys.executable, "deploy/demo/demo.py", str(directory)]
    lines, last, longest = [], time.monotonic(), 0.0
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            lines.append(line)
    text = "".join(lines)
    assert demo.returncode == 0, text
    return text, longest


def traces_of(directory: Path) -> list[str]:
    """Command lines and mounts that name the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command and f"/{os.getpid()}/" not in str(process):
            found.append(command)
    mounts = Path("/proc/mounts").read_text().splitlines()
    return found + [line for line in mounts if str(directory) in line]


def links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.mark.timeout(240)
def test_demo_ends_with_live_logs_runs_again_quickly_and_goes_without_a_trace(tmp_path: Path) -> None:
    directory = tmp_path / "dev"
    try:
        text, silence = demonstrate(directory)
        assert silence < LONGEST_SILENCE
        node = next(line for line in text.splitlines() if line.startswith("vnode-demo-"))
        assert node.split()[1] == "Ready"
        assert text.count("hello from hello-") >= 5
        began = time.monotonic()
        demonstrate(directory)
        assert time.monotonic() - began < SECOND_RUN
        made = {line.split()[0] for line in (directory / "state.json").read_text().split('"') if line.startswith("vk")}
        assert made & links(), "the state names the links that were made"
    finally:
        down = [sys.executable, "-m", "vkubelet.testing.cluster", "down", "--dir", str(directory)]
        subprocess.run(down, cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert not traces_of(directory)
    assert not made & links()
