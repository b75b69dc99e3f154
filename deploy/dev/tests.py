"""Runs all tests in some pytest processes, one after the other, and ends with what all of them have to say.

Invariant: every test below tests/ is in exactly one part; the exit code is 0 only when all parts passed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KUBEOCEAN = ("tests/integration/kubeocean", "tests/integration/manager")
ALONE = ("tests/integration/runtime/test_scale.py", "tests/integration/runtime/test_thousand_nodes.py")
"""They load the machine as far as it goes, and compare what that does to times: nothing of other tests may go on meanwhile."""
PARTS: Sequence[Sequence[str]] = (
    ("tests/conformance", "tests/e2e", *KUBEOCEAN),
    ("tests/integration", "tests/unit", *(f"--ignore={path}" for path in (*KUBEOCEAN, *ALONE))),
    ALONE,
)
_NOT_TESTS = {"benchmarks", "support", "__pycache__"}
_INTERRUPTED = 2


def left_out() -> set[str]:
    """Folders of tests that are in no part."""
    named = {Path(argument).parts[1] for part in PARTS for argument in part if argument.startswith("tests/")}
    return {folder.name for folder in Path("tests").iterdir() if folder.is_dir()} - named - _NOT_TESTS


def run(arguments: Sequence[str]) -> tuple[int, list[str]]:
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


def main() -> int:
    if left_out():
        print(f"error: {', '.join(sorted(left_out()))} below tests/ is in no part; name it in {__file__}", file=sys.stderr)
        return 2
    # Whoever starts us in the background of a shell has us ignore Ctrl-C; inherited, that would also hold for what the tests send it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    codes: list[int] = []
    summary: list[str] = []
    for part in PARTS:
        code, said = run(part)
        codes.append(code)
        summary += said
        if code == _INTERRUPTED:
            break
    print()
    sys.stdout.writelines(summary)
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
