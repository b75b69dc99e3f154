"""`python -m tests.faults.planted.find`: prints which schedule finds something in this tree, as a line of JSON.

Invariant: it is run in a copy of the tree, so that a patched product is imported by a fresh interpreter.
"""

from __future__ import annotations

import json
import sys

from tests.faults.simulation.campaign import run
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.worlds import Outcome, judged


def main(command: str, *arguments: str) -> None:
    if command == "campaign":
        seed, most = map(int, arguments)
        report = run(seed=seed, most=most, jobs=1, stop=True)
        print(json.dumps(_shown(report.failed[0], report.schedules) if report.failed else ["", str(report.schedules), ""]))
    else:
        outcome = judged(Schedule.parse(command))
        print(json.dumps(_shown(outcome, 1) if outcome.violations else ["", "1", ""]))


def _shown(outcome: Outcome, number: int) -> list[str]:
    return [str(outcome.schedule), str(number), str(outcome.violations[0])[:300]]


if __name__ == "__main__":
    main(*sys.argv[1:])
