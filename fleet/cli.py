"""The console script `fleet`.

Invariant: a command that is registered works; one that is not written yet is not registered.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from vkubelet.cli import guarded, settings_data


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _run(arguments)))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = argparse.ArgumentParser(prog="fleet", description="Manages many clusters under one hub.")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _add_hub(commands.add_parser("hub", help="run the controllers of the hub until SIGTERM"))
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return made


def _add_hub(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", "--settings", dest="config", type=Path, help="YAML file with settings; flags replace its values")
    parser.add_argument("--kubeconfig", help="kubeconfig of the hub")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="minimum level of log lines (default INFO)")
    parser.set_defaults(call=_command_hub, instance=None, node_address=None, self_signed=False)


def _command_hub(arguments: argparse.Namespace) -> None:
    from fleet.processes.hub import run_hub
    from fleet.settings import read_hub_settings

    run_hub(lambda: read_hub_settings(settings_data(arguments)))


def _run(arguments: Sequence[str]) -> None:
    parsed = parser().parse_args(arguments)
    parsed.call(parsed)
