"""Runs all tests in some pytest processes, most of them side by side, and prints a summary of all of them.

Invariant: every test below tests/ is in exactly one part, and every part in one lane; the exit code is 0 only when all parts passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

ALONE = ("tests/integration/runtime/test_scale.py", "tests/integration/runtime/test_thousand_nodes.py")
_RULES = "test_rule_ or test_crash_points"
"""Name patterns of modules: the rules that keep pods alive."""
PARTS: Mapping[str, Sequence[str]] = {
    "kubeocean": ("tests/integration/kubeocean", "-k", f"not ({_RULES})"),
    "rules": ("tests/integration/kubeocean", "-k", _RULES),
    "manager": ("tests/integration/manager",),
    "conformance": ("tests/conformance",),
    "end-to-end": ("tests/e2e",),
    "runtime": (
        "tests/integration",
        *(f"--ignore={path}" for path in ("tests/integration/kubeocean", "tests/integration/manager", *ALONE)),
    ),
    "unit": ("tests/unit",),
    "mutants": ("tests/mutants",),
    "alone": ALONE,
}
"""Arguments of the pytest processes; each has separate clusters, which are removed when it exits."""
LANES: Sequence[Sequence[Sequence[str]]] = (
    (("kubeocean", "unit", "mutants"), ("rules", "manager", "end-to-end"), ("conformance", "runtime")),
    (("alone",),),
)
"""Lanes of parts, side by side, as they wait more than they compute; about equally long. Those in `ALONE` load the machine as far as
possible, and compare that to times: no other tests may run meanwhile."""
_MEASURES: Mapping[str, str] = {"VKUBELET_COLD_PROGRAMS": "1"}
"""Environment of those in `ALONE`: a program costs what it costs its users, its imports included."""
_NOT_TESTS = {"benchmarks", "support", "__pycache__"}
_INTERRUPTED = 2


def left_out() -> set[str]:
    """Returns folders of tests that are in no part."""
    named = {Path(argument).parts[1] for argument in chain(*PARTS.values()) if argument.startswith("tests/")}
    return {folder.name for folder in Path("tests").iterdir() if folder.is_dir()} - named - _NOT_TESTS


def run(part: str) -> tuple[int, list[str]]:
    """Runs one part, shown line by line: returns its exit code, the tests that failed, and its last line."""
    command = (sys.executable, "-m", "pytest", *PARTS[part])
    # Memory is plenty and CPU is scarce: the programs of the clusters collect garbage at five times what they need instead of at twice.
    environment = {"GOGC": "400", **os.environ, "VKUBELET_CLUSTER_LOGS": f"build/cluster-logs/{part}"}
    environment |= _MEASURES if part == "alone" else {}
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            sys.stdout.write(f"{part}: {line}")
            sys.stdout.flush()
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return process.returncode, [*failed, *(f"{part}: {line}" for line in lines[-1:])]


def run_lane(parts: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Runs the parts one after the other, until one was interrupted."""
    ended: list[tuple[int, list[str]]] = []
    for part in parts:
        ended.append(run(part))
        if ended[-1][0] == _INTERRUPTED:
            break
    return ended


def main() -> int:
    if left_out():
        print(f"error: {', '.join(sorted(left_out()))} below tests/ is in no part; name it in {__file__}", file=sys.stderr)
        return 2
    # Ctrl-C is for the tests, which remove what they have started; then their summary is printed. It is a handler and not "ignore", which
    # child processes would keep, also those to which the tests send it.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    ended: list[tuple[int, list[str]]] = []
    for lanes in LANES:
        with ThreadPoolExecutor() as pool:
            ended += chain(*pool.map(run_lane, lanes))
        if any(code == _INTERRUPTED for code, _ in ended):
            break
    print()
    for _, said in ended:
        sys.stdout.writelines(said)
    return max((code for code, _ in ended), key=abs)


if __name__ == "__main__":
    sys.exit(main())
