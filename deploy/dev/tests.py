"""Runs all tests in some pytest processes, two at a time, and ends with what all of them have to say.

Invariant: every test below tests/ is in exactly one part; the exit code is 0 only when all parts passed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Part = Sequence[str]

KUBEOCEAN = ("tests/integration/kubeocean", "tests/integration/manager")
ALONE = ("tests/integration/runtime/test_scale.py", "tests/integration/runtime/test_thousand_nodes.py")
"""They load the machine as far as it goes, and compare what that does to times: nothing of other tests may go on meanwhile."""
REST = ("tests/integration", "tests/unit", *(f"--ignore={path}" for path in (*KUBEOCEAN, *ALONE)))
LANES: Sequence[Sequence[Part]] = (
    (("tests/conformance", "tests/e2e"), REST),
    (KUBEOCEAN,),
)
"""What is in one lane runs one after the other, beside the other lane: most of these tests wait for something that takes its time."""
_NOT_TESTS = {"benchmarks", "support", "__pycache__"}
_INTERRUPTED = 2


def left_out() -> set[str]:
    """Folders of tests that are in no part."""
    parts = [part for lane in LANES for part in lane]
    named = {Path(argument).parts[1] for part in parts for argument in part if argument.startswith("tests/")}
    return {folder.name for folder in Path("tests").iterdir() if folder.is_dir()} - named - _NOT_TESTS


def run(arguments: Part) -> tuple[int, list[str]]:
    """One part, shown as it goes: its exit code, the tests that failed, and its last line. Ctrl-C ends it as it ends pytest."""
    command = (sys.executable, "-m", "pytest", *arguments)
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        while True:
            try:
                for line in process.stdout:
                    lines.append(line)
                    sys.stdout.write(line)
                    sys.stdout.flush()
                break
            except KeyboardInterrupt:
                # The terminal has told pytest, too; it takes down what it has started.
                continue
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return process.returncode, [*failed, *lines[-1:]]


def run_lane(lane: Sequence[Part]) -> list[tuple[int, list[str]]]:
    """Its parts up to one that was interrupted."""
    results: list[tuple[int, list[str]]] = []
    for part in lane:
        results.append(run(part))
        if results[-1][0] == _INTERRUPTED:
            break
    return results


def run_lanes() -> list[tuple[int, list[str]]]:
    """All of them side by side. Ctrl-C reaches the programs by the terminal; here they are only waited for."""
    with ThreadPoolExecutor(len(LANES)) as pool:
        lanes = [pool.submit(run_lane, lane) for lane in LANES]
        while True:
            try:
                return [result for lane in lanes for result in lane.result()]
            except KeyboardInterrupt:
                continue


def main() -> int:
    if left_out():
        print(f"error: {', '.join(sorted(left_out()))} below tests/ is in no part; name it in {__file__}", file=sys.stderr)
        return 2
    results = run_lanes()
    if _INTERRUPTED not in [code for code, _ in results]:
        results.append(run(ALONE))
    print()
    for _, said in results:
        sys.stdout.writelines(said)
    return max((code for code, _ in results), key=abs)


if __name__ == "__main__":
    sys.exit(main())
