"""Planted bugs: each patch beside this file puts one defect into the product, which the default campaign finds.

Invariant: a patch counts as found only by a violation of an oracle in a schedule of the default campaign, never by an import that fails.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from tests.support.warm import run_in_tree

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
INDEPENDENT = HERE.parent / "independent"
"""Bugs that were planted by the documentation alone, when the campaign was complete."""
PAGE = ROOT / "docs" / "reference" / "reliability.md"
_TABLE = r"(?<=<!-- {0}: made by `make docs` from the patches -->\n).*?(?=<!-- end of {0} -->)"
_RECORDED = ("Found-by: ", "Found-after: ", "Oracle: ")
COPIED = (".editable", "fleet", "kubeocean", "providers", "pyproject.toml", "tests/faults", "vkubelet")
UNFINISHED = shutil.ignore_patterns("*.pyc.*")
"""Bytecode that a process beside is writing, which may be gone before it is copied."""
LONGEST = 3600.0
"""Seconds that a campaign in a copied tree may take."""
DEFAULT_SEED = 1
DEFAULT_SCHEDULES = 2500
"""The bounded campaign of `make test`: each write site with each kind of fault once, the other faults of each scenario once, and the write
sites of pods in each scenario."""
MOST_SCHEDULES = 6000
"""Schedules after which a planted bug counts as missed; `make faults` runs more of them in its default time."""


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


def patches(names: Sequence[str] = (), *, folders: Sequence[Path] = (HERE, INDEPENDENT)) -> list[Planted]:
    """Returns all planted bugs of these folders, or those of these names."""
    found = [path for folder in folders for path in sorted(folder.glob("*.patch"))]
    return [Planted(path) for path in found if not names or path.stem in names]


def copy_to(place: Path, names: Sequence[str]) -> None:
    """Copies these files and folders of the tree by hard links, in a tenth of the time.

    Git and Python replace a file that they change, so the original stays as it is; the bytecode stays valid, as times are kept.
    """
    for name in names:
        source, target = ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=UNFINISHED, copy_function=_link)
        elif source.exists():
            _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)


@contextmanager
def tree(planted: Planted) -> Iterator[Path]:
    """A copy of the tree with the patch applied. Raises AssertionError when it does not apply."""
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        place = Path(directory)
        copy_to(place, COPIED)
        # Without a repository of its own, git would look for one above and skip what the patch names.
        subprocess.run(["git", "init", "--quiet", directory], check=True)
        applied = subprocess.run(["git", "apply", str(planted.path)], cwd=place, capture_output=True, text=True)
        assert applied.returncode == 0, f"{planted.path.name} does not apply; write it again for the code as it is: {applied.stderr}"
        yield place


def in_tree(place: Path, *arguments: str) -> list[str]:
    """Runs `python -m tests.faults.planted.find` in a tree; returns its last line as JSON: a schedule, and what was found."""
    code, output = run_in_tree("tests.faults.planted.find", *arguments, tree=place, seconds=LONGEST)
    assert code == 0, f"the simulation failed in {place}:\n{output[-4000:]}"
    found: list[str] = json.loads(output.splitlines()[-1])
    return found


def find_all(names: Sequence[str]) -> int:
    """Runs the campaign on each planted bug, records the schedule that found it, and prints a table; returns the exit code."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(_find, patches(names)))
    print("\n".join(table(patches(names))))
    PAGE.write_text(page())
    return 0 if all(found) else 1


def _find(planted: Planted) -> bool:
    with tree(planted) as place:
        schedule, number, violation = in_tree(place, "campaign", str(DEFAULT_SEED), str(MOST_SCHEDULES))
    print(f"{planted.name}: {schedule or 'not found'} after {number} schedules: {violation}", file=sys.stderr, flush=True)
    _record(planted, {"Found-by": schedule, "Found-after": number, "Oracle": violation.partition(")")[0].lstrip("(")} if schedule else {})
    return bool(schedule)


def table(planted: Sequence[Planted]) -> Iterator[str]:
    """Yields the lines of a table of planted bugs, by the headers of the patches."""
    yield "| defect | found by the schedule | schedules until then | oracle |"
    yield "|---|---|--:|---|"
    for each in planted:
        schedule = each.header("Found-by")
        cells = (each.header("Defect"), f"`{schedule}`" if schedule else "not found", each.header("Found-after"), each.header("Oracle"))
        yield f"| {' | '.join(cells)} |"


def table_of_independent(planted: Sequence[Planted]) -> Iterator[str]:
    """Yields the lines of the table of the bugs that were planted independently: their first run, and the present one."""
    yield "| promise | defect | found at first | why not | found now by | schedules until then | oracle |"
    yield "|---|---|---|---|---|--:|---|"
    for each in planted:
        schedule = each.header("Found-by")
        now = f"`{schedule}`" if schedule else "not found"
        cells = [each.header("Promise"), each.header("Defect"), each.header("At-first"), each.header("Missed-because"), now]
        yield f"| {' | '.join([*cells, each.header('Found-after'), each.header('Oracle')])} |"


def page() -> str:
    """Returns the page of the documentation with the tables of all planted bugs as their patches are now."""
    text = _with_table(PAGE.read_text(), "planted bugs", table(patches(folders=[HERE])))
    return _with_table(text, "independent bugs", table_of_independent(patches(folders=[INDEPENDENT])))


def _with_table(text: str, name: str, lines: Iterator[str]) -> str:
    rows = "\n".join(lines)
    return re.sub(_TABLE.format(name), lambda found: f"\n{rows}\n\n", text, count=1, flags=re.DOTALL)


def _record(planted: Planted, headers: Mapping[str, str]) -> None:
    text, _, diff = planted.path.read_text().partition("\ndiff --git ")
    kept = [line for line in text.splitlines() if line and not line.startswith(_RECORDED)]
    lines = [*kept, *(f"{name}: {value}" for name, value in headers.items())]
    planted.path.write_text("\n".join(lines) + "\n\ndiff --git " + diff)
