"""The console script: `run` and `manager`, the processes that serve, are started here; all other commands are in `kubeocean.commands`
and `kubeocean.dashboard.command`.

Invariant: `run` only builds settings and passes one provider to the runtime; no second way to start exists. A process that serves imports
nothing that only a terminal needs: its memory counts for each binding, and typer with rich takes 3 MiB and a seventh of a second.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubeocean.manager.bindings import Beside, run_manager
from kubeocean.model import keys
from kubeocean.provider import KubeoceanProvider
from kubeocean.settings import KubeoceanSettings, ManagerProcessSettings, read_manager_settings
from vkubelet import logformat, settings
from vkubelet.api.objects import Json
from vkubelet.cli import add_settings_arguments, guarded, run_shards, settings_data, split_provider_section
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.errors import SettingsError

SERVING: Final = ("run", "manager")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _serve(arguments) if arguments[:1] and arguments[0] in SERVING else _run_command(arguments)))


def _serve(arguments: list[str]) -> None:
    parsed = serving_parser().parse_args(arguments)
    parsed.call(parsed)


def _run_command(arguments: list[str]) -> None:
    from kubeocean.dashboard.command import run

    run(arguments)


def serving_parser() -> argparse.ArgumentParser:
    """Returns the parser of the commands that serve."""
    parser = argparse.ArgumentParser(prog="kubeocean")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve one ClusterBinding until SIGTERM")
    run.add_argument("--binding", default="", help="name of the ClusterBinding (setting provider.binding)")
    add_settings_arguments(run)
    run.set_defaults(call=_command_run)
    _add_manager(commands.add_parser("manager", help="run a Deployment for each ClusterBinding until SIGTERM"))
    return parser


def _add_manager(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings", "--config", dest="config", type=Path, required=True, help="YAML file with settings; flags replace its values"
    )
    parser.add_argument("--kubeconfig", help="kubeconfig of the computing cluster")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="minimum level of log lines (default INFO)")
    parser.set_defaults(call=_command_manager, instance=None, node_address=None, self_signed=False)


def _command_manager(arguments: argparse.Namespace) -> None:
    run_manager(lambda: read_manager_settings(settings_data(arguments)), _dashboard)


def _dashboard(client: Client, clock: Clock, chosen: ManagerProcessSettings) -> Beside | None:
    if not chosen.dashboard.enabled:
        return None
    # Templates and pages are loaded only where they are served.
    from kubeocean.dashboard.serving import dashboard_of

    return dashboard_of(client, clock, chosen.dashboard, namespace=chosen.manager.namespace)


def _command_run(arguments: argparse.Namespace) -> None:
    chosen, own = _chosen(arguments)
    # Every log line of this process is about this binding.
    with logformat.bind(binding=own.binding):
        run_shards(lambda shard: KubeoceanProvider(own, shard), chosen, own, count=own.shards, read=lambda: _chosen(arguments))


def _chosen(arguments: argparse.Namespace) -> tuple[settings.Settings, KubeoceanSettings]:
    data, section = split_provider_section(settings_data(arguments))
    section = settings.merged(section, {"binding": arguments.binding} if arguments.binding else {})
    own = settings.convert(section, KubeoceanSettings, path="provider")
    if not own.binding:
        raise SettingsError("provider.binding", "required: the name of the ClusterBinding to serve; or pass --binding")
    return settings.convert(settings.merged(runtime_defaults(own.binding), data), settings.Settings), own


def runtime_defaults(binding: str) -> Json:
    """Returns the runtime defaults of kubeocean: Kubeocean's own taint replaces the runtime's, and names follow the binding.

    A binding's name may have 253 characters, a label 63 and a field manager 128: longer names are hashed, as in the labels of its nodes.
    """
    label = keys.label_value(binding)
    return {
        "instance": label,
        "field_manager": f"kubeocean-{label}",
        "node": {"taint": "", "selector": f"{keys.CLUSTER_BINDING}={label}"},
        "leader": {"namespace": keys.NAMESPACE},
    }
