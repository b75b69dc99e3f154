"""The console script `fleet`.

Invariant: a command that is registered works; one that is not written yet is not registered.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

from vkubelet.cli import guarded


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _run(arguments)))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = argparse.ArgumentParser(prog="fleet", description="Manages many clusters under one hub.")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return made


def _run(arguments: Sequence[str]) -> None:
    parsed = parser().parse_args(arguments)
    parsed.call(parsed)
