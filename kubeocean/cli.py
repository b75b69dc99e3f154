"""`kubeocean run --binding NAME`: the vkubelet process of one ClusterBinding.

Invariant: it only builds settings and passes one provider to the runtime; no second way to start exists.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from kubeocean.commands import bind, status, unbind
from kubeocean.manager.bindings import run_manager
from kubeocean.model import keys
from kubeocean.provider import KubeoceanProvider
from kubeocean.settings import KubeoceanSettings, read_manager_settings
from vkubelet import logformat, settings
from vkubelet.api.objects import Json
from vkubelet.cli import add_settings_arguments, guarded, run_runtime, settings_data, split_provider_section
from vkubelet.errors import SettingsError


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = _parser().parse_args(argv)
    sys.exit(guarded(lambda: arguments.call(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubeocean", description="Leases nodes of worker clusters to a computing cluster, where they are virtual nodes."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve one ClusterBinding until SIGTERM")
    run.add_argument("--binding", default="", help="name of the ClusterBinding (setting provider.binding)")
    add_settings_arguments(run)
    run.set_defaults(call=_command_run)
    _add_manager(commands.add_parser("manager", help="run a Deployment for each ClusterBinding until SIGTERM"))
    for command in (bind, unbind, status):
        command.add(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
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
    run_manager(lambda: read_manager_settings(settings_data(arguments)))


def _command_run(arguments: argparse.Namespace) -> None:
    chosen, own = _chosen(arguments)
    # Every log line of this process is about this binding.
    with logformat.bind(binding=own.binding):
        run_runtime(KubeoceanProvider(own), chosen, own, read=lambda: _chosen(arguments))


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
