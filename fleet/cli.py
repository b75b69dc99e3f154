"""The console script `fleet`.

Invariant: a command that is registered works; one that is not written yet is not registered.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from vkubelet import settings
from vkubelet.cli import guarded


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _run(arguments)))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = argparse.ArgumentParser(prog="fleet", description="Manages many clusters under one hub.")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _add_agent(commands.add_parser("agent", help="keep the cluster in which this runs joined to a hub, until SIGTERM"))
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return made


def _add_agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", "--config", dest="config", type=Path, help="YAML file with settings; flags replace its values")
    parser.add_argument("--cluster", help="name of this cluster on the hub (setting agent.cluster)")
    parser.add_argument("--kubeconfig", help="kubeconfig of the cluster in which this runs")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="minimum level of log lines (default INFO)")
    parser.set_defaults(call=_command_agent)


def _command_agent(arguments: argparse.Namespace) -> None:
    from fleet.agent.settings import AgentProcessSettings, read_agent_settings
    from fleet.processes.agent import run_agent

    def read() -> AgentProcessSettings:
        data = settings.read_yaml(arguments.config) if arguments.config else {}
        flags = {
            ("agent", "cluster"): arguments.cluster,
            ("cluster", "kubeconfig"): arguments.kubeconfig,
            ("cluster", "context"): arguments.context,
            ("log", "level"): arguments.log_level,
        }
        for (part, name), value in flags.items():
            data = settings.merged(data, {part: {name: value}}) if value is not None else data
        return read_agent_settings(data)

    run_agent(read)


def _run(arguments: Sequence[str]) -> None:
    parsed = parser().parse_args(arguments)
    parsed.call(parsed)
