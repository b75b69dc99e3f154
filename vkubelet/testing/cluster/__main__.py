"""`python -m vkubelet.testing.cluster up|down|binaries`: the clusters behind `make up`, `make down` and `make demo`.

Invariant: every failure exits with one sentence on stderr and exit code 1; there is no traceback for what a user can fix.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import binaries, development
from vkubelet.testing.cluster.processes import ClusterError

DIRECTORY = Path("build", "dev")


def say(line: str) -> None:
    """Prints progress, visible at once even when the output is a file."""
    print(line, flush=True)


def parser() -> argparse.ArgumentParser:
    """Builds the command line parser."""
    result = argparse.ArgumentParser(prog="python -m vkubelet.testing.cluster", description="Real Kubernetes clusters on this machine.")
    commands = result.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the clusters hub and worker; what runs already is kept")
    up.add_argument("--nodes", type=int, default=1, help="real nodes of worker (default 1, needs root)")
    up.add_argument("--simulated", type=int, default=0, help="nodes of worker that KWOK simulates (default 0)")
    down = commands.add_parser("down", help="end them and leave nothing behind")
    for command in (up, down):
        command.add_argument("--dir", type=Path, default=DIRECTORY, help=f"where state and kubeconfigs lie (default {DIRECTORY})")
    made = commands.add_parser("binaries", help="find, download or build the programs of the clusters")
    made.add_argument("--all", action="store_true", help="also those that are otherwise made when they are first asked for")
    return result


async def show_binaries(names: Iterable[str]) -> None:
    """Ensures that these programs exist, and prints their paths."""
    for name, path in (await binaries.Binaries(say=say, clock=SystemClock()).ensure(names)).items():
        say(f"{name:24} {path}")


async def until_terminated(work: Coroutine[object, object, None]) -> None:
    """Handles SIGTERM as Ctrl-C: what was started is undone."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = parser().parse_args(argv)
    if options.command == "up":
        work = development.up(options.dir, nodes=options.nodes, simulated=options.simulated, say=say)
    elif options.command == "down":
        work = development.down(options.dir, say=say)
    else:
        work = show_binaries([*binaries.ALL, *(binaries.ON_DEMAND if options.all else ())])
    try:
        asyncio.run(until_terminated(work))
    except* ClusterError as failures:
        for failure in leaves(failures):
            print("\n".join([f"error: {failure}", *getattr(failure, "__notes__", [])]), file=sys.stderr)
        return_code = 1
    except* (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything is undone", file=sys.stderr)
        return_code = 130
    else:
        return_code = 0
    return return_code


def leaves(group: BaseExceptionGroup[ClusterError]) -> list[BaseException]:
    """Returns the errors themselves, without the groups of the tasks in which they happened."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


if __name__ == "__main__":
    sys.exit(main())
