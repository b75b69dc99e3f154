"""The demonstration runs to its end, twice, and leaves nothing when it is taken down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST_SILENCE = 30.0
"""Seconds; while it waits it says so every ten."""
SECOND_RUN = 90.0
"""Seconds, several times what a machine needs that has nothing else to do; on others less than the first run, which starts everything."""


def without_rights() -> list[str]:
    """What makes a command run as somebody who is not root and has no capability, but may read what root may."""
    return ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []


def demonstrate(directory: Path, *, as_: Sequence[str] = ()) -> tuple[str, float]:
    """What it printed, and the longest time between two lines. It must end with exit code 0, so nothing may take longer than it waits."""
    command = [*as_, sys.executable, "deploy/demo/demo.py", str(directory)]
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


def dashboard_of(text: str) -> str:
    (address,) = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("Dashboard, ")]
    return address


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as page:
        text: str = page.read().decode()
    return text


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


def test_demo_ends_with_live_logs_runs_again_quickly_and_goes_without_a_trace(tmp_path: Path) -> None:
    directory = tmp_path / "dev"
    try:
        began = time.monotonic()
        text, silence = demonstrate(directory)
        first = time.monotonic() - began
        assert silence < LONGEST_SILENCE
        node = next(line for line in text.splitlines() if line.startswith("vnode-demo-"))
        assert node.split()[1] == "Ready"
        assert text.count("hello from hello-") >= 5
        assert "a shell in\nhello-" in text
        assert text.partition("$ kubeocean status")[2].splitlines()[2].split()[:3] == ["demo", "Ready", "1/1"]
        address = dashboard_of(text)
        assert "vnode-demo-node-1" in fetch(address)
        began = time.monotonic()
        text, _ = demonstrate(directory)
        assert time.monotonic() - began < max(SECOND_RUN, first)
        assert dashboard_of(text) != address and "vnode-demo-node-1" in fetch(dashboard_of(text))
        made = {line.split()[0] for line in (directory / "state.json").read_text().split('"') if line.startswith("vk")}
        assert made & links(), "the state names the links that were made"
    finally:
        take_down(directory)
    assert not traces_of(directory)
    assert not made & links()


def join(directory: Path, number: int) -> str:
    """What `make up JOINED=n` prints after the clusters run."""
    command = [sys.executable, "deploy/dev/joined.py", str(number), "--dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    logs = "".join(f"{path}:\n{path.read_text()[-3000:]}\n" for path in directory.glob("*.log") if done.returncode)
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return done.stdout


def take_down(directory: Path) -> None:
    down = [sys.executable, "-m", "vkubelet.testing.cluster", "down", "--dir", str(directory)]
    subprocess.run(down, cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_demo_without_root_rights_says_so_and_shows_the_same_on_a_simulated_node(tmp_path: Path) -> None:
    directory = tmp_path / "dev"
    try:
        text, silence = demonstrate(directory, as_=without_rights())
        assert silence < LONGEST_SILENCE
        assert "you are not root, so no container runs here" in text
        node = next(line for line in text.splitlines() if line.startswith("vnode-demo-simulated"))
        assert node.split()[1] == "Ready"
        assert text.count("hello from hello-") >= 5
        assert "a shell in\nhello-" in text
        assert "vnode-demo-simulated" in fetch(dashboard_of(text))
        assert not [entry for entry in json.loads((directory / "state.json").read_text())["made"] if entry["kind"] == "link"]
        assert "joined; to list them" in join(directory, 1)
        recorded = (directory / "state.json").read_text()
        assert "joined; to list them" in join(directory, 1)
        assert (directory / "state.json").read_text().count('"process"') == recorded.count('"process"'), "what runs is kept"
    finally:
        take_down(directory)
    assert not traces_of(directory)
