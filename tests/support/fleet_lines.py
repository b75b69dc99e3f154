"""The numbered lines of the specification of `fleet`, and the tests that are named after them.

`python -m tests.support.fleet_lines` prints each line with its tests; with `--seed N` it prints twelve lines for which unit tests need
a mutant.

Invariant: a line is either tested by the name of a test (`test_f_113_…`, `test_f_175_to_f_180_…`), or left for later with a reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

from attrs import frozen

TESTS = Path(__file__).parents[1]
LINES = (
    *range(1, 18),
    *range(21, 30),
    51,
    *range(54, 65),
    *range(101, 119),
    *range(121, 130),
    *range(131, 134),
    *range(141, 149),
    *range(151, 158),
    *range(161, 167),
    *range(171, 181),
)
"""Lines that have been built: processes, commands, the view, safety, admission, and how a cluster joins, lives and leaves."""
LATER = {
    5: "what was prescribed stays in force without the hub: there are no works yet",
    17: "the credential plug-in comes with the gateway",
}
PICKED, SEED = 12, "17"
"""Number of lines with a mutant in tests/mutants, and the seed that picks them."""
_NAME = re.compile(r"^ *(?:async )?def (test_f_\w+)\(", re.MULTILINE)
_NUMBER = re.compile(r"(?<![a-z0-9])f_(\d+)(?:_to_f_(\d+))?")


@frozen(order=True)
class Named:
    """One test."""

    path: str
    name: str

    @property
    def is_unit(self) -> bool:
        return self.path.startswith("unit/")


def numbers(name: str) -> set[int]:
    """The lines in the name of a test."""
    found: set[int] = set()
    for first, last in _NUMBER.findall(name):
        found.update(range(int(first), int(last or first) + 1))
    return found


def by_line(paths: Iterable[Path]) -> dict[int, list[Named]]:
    """The tests of each line, in order."""
    found: dict[int, list[Named]] = {}
    for path in sorted(paths):
        for name in _NAME.findall(path.read_text()):
            for number in numbers(name):
                found.setdefault(number, []).append(Named(path.relative_to(TESTS).as_posix(), name))
    return found


def untested(found: Mapping[int, list[Named]]) -> list[int]:
    """Lines without a test that are not left for later."""
    return [number for number in LINES if number not in found and number not in LATER]


def picked(found: Mapping[int, list[Named]], seed: str) -> list[int]:
    """Lines with a unit test, chosen by a seed: each has a rank that does not depend on the others."""
    able = [number for number in LINES if any(each.is_unit for each in found.get(number, ()))]
    return sorted(sorted(able, key=lambda number: Random(f"{seed} {number}").random())[:PICKED])


def main(argv: list[str] | None = None) -> int:
    """Prints the table, or the lines that a seed picks; returns 1 when a line has no test."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fleet_lines")
    parser.add_argument("--seed", default="", help="print the lines that this seed picks")
    options = parser.parse_args(argv)
    found = by_line(TESTS.rglob("test_*.py"))
    for number in picked(found, options.seed) if options.seed else LINES:
        listed = found.get(number, [])
        if not listed:
            print(f"F-{number}\t{LATER.get(number, 'NO TEST')}")
        for each in listed:
            print(f"F-{number}\ttests/{each.path}::{each.name}")
    return 1 if untested(found) else 0


if __name__ == "__main__":
    sys.exit(main())
