"""`python -m tests.faults`: the campaign of `make faults`, one schedule again, the campaign on planted bugs, or the check of the model.

Invariant: the exit code is 0 only when nothing was found in the product or in the model, or when every planted bug was found.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time

from attrs import define, field

# Sets of texts have the order of their hashes, and the product may run through one: a printed schedule must run again exactly.
if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, [sys.executable, "-m", "tests.faults", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})

from tests.faults import planted
from tests.faults.model import comparison
from tests.faults.simulation import campaign, worlds
from tests.faults.simulation.oracles import judge
from tests.faults.simulation.schedule import Kind, Schedule
from tests.faults.simulation.worlds import Outcome

_PRINTED_EVERY = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ran = commands.add_parser("run", help="run a campaign and print its report")
    ran.add_argument("--minutes", type=float, default=5.0)
    ran.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    ran.add_argument("--most", type=int, default=None, help="number of schedules")
    ran.add_argument("--after", type=int, default=0, help="continue a campaign of this seed, as its report shows")
    ran.add_argument("--jobs", type=int, default=0, help="processes; default: one for each core")
    ran.add_argument("--only", nargs="*", default=(), metavar="WORLD/SCENARIO")
    ran.add_argument("--kinds", nargs="*", default=(), type=Kind, help="single faults of these kinds only, such as dropped")
    again = commands.add_parser("replay", help="run one schedule again and print its history")
    again.add_argument("schedule", help="the line that a report shows")
    bugs = commands.add_parser("planted", help="run the default campaign on every planted bug and print the table")
    bugs.add_argument("names", nargs="*")
    checked = commands.add_parser("sequences", help="send random requests to the model and to a real API server, and compare the answers")
    checked.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    checked.add_argument("--count", type=int, default=100, help="number of sequences")
    checked.add_argument("--first", type=int, default=0, help="number of the first one, as a difference shows it")
    commands.add_parser("table", help="write the table of planted bugs into the documentation")
    arguments = parser.parse_args()
    match arguments.command:
        case "run":
            return _run(arguments)
        case "sequences":
            return _compare(arguments)
        case "replay":
            return _replay(Schedule.parse(arguments.schedule))
        case "table":
            planted.PAGE.write_text(planted.page())
            return 0
    return planted.find_all(arguments.names)


@define
class Progress:
    """Prints each failure at once, and how far the campaign is every minute."""

    schedules: int = 0
    failed: int = 0
    _began: float = field(factory=time.monotonic)
    _printed: float = field(factory=time.monotonic)

    def note(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.failed += bool(outcome.violations)
        if outcome.violations:
            print(f"failed: {outcome.schedule}: {outcome.violations[0]}", flush=True)
        if (now := time.monotonic()) - self._printed >= _PRINTED_EVERY:
            self._printed = now
            print(f"{(now - self._began) / 60:.0f} min: {self.schedules} schedules, {self.failed} failed", flush=True)


def _run(arguments: argparse.Namespace) -> int:
    seed = _seed(arguments)
    report = campaign.run(
        seed=seed,
        seconds=60.0 * arguments.minutes,
        most=arguments.most,
        jobs=arguments.jobs,
        only=arguments.only,
        kinds=arguments.kinds,
        after=arguments.after,
        on_outcome=Progress().note,
    )
    print(report.text())
    return 1 if report.failed else 0


def _compare(arguments: argparse.Namespace) -> int:
    differences = asyncio.run(comparison.compare_with_new(_seed(arguments), first=arguments.first, sequences=arguments.count))
    print(*differences, f"{len(differences)} differences in {arguments.count} sequences of {comparison.STEPS} requests", sep="\n")
    return 1 if differences else 0


def _seed(arguments: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else int(arguments.seed)
    print(f"seed {seed}", flush=True)
    return seed


def _replay(schedule: Schedule) -> int:
    history = worlds.play(schedule)
    violations = judge(history, schedule)
    print("\n".join(history.lines()))
    print(f"history {history.digest()}")
    print("\n".join(map(str, violations)) or "no violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
