"""`vkubelet run|check|version`: parses the arguments, loads the settings, runs one Runtime.

Invariant: an invalid setting exits with 2 and one sentence that names it; any other error exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import attrs

from vkubelet import logformat, settings
from vkubelet.api.shapes import Json
from vkubelet.client.connection import load_connection
from vkubelet.collector import Collector
from vkubelet.errors import SettingsError, VKubeletError, first_error
from vkubelet.provider import Provider, TakesSettings, contract
from vkubelet.runtime import Runtime
from vkubelet.settings import Settings

log = logging.getLogger(__name__)

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
        print(f"error: {error}", file=sys.stderr)
        return 2
    except VKubeletError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


Read = Callable[[], tuple[Settings, object | None]]
"""Current values of settings file and flags, for the runtime and for the provider. Raises SettingsError."""


def run_runtime(made: Provider, chosen: Settings, *, read: Read) -> None:
    """Runs a provider in this process until SIGTERM or SIGINT; `read` is polled for changed settings meanwhile. Raises VKubeletError."""
    logformat.configure(chosen.log.level)
    _raise_file_limit()
    collector = Collector()
    collector.start()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(made, chosen, read, collector))


def _raise_file_limit() -> None:
    """Raises the limit of open files to the maximum: every node has a port, and every stream a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        # Some systems report a higher limit than they allow; the current one stays.
        log.debug("the limit of open files can not be raised to %s", most)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns uvloop's loop when it is installed: it halves the CPU per event and changes nothing else."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    return cast(Callable[[], asyncio.AbstractEventLoop], importlib.import_module("uvloop").new_event_loop)


async def _run(made: Provider, chosen: Settings, read: Read, collector: Collector) -> None:
    kubeconfig = Path(chosen.cluster.kubeconfig) if chosen.cluster.kubeconfig else None
    connection = await load_connection(kubeconfig=kubeconfig, context=chosen.cluster.context)
    runtime = Runtime(made, chosen, connection=connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.stop)
    log.info("starting")
    try:
        async with asyncio.TaskGroup() as group:
            live = LiveSettings(made, read)
            beside = [
                group.create_task(settings.follow(live.read, take=live.take, clock=runtime.clock), name="settings"),
                group.create_task(collector.run(runtime.clock), name="garbage collector"),
            ]
            await runtime.run()
            for task in beside:
                task.cancel()
    except* VKubeletError as problems:
        raise first_error(problems) from problems


def _tree(chosen: Settings, own: object | None) -> Json:
    return {**settings.effective(chosen), "provider": settings.effective(own) if own is not None else {}}


class LiveSettings:
    """Settings of a running process; the applied values are those that were read and compared, whatever the file contains by then."""

    def __init__(self, made: Provider, read: Read) -> None:
        self._made = made
        self._read = read
        self._chosen, self._own = read()

    def read(self) -> Json:
        self._chosen, self._own = self._read()
        return _tree(self._chosen, self._own)

    def take(self, changed: Set[str]) -> Set[str]:
        """Applies the settings that need no restart; returns which."""
        level = changed & {"log.level"}
        if level:
            logformat.change_level(self._chosen.log.level)
        if not isinstance(self._made, TakesSettings) or not any(name.startswith("provider.") for name in changed):
            return level
        taken = changed & {f"provider.{name}" for name in self._made.take_settings(self._own)}
        if taken:
            with logformat.bind(settings=", ".join(sorted(taken))):
                log.info("settings changed")
        return level | taken


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the few flags that replace settings of the YAML file."""
    parser.add_argument("--config", "--settings", dest="config", type=Path, help="YAML file with settings")
    parser.add_argument("--kubeconfig", help="cluster in which the nodes appear")
    parser.add_argument("--context", help="context of that kubeconfig")
    parser.add_argument("--instance", help="name of this set of nodes")
    parser.add_argument("--node-address", help="IP address published as the nodes' InternalIP")
    parser.add_argument("--self-signed", action="store_true", help="serve the kubelet port with a self-signed certificate")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))


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
    parser = argparse.ArgumentParser(prog="vkubelet", description="A kubelet for nodes that are backed by anything.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, call, text in (
        ("run", _command_run, "run a provider's nodes until SIGTERM"),
        ("check", _command_check, "load provider and settings, print both, run nothing"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--provider", required=True, help="NAME of an installed provider, package.module:Class, or ./file.py")
        add_settings_arguments(command)
        command.set_defaults(call=call)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(call=lambda _: print(importlib.metadata.version("vkubelet")))
    return parser


def _command_run(arguments: argparse.Namespace) -> None:
    made, chosen, _ = _load(arguments)
    run_runtime(made, chosen, read=lambda: read_settings(settings_data(arguments), type(made)))


def _command_check(arguments: argparse.Namespace) -> None:
    made, chosen, own = _load(arguments)
    print(f"provider: {type(made).__module__}.{type(made).__qualname__}")
    for name in CAPABILITIES:
        print(f"  {name}: {'yes' if isinstance(made, getattr(contract, name)) else 'no'}")
    tree = settings.effective(chosen)
    print(json.dumps({**tree, "provider": settings.effective(own) if own is not None else {}}, indent=2, default=str))


def _load(arguments: argparse.Namespace) -> tuple[Provider, Settings, object | None]:
    data = settings_data(arguments)
    section = _provider_section(data)
    kind = find_provider(arguments.provider)
    made, own = make_provider(kind, section)
    return made, settings.convert(data, Settings), own


def _provider_section(data: Json) -> Json:
    """Removes the section `provider:` from `data` and returns it. Raises SettingsError."""
    section = data.pop("provider", None) or {}
    if not isinstance(section, dict):
        raise SettingsError("provider", "must be a mapping of the provider's settings")
    return section


def read_settings(data: Json, kind: type[Provider]) -> tuple[Settings, object | None]:
    """Returns the settings of the runtime and of a provider of this class. Raises SettingsError."""
    section = _provider_section(data)
    return settings.convert(data, Settings), provider_settings(kind, section)


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


def make_provider(kind: type[Provider], section: Json) -> tuple[Provider, object | None]:
    """Creates an instance with its settings from the section `provider:`. Raises SettingsError."""
    own = provider_settings(kind, section)
    return kind() if own is None else cast(Callable[[Any], Provider], kind)(own), own


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
        raise SettingsError("--provider", f"{name!r} can not be imported: {error}") from error


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingsError("--provider", f"there is no file {path}")
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
            raise SettingsError("--provider", f"{name!r} has no class {wanted}")
        if _missing(found):
            raise SettingsError("--provider", f"{name!r}: {wanted} has no {', '.join(_missing(found))}")
        return cast(type[Provider], found)
    classes = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    own = [kind for kind in classes if not _missing(kind)]
    if len(own) == 1:
        return cast(type[Provider], own[0])
    if own:
        raise SettingsError("--provider", f"{name!r} holds {len(own)} provider classes; name one as {name}:Class")
    begun = [f"{kind.__name__} has no {', '.join(_missing(kind))}" for kind in classes if any(hasattr(kind, name) for name in _METHODS)]
    kinds = f"a Provider has {', '.join(_REQUIRED)}; a ContainerProvider has {', '.join(_STARTS_AND_STOPS)}"
    raise SettingsError("--provider", f"{name!r} holds no provider class: {'; '.join(begun) or kinds}")


def _missing(kind: type) -> list[str]:
    """Returns the methods that a class lacks of a Provider, or of a ContainerProvider if fewer of those are missing."""
    lacking = [[name for name in methods if not callable(getattr(kind, name, None))] for methods in (_REQUIRED, _STARTS_AND_STOPS)]
    return min(lacking, key=len)
