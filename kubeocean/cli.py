"""`kubeocean run --binding NAME`: the vkubelet process of one ClusterBinding.

Invariant: it only builds settings and passes one provider to the runtime; no second way to start exists.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from kubeocean.commands import bind, status, unbind
from kubeocean.manager import settings as manager_settings
from kubeocean.manager.app import run_manager
from kubeocean.model import keys
from kubeocean.provider import KubeoceanProvider
from kubeocean.settings import KubeoceanSettings
from vkubelet import logformat, settings
from vkubelet.api.shapes import Json
from vkubelet.cli import add_settings_arguments, guarded, run_runtime, settings_data
from vkubelet.errors import SettingsError
from vkubelet.settings import Settings


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = _parser().parse_args(argv)
    sys.exit(guarded(lambda: arguments.call(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubeocean", description="The nodes of worker clusters as virtual nodes of a computing cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve one ClusterBinding until SIGTERM")
    run.add_argument("--binding", default="", help="name of the ClusterBinding")
    add_settings_arguments(run)
    run.set_defaults(call=_command_run)
    _add_manager(commands.add_parser("manager", help="serve all ClusterBindings: one Deployment for each"))
    for command in (bind, unbind, status):
        command.add(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return parser


def _add_manager(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", "--config", dest="config", type=Path, required=True, help="YAML file with settings")
    parser.add_argument("--kubeconfig", help="the computing cluster")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.set_defaults(call=_command_manager, instance=None, node_address=None, self_signed=False)


def _command_manager(arguments: argparse.Namespace) -> None:
    run_manager(lambda: manager_settings.read(settings_data(arguments)))


def _command_run(arguments: argparse.Namespace) -> None:
    chosen, own = _chosen(arguments)
    # Every log line of this process is about this binding.
    with logformat.bind(binding=own.binding):
        run_runtime(KubeoceanProvider(own), chosen, read=lambda: _chosen(arguments))


def _chosen(arguments: argparse.Namespace) -> tuple[Settings, KubeoceanSettings]:
    data = settings_data(arguments)
    section: Json = settings.merged(data.pop("provider", {}), {"binding": arguments.binding} if arguments.binding else {})
    binding = section.get("binding", "")
    if not binding:
        raise SettingsError("provider.binding", "name the ClusterBinding to serve with --binding")
    own = settings.convert(section, KubeoceanSettings, path="provider")
    return settings.convert(settings.merged(runtime_defaults(binding), data), Settings), own


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
