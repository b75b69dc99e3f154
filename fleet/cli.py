"""The console script `fleet`.

Invariant: a command that is registered works; one that is not written yet is not registered. A process that serves imports nothing that
only a terminal needs, and each command imports its own module alone.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkubelet import settings
from vkubelet.cli import guarded, settings_data
from vkubelet.errors import SettingsError

if TYPE_CHECKING:
    from fleet.commands.doctor import Examine
    from vkubelet.api.objects import JsonView
    from vkubelet.commands.clusters import Choice

_TIMEOUT = 600.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _run(arguments)))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = argparse.ArgumentParser(prog="fleet", description="Manages many clusters under one hub.")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _add_hub(commands.add_parser("hub", help="run the controllers of the hub until SIGTERM"))
    _add_agent(commands.add_parser("agent", help="keep the cluster in which this runs joined to a hub, until SIGTERM"))
    _add_init(commands.add_parser("init", help="prepare the hub, and print the line by which a worker joins it"))
    _add_join(commands.add_parser("join", help="install the agent in a worker, and wait until it has joined a hub"))
    _add_accept(commands.add_parser("accept", help="accept clusters on the hub, after their requests were shown"))
    _add_deny(commands.add_parser("deny", help="deny clusters, which revokes their access to the hub"))
    _add_get(commands.add_parser("get", help="list clusters, with what is wrong and what to do"))
    _add_doctor(commands.add_parser("doctor", help="examine a hub or a worker, and show each problem with the commands that correct it"))
    _add_leave(commands.add_parser("leave", help="remove a cluster from the hub, or the agent from a worker"))
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
    from fleet.hub_settings import read_hub_settings
    from fleet.processes.hub import run_hub

    run_hub(lambda: read_hub_settings(settings_data(arguments)))


def _run(arguments: Sequence[str]) -> None:
    parsed = parser().parse_args(arguments)
    parsed.call(parsed)


def _add_cluster(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("-o", "--output", choices=("json", "yaml"), default="", help="print the result alone on stdout, for programs")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=f"kubeconfig of the {what} (default: as for kubectl)")
    parser.add_argument("--context", default="", metavar="CTX", help="context of that kubeconfig (default: the current one)")


def _choice(arguments: argparse.Namespace, what: str) -> "Choice":
    from vkubelet.commands.clusters import Choice

    return Choice(what, "--kubeconfig, --context", arguments.kubeconfig, arguments.context, "fleet")


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=float, default=_TIMEOUT, metavar="SECONDS", help=f"time to wait (default {_TIMEOUT:g})")


def seconds_of(text: str, flag: str) -> int:
    """Parses a duration such as 90s, 30m, 24h or 7d. Raises SettingsError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise SettingsError(flag, f"{text!r} is no duration; write for example 30m or 24h")
    return int(number) * _UNITS[unit]


# --- fleet agent --------------------------------------------------------------------------------------------------------------------------


def _add_agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", "--config", dest="config", type=Path, help="YAML file with settings; flags replace its values")
    parser.add_argument("--cluster", help="name of this cluster on the hub (setting agent.cluster)")
    parser.add_argument("--kubeconfig", help="kubeconfig of the cluster in which this runs")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="minimum level of log lines (default INFO)")
    parser.set_defaults(call=_command_agent)


def _command_agent(arguments: argparse.Namespace) -> None:
    from fleet.agent.agent_settings import AgentProcessSettings, read_agent_settings
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


# --- Commands of the hub's owner ----------------------------------------------------------------------------------------------------------


def _add_init(parser: argparse.ArgumentParser) -> None:
    _add_cluster(parser, "hub")
    parser.add_argument("--print", dest="only_print", action="store_true", help="print the manifests, and write nothing")
    parser.add_argument("--server", default="", metavar="URL", help="URL by which workers reach the hub (default: that of the kubeconfig)")
    parser.add_argument("--token-life", default="24h", metavar="TIME", help="validity of the printed token (default 24h)")
    _add_yes(parser)
    parser.set_defaults(call=_command_init)


def _command_init(arguments: argparse.Namespace) -> None:
    from fleet.commands.init import Init
    from fleet.commands.output import execute
    from fleet.ocm import acceptance

    if arguments.server and not arguments.server.startswith("https://"):
        raise SettingsError("--server", "must be a URL that begins with https://")
    rules = (acceptance.registration_rules(), acceptance.work_rules(), acceptance.gateway_rules(), acceptance.bootstrap_rules())
    execute(
        arguments.output,
        lambda terminal: Init(
            choice=_choice(arguments, "hub"),
            roles=acceptance.hub_objects(),
            rules=[rule for each in rules for rule in each],
            only_print=arguments.only_print,
            server=arguments.server.rstrip("/"),
            token_seconds=seconds_of(arguments.token_life, "--token-life"),
            yes=arguments.yes,
            terminal=terminal,
        ),
    )


def _add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="name of a cluster")
    parser.add_argument("--any-requester", action="store_true", help="also approve requests of users that are no bootstrap identities")
    _add_cluster(parser, "hub")
    _add_yes(parser)
    parser.set_defaults(call=_command_accept)


def _command_accept(arguments: argparse.Namespace) -> None:
    from fleet.commands.accept import Accept
    from fleet.commands.output import execute

    execute(
        arguments.output,
        lambda terminal: Accept(
            choice=_choice(arguments, "hub"),
            names=arguments.names,
            any_requester=arguments.any_requester,
            yes=arguments.yes,
            terminal=terminal,
        ),
    )


def _add_deny(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="name of a cluster")
    _add_cluster(parser, "hub")
    _add_yes(parser)
    parser.set_defaults(call=_command_deny)


def _command_deny(arguments: argparse.Namespace) -> None:
    from fleet.commands.accept import Deny
    from fleet.commands.output import execute

    choice = _choice(arguments, "hub")
    execute(arguments.output, lambda terminal: Deny(choice=choice, names=arguments.names, yes=arguments.yes, terminal=terminal))


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("clusters",), help="what to list")
    _add_cluster(parser, "hub")
    parser.set_defaults(call=_command_get)


def _command_get(arguments: argparse.Namespace) -> None:
    from fleet.commands.get import Get
    from fleet.commands.output import execute

    execute(arguments.output, lambda terminal: Get(choice=_choice(arguments, "hub"), terminal=terminal))


# --- Commands of the worker's owner -------------------------------------------------------------------------------------------------------


def _add_join(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hub", required=True, metavar="URL", help="URL of the hub's API server")
    parser.add_argument("--name", required=True, metavar="NAME", help="name of this cluster on the hub")
    parser.add_argument("--token", default="", help="token that `fleet init` printed")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the token, which is then not in the list of processes")
    parser.add_argument("--ca-hash", default="", metavar="HASH", help="hash of the hub's CA that `fleet init` printed")
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="CA of the hub (default: the one with --ca-hash, else the system's)")
    parser.add_argument("--door", choices=("ocm", "kubefleet"), default="ocm", help="API by which the cluster joins")
    parser.add_argument("--namespace", default="fleet-system", metavar="NS", help="namespace of the agent (default fleet-system)")
    parser.add_argument("--image", default="", help="image of the agent (default: the one of this version)")
    parser.add_argument("--print", dest="only_print", action="store_true", help="print the manifests, and write nothing")
    parser.add_argument("--run", dest="foreground", action="store_true", help="run the agent in this process instead of a Deployment")
    _add_cluster(parser, "worker")
    _add_yes(parser)
    _add_timeout(parser)
    parser.set_defaults(call=_command_join)


def _command_join(arguments: argparse.Namespace) -> None:
    from fleet.agent.agent_settings import AgentSettings, read_agent_settings
    from fleet.agent.rights import agent_objects, agent_rules
    from fleet.commands.join import Join, JoinFlags
    from fleet.commands.output import execute
    from fleet.processes.agent import run_agent
    from vkubelet.commands.clusters import check_timeout

    flags = JoinFlags(
        hub=arguments.hub.rstrip("/"),
        name=arguments.name,
        token=_read(arguments.token_file, "--token-file").decode().strip() if arguments.token_file else arguments.token,
        ca_hash=arguments.ca_hash,
        authority=_read(arguments.ca_file, "--ca-file") if arguments.ca_file else b"",
        namespace=arguments.namespace,
        image=arguments.image or f"vkubelet:{importlib.metadata.version('vkubelet')}",
        door=arguments.door,
    )
    own = settings.convert(flags.settings, AgentSettings, path="agent")
    execute(
        arguments.output,
        lambda terminal: Join(
            choice=_choice(arguments, "worker"),
            flags=flags,
            roles=agent_objects(own),
            rules=agent_rules(own),
            only_print=arguments.only_print,
            foreground=arguments.foreground,
            yes=arguments.yes,
            timeout=check_timeout(arguments.timeout),
            terminal=terminal,
        ),
    )
    if arguments.foreground and not arguments.only_print:
        cluster = {"kubeconfig": str(arguments.kubeconfig or ""), "context": arguments.context}
        # Nothing probes it, and several may run on one machine.
        health = {"health_address": "", "metrics_address": ""}
        run_agent(lambda: read_agent_settings({"agent": flags.settings, "cluster": cluster, "health": health}))


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(flag, f"cannot read {path} ({error.strerror}); name a file that this user may read") from error


def _add_leave(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the cluster to remove from the hub")
    parser.add_argument("--here", action="store_true", help="remove the agent from the worker instead")
    parser.add_argument("--namespace", default="fleet-system", metavar="NS", help="namespace of that agent (default fleet-system)")
    parser.add_argument("--force-after", type=int, metavar="SECONDS", help="let the hub remove after this time what the agent did not")
    _add_cluster(parser, "hub, or with --here of the worker")
    _add_yes(parser)
    _add_timeout(parser)
    parser.set_defaults(call=_command_leave)


def _command_leave(arguments: argparse.Namespace) -> None:
    from fleet.commands.leave import Leave, LeaveHere
    from fleet.commands.output import execute
    from vkubelet.commands.clusters import check_timeout

    if arguments.here == bool(arguments.name):
        raise SettingsError("NAME", "give the name of a cluster of the hub, or --here in a worker")
    if arguments.here:
        worker = _choice(arguments, "worker")
        execute(
            arguments.output,
            lambda terminal: LeaveHere(choice=worker, namespace=arguments.namespace, yes=arguments.yes, terminal=terminal),
        )
        return
    execute(
        arguments.output,
        lambda terminal: Leave(
            choice=_choice(arguments, "hub"),
            name=arguments.name,
            force_after=arguments.force_after,
            yes=arguments.yes,
            timeout=check_timeout(arguments.timeout),
            terminal=terminal,
        ),
    )


# --- fleet doctor -------------------------------------------------------------------------------------------------------------------------


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--here", action="store_true", help="examine the agent in a worker, and its hub, instead of a hub")
    parser.add_argument("--namespace", default="fleet-system", metavar="NS", help="namespace of the process (default fleet-system)")
    _add_cluster(parser, "hub, or with --here of the worker")
    parser.set_defaults(call=_command_doctor)


def _command_doctor(arguments: argparse.Namespace) -> None:
    from fleet.commands.doctor import Doctor
    from fleet.commands.output import execute

    choice = _choice(arguments, "worker" if arguments.here else "hub")
    examine = (_examine_worker if arguments.here else _examine_hub)(arguments.namespace)
    results = execute(arguments.output, lambda terminal: Doctor(choice=choice, examine=examine, terminal=terminal))
    if any(finding["level"] == "error" for each in results for finding in each["findings"]):
        sys.exit(1)


def _examine_hub(namespace: str) -> "Examine":
    from fleet.commands.doctor import HubExamination
    from fleet.core.rights import hub_rules

    return lambda reader, log: HubExamination(reader=reader, log=log, rules=hub_rules(namespace=namespace), namespace=namespace).run()


def _examine_worker(namespace: str) -> "Examine":
    from fleet.agent.agent_settings import KUBEFLEET, read_agent_settings
    from fleet.agent.rights import agent_rules
    from fleet.commands.here import Agent, WorkerExamination

    def read(data: "JsonView") -> Agent:
        own = read_agent_settings(data).agent
        member = own.door == KUBEFLEET
        return Agent(
            cluster=own.cluster,
            secrets=own.bootstrap_secrets,
            member=member,
            token=own.token.secret if member else "",
            rules=agent_rules(own),
        )

    return lambda reader, log: WorkerExamination(reader=reader, log=log, read=read, namespace=namespace).run()
