"""`kubeocean run --binding NAME`: the vkubelet process of one ClusterBinding.

Invariant: all it does is build settings and hand one provider to the runtime; there is no second way to start.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from functools import partial

from kubeocean import keys
from kubeocean.provider import KubeoceanProvider
from vkubelet import settings
from vkubelet.api.shapes import Json
from vkubelet.cli import add_settings_arguments, guarded, log_level, make_provider, run_runtime, settings_data
from vkubelet.errors import SettingsError
from vkubelet.settings import Settings


def main(argv: Sequence[str] | None = None) -> None:
    """The console script; exits with 0, 1 or 2."""
    arguments = _parser().parse_args(argv)
    sys.exit(guarded(lambda: arguments.call(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubeocean", description="The nodes of worker clusters as virtual nodes of a computing cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve one ClusterBinding until SIGTERM")
    run.add_argument("--binding", default="", help="name of the ClusterBinding")
    add_settings_arguments(run)
    run.set_defaults(call=_command_run)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return parser


def _command_run(arguments: argparse.Namespace) -> None:
    data = settings_data(arguments)
    section: Json = settings.merged(data.pop("provider", {}), {"binding": arguments.binding} if arguments.binding else {})
    binding = section.get("binding", "")
    if not binding:
        raise SettingsError("provider.binding", "name the ClusterBinding to serve with --binding")
    made, _ = make_provider(KubeoceanProvider, section)
    chosen = settings.convert(settings.merged(runtime_defaults(binding), data), Settings)
    run_runtime(made, chosen, level=partial(log_level, arguments))


def runtime_defaults(binding: str) -> Json:
    """How the runtime's settings differ for kubeocean: names by the binding, and Kubeocean's own taint in the place of the runtime's."""
    return {
        "instance": binding,
        "field_manager": f"kubeocean-{binding}",
        "node": {"taint": "", "selector": f"{keys.CLUSTER_BINDING}={binding}"},
        "leader": {"namespace": keys.NAMESPACE},
    }
