"""Planted bugs: each patch beside this file puts one defect into the product, which the default campaign finds.

Invariant: a patch counts as found only by a violation of an oracle in a schedule of the default campaign, never by an import that fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
COPIED = (".editable", "kubeocean", "providers", "pyproject.toml", "tests/__init__.py", "tests/faults", "vkubelet")
DEFAULT_SEED = 1
DEFAULT_SCHEDULES = 200
"""The bounded campaign of `make test`, and the one in which every planted bug is found."""


@frozen
class Planted:
    """One patch, by its header: what the defect is, and the schedule of the default campaign that finds it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def header(self, field: str) -> str:
        """Returns a field above the diff, "" when it is missing."""
        found = re.search(rf"^{field}: (\S.*)$", self.path.read_text().partition("\ndiff --git ")[0], re.MULTILINE)
        return found[1].strip() if found else ""


def patches(names: Sequence[str] = ()) -> list[Planted]:
    """Returns all planted bugs, or those of these names."""
    return [Planted(path) for path in sorted(HERE.glob("*.patch")) if not names or path.stem in names]


@contextmanager
def tree(planted: Planted) -> Iterator[Path]:
    """A copy of the tree with the patch applied. Raises AssertionError when it does not apply."""
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        place = Path(directory)
        for name in COPIED:
            source, target = ROOT / name, place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)  # with the bytecode, which stays valid as times are kept
            elif source.exists():
                shutil.copy(source, target)
        # Without a repository of its own, git would look for one above and skip what the patch names.
        subprocess.run(["git", "init", "--quiet", directory], check=True)
        applied = subprocess.run(["git", "apply", str(planted.path)], cwd=place, capture_output=True, text=True)
        assert applied.returncode == 0, f"{planted.path.name} does not apply; write it again for the code as it is: {applied.stderr}"
        yield place


def in_tree(place: Path, *arguments: str) -> list[str]:
    """Runs `python -m tests.faults.planted.find` in a tree; returns its last line as JSON: a schedule, and what was found."""
    paths = os.pathsep.join([str(place), str(place / ".editable")])
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.planted.find", *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"the simulation failed in {place}:\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}"
    found: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return found


def find_all(names: Sequence[str]) -> int:
    """Runs the default campaign on each planted bug, records the schedule that found it, and prints a table; returns the exit code."""
    missed = 0
    print("| planted bug | found by | schedules until then | oracle |")
    print("|---|---|---|---|", flush=True)
    for planted in patches(names):
        with tree(planted) as place:
            schedule, number, oracle = in_tree(place, "campaign", str(DEFAULT_SEED), str(DEFAULT_SCHEDULES))
        missed += not schedule
        print(f"| {planted.header('Defect')} | `{schedule or 'not found'}` | {number} | {oracle} |", flush=True)
        if schedule:
            _record(planted, schedule)
    return 1 if missed else 0


def _record(planted: Planted, schedule: str) -> None:
    lines = [line for line in planted.path.read_text().splitlines(keepends=True) if not line.startswith("Found-by: ")]
    lines.insert(1, f"Found-by: {schedule}\n")
    planted.path.write_text("".join(lines))
