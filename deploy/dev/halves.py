"""Runs all tests in two pytest processes side by side, then those that measure alone, and ends with what all have to say.

Invariant: every test below tests/ is in exactly one part; the exit code is 0 only when all parts passed.

Most tests wait more than they compute, so two halves need little more than half the time on two cores. A half has clusters of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

KUBEOCEAN = "tests/integration/kubeocean"
ALONE = ("tests/integration/runtime/test_scale.py", "tests/integration/runtime/test_thousand_nodes.py")
"""They load the machine as far as it goes, and compare what that does to times."""
HALVES: Sequence[Sequence[str]] = (
    ("tests/conformance", "tests/e2e", KUBEOCEAN),
    ("tests/integration", "tests/unit", *(f"--ignore={path}" for path in (KUBEOCEAN, *ALONE))),
)
_NOT_TESTS = {"benchmarks", "support", "__pycache__"}


class Half:
    """One pytest process; its lines are shown as they come and kept."""

    def __init__(self, number: int, arguments: Sequence[str]) -> None:
        self._mark = f"{number}| "
        self._lines: list[str] = []
        # One cache for two processes would be written by both.
        command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            sys.stdout.write(self._mark + line)
            sys.stdout.flush()

    def wait(self) -> int:
        """Its exit code, after all of its output."""
        self._reader.join()
        return self._process.wait()

    def interrupt(self) -> None:
        """As Ctrl-C does; it takes down what it has started."""
        self._process.send_signal(signal.SIGINT)

    @property
    def summary(self) -> list[str]:
        """Which tests failed, and the last line."""
        failed = [line for line in self._lines if line.startswith(("FAILED ", "ERROR "))]
        return [*failed, *self._lines[-1:]]


def left_out() -> set[str]:
    """Folders of tests that are in no half."""
    named = {Path(argument).parts[1] for half in HALVES for argument in half if argument.startswith("tests/")}
    return {folder.name for folder in Path("tests").iterdir() if folder.is_dir()} - named - _NOT_TESTS


def run(parts: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
    """Exit codes and summaries of parts that run side by side."""
    halves = [Half(number, arguments) for number, arguments in enumerate(parts, start=1)]

    def interrupt(*_: object) -> None:
        for half in halves:
            half.interrupt()

    signal.signal(signal.SIGTERM, interrupt)
    try:
        codes = [half.wait() for half in halves]
    except KeyboardInterrupt:
        # The terminal has told them, too; they take down what they have started.
        codes = [half.wait() or 1 for half in halves]
    return codes, [line for half in halves for line in half.summary]


def main() -> int:
    if left_out():
        print(f"error: {', '.join(sorted(left_out()))} below tests/ is in no half; name it in {__file__}", file=sys.stderr)
        return 2
    codes, summary = run(HALVES)
    if 2 not in codes:
        # 2: pytest was interrupted.
        more_codes, more = run([ALONE])
        codes, summary = codes + more_codes, summary + more
    print()
    sys.stdout.writelines(summary)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
