"""`python -m tests.faults`: the campaign of `make faults`, one schedule again, or the campaign on planted bugs.

Invariant: the exit code is 0 only when no oracle found anything, or when every planted bug was found.
"""

from __future__ import annotations

import argparse
import os
import random
import sys

# Sets of texts have the order of their hashes, and the product may run through one: a printed schedule must run again exactly.
if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, [sys.executable, "-m", "tests.faults", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})

from tests.faults import planted
from tests.faults.simulation import campaign, worlds
from tests.faults.simulation.oracles import judge
from tests.faults.simulation.schedule import Schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ran = commands.add_parser("run", help="run a campaign and print its report")
    ran.add_argument("--minutes", type=float, default=5.0)
    ran.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    ran.add_argument("--most", type=int, default=None, help="number of schedules")
    ran.add_argument("--jobs", type=int, default=0, help="processes; default: one for each core")
    ran.add_argument("--only", nargs="*", default=(), metavar="WORLD/SCENARIO")
    again = commands.add_parser("replay", help="run one schedule again and print its history")
    again.add_argument("schedule", help="the line that a report shows")
    bugs = commands.add_parser("planted", help="run the default campaign on every planted bug and print the table")
    bugs.add_argument("names", nargs="*")
    commands.add_parser("table", help="write the table of planted bugs into the documentation")
    arguments = parser.parse_args()
    match arguments.command:
        case "run":
            return _run(arguments)
        case "replay":
            return _replay(Schedule.parse(arguments.schedule))
        case "table":
            planted.PAGE.write_text(planted.page())
            return 0
    return planted.find_all(arguments.names)


def _run(arguments: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    report = campaign.run(
        seed=seed,
        seconds=60.0 * arguments.minutes,
        most=arguments.most,
        jobs=arguments.jobs,
        only=arguments.only,
        on_failure=lambda outcome: print(f"failed: {outcome.schedule}: {outcome.violations[0]}", flush=True),
    )
    print(report.text())
    return 1 if report.failed else 0


def _replay(schedule: Schedule) -> int:
    history = worlds.play(schedule)
    violations = judge(history, schedule)
    print("\n".join(history.lines()))
    print("\n".join(map(str, violations)) or "no violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
