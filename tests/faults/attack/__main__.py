"""Starts the fuzzer of the kubelet port: `python -m tests.faults.attack --cases 1000000`.

Invariant: the seed is printed; a case that fails is left in a file, and new cases that reach more code are left in `--corpus`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from attrs import frozen

CORPUS = Path(__file__).parent / "corpus"
LONGEST = 400
"""Bytes of a case that the fuzzer makes."""


@frozen(kw_only=True)
class Run:
    """One run; `corpus` is a folder to which it adds, None for none; failing cases are left in `findings`."""

    cases: int
    seed: int
    findings: Path
    corpus: Path | None = None


def started(run: Run, *, shown: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs the fuzzer to its end; its output is returned, or shown while it comes."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = run.corpus or Path(folder)
        options = (f"-runs={run.cases}", f"-seed={run.seed}", f"-max_len={LONGEST}", "-len_control=10", f"-artifact_prefix={run.findings}/")
        command = [sys.executable, "-m", "tests.faults.attack.fuzz", *options, str(corpus), str(CORPUS)]
        output = None if shown else subprocess.PIPE
        # Sets of texts have the same order in each run.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.attack", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--corpus", type=Path, help="folder for cases that reach more code; empty: none is kept")
    parser.add_argument("--findings", type=Path, default=Path("build"), help="folder for cases that fail")
    given = parser.parse_args()
    given.findings.mkdir(parents=True, exist_ok=True)
    if given.corpus is not None:
        given.corpus.mkdir(parents=True, exist_ok=True)
    print(f"{given.cases} cases, seed {given.seed}", flush=True)
    return started(Run(cases=given.cases, seed=given.seed, findings=given.findings, corpus=given.corpus), shown=True).returncode


if __name__ == "__main__":
    sys.exit(main())
