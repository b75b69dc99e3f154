"""`vkubelet run|check|init|version`: parses the arguments, loads the settings, runs one Runtime.

Invariant: an invalid setting exits with 2 and one sentence that names it; any other error exits with 1.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import attrs

from vkubelet import scaffold, settings
from vkubelet.api.objects import Json
from vkubelet.control.shards import ONLY, Shard
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.logformat import printable
from vkubelet.process import run_process
from vkubelet.provider import Provider, TakesSettings, contract
from vkubelet.runtime import Runtime
from vkubelet.sharding import ShardedReplica, WholeRuntime

GROUP = "vkubelet.providers"
CAPABILITIES = sorted(name for name in vars(contract) if name.startswith("Supports"))
_REQUIRED = ("run", "sync_pod", "delete_pod", "list_pods")
_STARTS_AND_STOPS = ("run", "prepare_pod", "start_container", "stop_container", "remove_pod", "list_containers")
"""Methods of a ContainerProvider."""

_METHODS = {*_REQUIRED, *_STARTS_AND_STOPS}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the console script; exits with 0, 1 or 2."""
    arguments = _parser().parse_args(argv)
    sys.exit(guarded(lambda: arguments.call(arguments)))


def guarded(call: Callable[[], None]) -> int:
    """Runs a command; our own errors become one line on stderr and an exit code."""
    try:
        call()
    except SettingsError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 2
    except VKubeletError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 1
    return 0


def run_runtime(made: Provider, chosen: settings.Settings, own: object | None, *, read: settings.Read[settings.Settings]) -> None:
    """Runs a provider with these settings until SIGTERM or SIGINT, polling `read` for changes meanwhile. Raises VKubeletError."""
    take = made.take_settings if isinstance(made, TakesSettings) else None
    followed = settings.FollowedSettings(chosen, own, read=read, take=take)
    run_process(lambda connection: Runtime(made, chosen, connection=connection), followed)


def run_shards(
    make: Callable[[Shard], Provider],
    chosen: settings.Settings,
    own: object,
    *,
    count: int,
    read: settings.Read[settings.Settings],
) -> None:
    """Runs one replica of `count` shards until SIGTERM or SIGINT; `make` returns the provider of a shard. Raises VKubeletError.

    With one shard it is a process like any other, which leads or is on standby.
    """
    if count > 1 and not chosen.leader.enabled:
        raise SettingsError("leader.enabled", "must be true with several shards: each is served by the replica that holds its Lease")
    if count > 1 and chosen.server.listening == "shared":
        raise SettingsError("server.listening", "must be per-node with several shards: a port of all nodes belongs to one replica")
    providers: dict[int, Provider] = {}

    def made(shard: Shard) -> Provider:
        providers[shard.index] = make(shard)
        return providers[shard.index]

    def take(changed: object | None) -> Iterable[str]:
        taken = [set(each.take_settings(changed)) for each in providers.values() if isinstance(each, TakesSettings)]
        return set().union(*taken)

    followed = settings.FollowedSettings(chosen, own, read=read, take=take)
    if count == 1:
        run_process(lambda connection: WholeRuntime(made(ONLY), chosen, connection=connection), followed)
    else:
        run_process(lambda connection: ShardedReplica(connection=connection, settings=chosen, count=count, make=made), followed)


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the few flags that replace settings of the YAML file."""
    parser.add_argument("--config", "--settings", dest="config", type=Path, help="YAML file with settings; flags replace its values")
    parser.add_argument("--kubeconfig", help="kubeconfig of the cluster in which the nodes appear")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--instance", help="name of this set of nodes (setting instance)")
    parser.add_argument("--node-address", help="IP address that the nodes publish as InternalIP (setting server.node_address)")
    parser.add_argument("--self-signed", action="store_true", help="serve the kubelet port with a self-signed certificate")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="minimum level of log lines (default INFO)")


def settings_data(arguments: argparse.Namespace) -> Json:
    """Returns the settings file merged with the flags."""
    data = settings.read_yaml(arguments.config) if arguments.config else {}
    flags = {
        ("cluster", "kubeconfig"): arguments.kubeconfig,
        ("cluster", "context"): arguments.context,
        ("server", "node_address"): arguments.node_address,
        ("server", "certificate"): "self-signed" if arguments.self_signed else None,
        ("log", "level"): arguments.log_level,
    }
    for (part, name), value in flags.items():
        if value is not None:
            data = settings.merged(data, {part: {name: value}})
    return settings.merged(data, {"instance": arguments.instance}) if arguments.instance else data


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vkubelet", description="Runs the kubelet of virtual nodes that a provider backs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, call, text in (
        ("run", _command_run, "run the nodes of a provider until SIGTERM"),
        ("check", _command_check, "load and print provider and settings, without running them"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--provider", required=True, help="NAME of an installed provider, package.module:Class, or ./file.py")
        add_settings_arguments(command)
        command.set_defaults(call=call)
    _add_init(commands.add_parser("init", help="write the project of a new provider, which passes its own tests"))
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return parser


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("provider", metavar="PROVIDER", help="name of the provider and of its project, as in my-batch")
    containers = "for a backend that starts and stops single containers: a ContainerProvider instead of a Provider"
    parser.add_argument("--containers", action="store_true", help=containers)
    parser.add_argument("--directory", type=Path, metavar="DIR", help="a new or empty directory (default: ./PROVIDER)")
    parser.set_defaults(call=_command_init)


def _command_run(arguments: argparse.Namespace) -> None:
    kind = find_provider(arguments.provider)
    chosen, own = read_settings(settings_data(arguments), kind)
    run_runtime(make_provider(kind, own), chosen, own, read=lambda: read_settings(settings_data(arguments), kind))


def _command_check(arguments: argparse.Namespace) -> None:
    kind = find_provider(arguments.provider)
    chosen, own = read_settings(settings_data(arguments), kind)
    made = make_provider(kind, own)
    print(f"provider: {type(made).__module__}.{type(made).__qualname__}")
    for name in CAPABILITIES:
        print(f"  {name}: {'yes' if isinstance(made, getattr(contract, name)) else 'no'}")
    print(json.dumps(settings.settings_tree(chosen, own), indent=2, default=str))


def _command_init(arguments: argparse.Namespace) -> None:
    project = scaffold.Project.of(arguments.provider, containers=arguments.containers)
    directory = arguments.directory or Path(project.name)
    for file in project.write(directory):
        print(file)
    print(f"\nNext: run its tests, as {directory / 'README.md'} shows, then replace src/{project.package}/backend.py.")


def read_settings(data: Json, kind: type[Provider]) -> tuple[settings.Settings, object | None]:
    """Returns the settings of the runtime and of a provider of this class. Raises SettingsError."""
    rest, section = split_provider_section(data)
    own = provider_settings(kind, section)
    return settings.convert(rest, settings.Settings), own


def split_provider_section(data: Json) -> tuple[Json, Json]:
    """Returns the settings of the runtime, and those of the provider from the section `provider:`. Raises SettingsError."""
    section = data.get("provider") or {}
    if not isinstance(section, dict):
        raise SettingsError("provider", "must be a mapping with the settings of the provider")
    return {name: value for name, value in data.items() if name != "provider"}, section


def provider_settings(kind: type[Provider], section: Json) -> object | None:
    """Converts the section `provider:` to the class that the provider declares; None when it declares none. Raises SettingsError."""
    declared = getattr(kind, "Settings", None)
    if declared is None:
        if section:
            raise SettingsError("provider", f"{kind.__name__} has no settings; remove the section")
        return None
    if not (isinstance(declared, type) and attrs.has(declared)):
        raise SettingsError("provider", f"{kind.__name__}.Settings must be an attrs class")
    own: object = settings.convert(section, declared, path="provider")
    return own


def make_provider(kind: type[Provider], own: object | None) -> Provider:
    """Creates an instance with its settings, if the class declares any."""
    return kind() if own is None else cast(Callable[[Any], Provider], kind)(own)


def find_provider(name: str) -> type[Provider]:
    """Finds a provider class by entry point, `package.module:Class`, or `./file.py[:Class]`. Raises SettingsError."""
    if name.partition(":")[0].endswith(".py"):
        path, _, wanted = name.partition(":")
        return _class_of(_module_of_file(Path(path)), wanted, name)
    if ":" in name:
        module, _, wanted = name.partition(":")
        return _class_of(_import(module, name), wanted, name)
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        module, _, wanted = entry.value.partition(":")
        return _class_of(_import(module, name), wanted, name)
    known = sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)})
    raise SettingsError("--provider", f"no provider named {name!r}; installed: {', '.join(known) or 'none'}; or give ./file.py")


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingsError("--provider", f"{name!r} cannot be imported: {error}; install it, or check the name") from error


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingsError("--provider", f"file {path} does not exist")
    # Under a unique name: a file may be called like a module that we use.
    name = f"provider_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError("--provider", f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _class_of(module: ModuleType, wanted: str, name: str) -> type[Provider]:
    if wanted:
        found = getattr(module, wanted, None)
        if not inspect.isclass(found):
            raise SettingsError("--provider", f"{name!r} has no class {wanted}; name one as FILE.py:Class or package.module:Class")
        if _missing(found):
            raise SettingsError("--provider", f"{name!r}: {wanted} has no {', '.join(_missing(found))}")
        return cast(type[Provider], found)
    classes = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    own = [kind for kind in classes if not _missing(kind)]
    if len(own) == 1:
        return cast(type[Provider], own[0])
    if own:
        raise SettingsError("--provider", f"{name!r} contains {len(own)} provider classes; name one as {name}:Class")
    begun = [f"{kind.__name__} has no {', '.join(_missing(kind))}" for kind in classes if any(hasattr(kind, name) for name in _METHODS)]
    kinds = f"a Provider has {', '.join(_REQUIRED)}; a ContainerProvider has {', '.join(_STARTS_AND_STOPS)}"
    raise SettingsError("--provider", f"{name!r} contains no provider class: {'; '.join(begun) or kinds}")


def _missing(kind: type) -> list[str]:
    """Returns the methods that a class lacks of a Provider, or of a ContainerProvider if fewer of those are missing."""
    lacking = [[name for name in methods if not callable(getattr(kind, name, None))] for methods in (_REQUIRED, _STARTS_AND_STOPS)]
    return min(lacking, key=len)
