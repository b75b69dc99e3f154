"""The settings of one vkubelet process, read from YAML into frozen values.

Invariant: an unknown key and a value of the wrong type are rejected by their path; nothing is ignored silently.
"""

import enum
import logging
import types
import typing
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import attrs
import msgspec
import yaml
from attrs import field, frozen

from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json, JsonView
from vkubelet.clock import Clock
from vkubelet.control.controller import Isolation
from vkubelet.errors import SettingsError
from vkubelet.health import parse_address
from vkubelet.logformat import bind, change_level
from vkubelet.node.lease import LeaseSettings
from vkubelet.node.ping import PingSettings
from vkubelet.node.shutdown import ShutdownSettings
from vkubelet.pods.listing import PodSettings
from vkubelet.provider import Taint
from vkubelet.server import ServerSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_EVERY = 2.0
"""Seconds between two checks of the settings file."""


@frozen(kw_only=True)
class ClusterSettings:
    """The cluster in which the virtual nodes appear."""

    kubeconfig: str = ""
    """File; empty: `$KUBECONFIG`, then `~/.kube/config`, then the ServiceAccount of the pod we run in."""
    context: str = ""
    """Context of the kubeconfig; empty: its current one."""


@frozen(kw_only=True)
class NodeSettings:
    """Settings of every node of this process, whatever its provider declares."""

    taint: str = "virtual-kubelet.io/provider:NoSchedule"
    """`key[=value]:effect`, set on each node so that only pods that tolerate it are scheduled to it; empty: none."""
    selector: str = ""
    """Label selector of the Nodes that are ours; empty: `vkubelet.io/instance=<instance>`."""
    restore: bool = True
    """Register a Node again that another client deleted; off: it is not registered until the next start."""
    adopt_foreign: bool = False
    """Adopt an existing Node of another kubelet, even one that is alive; off: a declared node with its name is not registered."""

    def __attrs_post_init__(self) -> None:
        default_taints(self.taint)


@frozen(kw_only=True)
class LeaderSettings:
    """Leader election among the replicas of one instance."""

    enabled: bool = False
    """Required as soon as more than one replica runs."""
    namespace: str = "default"
    """Namespace of the election's Lease."""
    name: str = ""
    """Name of that Lease; empty: `vkubelet-<instance>`."""


@frozen(kw_only=True)
class HealthSettings:
    """The plain-HTTP listeners for probes and metrics."""

    health_address: str = "0.0.0.0:8081"
    """`host:port` of `/healthz` and `/readyz`; port 0: any free one; empty: off."""
    metrics_address: str = "0.0.0.0:8080"
    """`host:port` of `/metrics`; likewise."""

    def __attrs_post_init__(self) -> None:
        parse_address("health.health_address", self.health_address)
        parse_address("health.metrics_address", self.metrics_address)


@frozen(kw_only=True)
class LogSettings:
    """Log lines on stderr."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum level of our log lines; a change in the file is applied within seconds, without a restart."""


class CommonSettings(Protocol):
    """Sections that the settings of every process have."""

    @property
    def cluster(self) -> ClusterSettings: ...

    @property
    def leader(self) -> LeaderSettings: ...

    @property
    def health(self) -> HealthSettings: ...

    @property
    def log(self) -> LogSettings: ...


S = TypeVar("S", bound=CommonSettings)


@frozen(kw_only=True)
class Settings:
    """All settings of the runtime."""

    instance: str = "default"
    """Name of this set of nodes: part of the field manager and a label of each Node; two instances never share a Node."""
    field_manager: str = ""
    """Name under which the API server records our writes; empty: `vkubelet-<instance>`."""
    cluster: ClusterSettings = field(factory=ClusterSettings)
    node: NodeSettings = field(factory=NodeSettings)
    lease: LeaseSettings = field(factory=LeaseSettings)
    ping: PingSettings = field(factory=PingSettings)
    pods: PodSettings = field(factory=PodSettings)
    leader: LeaderSettings = field(factory=LeaderSettings)
    shutdown: ShutdownSettings = field(factory=ShutdownSettings)
    server: ServerSettings = field(factory=ServerSettings)
    health: HealthSettings = field(factory=HealthSettings)
    log: LogSettings = field(factory=LogSettings)

    def __attrs_post_init__(self) -> None:
        if self.leader.enabled and self.shutdown.nodes != "keep":
            raise SettingsError("shutdown.nodes", "must be keep if leader.enabled is true: the next leader continues with the nodes")


def default_taints(text: str) -> tuple[Taint, ...]:
    """Parses `key[=value]:effect` as a taint; nothing for an empty text. Raises SettingsError."""
    if not text:
        return ()
    rest, colon, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    if not colon or not key or effect not in ("NoSchedule", "NoExecute", "PreferNoSchedule"):
        raise SettingsError("node.taint", "must be key[=value]:effect with the effect NoSchedule, NoExecute or PreferNoSchedule")
    return (Taint(key, effect, value),)


def read_yaml(path: Path) -> Json:
    """Reads the settings file as a mapping; an empty file is an empty mapping. Raises SettingsError."""
    try:
        data = decode_yaml(path.read_text())
    except OSError as error:
        raise SettingsError(str(path), f"cannot be read ({error.strerror}); name an existing file with --config") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 1}" if mark is not None else ""
        raise SettingsError(str(path), f"is not valid YAML{where}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SettingsError(str(path), "must be a mapping of settings at its top level")
    return data


def convert(data: JsonView, kind: type[T], *, path: str = "") -> T:
    """Converts data as decoded from YAML to a settings class. Raises SettingsError with the path of the first problem."""
    _refuse_unknown(data, kind, path)
    try:
        return msgspec.convert(dict(data), kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        name = ".".join(part for part in (path, where.strip("`.")) if part)
        values = _values_at(kind, where.strip("`.")) if text.startswith("Invalid enum value") else []
        valid = f"; valid here: {', '.join(values)}" if values else ""
        raise SettingsError(name, text.replace("`", "") + valid) from error


def _values_at(kind: type, path: str) -> list[str]:
    """Returns the texts that the setting at `path` may have; none when they are not known."""
    hint: object = kind
    for part in path.split("."):
        inner = _settings_class(hint)
        hint = typing.get_type_hints(inner).get(part) if inner is not None else None
    return _values(hint)


def _values(hint: object) -> list[str]:
    if typing.get_origin(hint) is Literal:
        return [str(value) for value in typing.get_args(hint)]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [str(member.value) for member in hint]
    return [value for part in typing.get_args(hint) for value in _values(part)]


def merged(base: JsonView, over: JsonView) -> Json:
    """Merges the leaves of `over` into `base`; mappings merge, everything else replaces."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _refuse_unknown(data: JsonView, kind: type, path: str) -> None:
    hints = typing.get_type_hints(kind)
    known = {a.name: hints[a.name] for a in attrs.fields(kind)}
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in known:
            raise SettingsError(where, f"is not a setting; remove it or use one of: {', '.join(sorted(known))}")
        inner = _settings_class(known[key])
        if inner is not None and isinstance(value, dict):
            _refuse_unknown(value, inner, where)
        listed = next((found for found in map(_settings_class, typing.get_args(known[key])) if found is not None), None)
        if inner is None and listed is not None and isinstance(value, list):
            for at, item in enumerate(value):
                _refuse_unknown(item if isinstance(item, dict) else {}, listed, f"{where}[{at}]")


def _settings_class(hint: object) -> type | None:
    if isinstance(hint, types.UnionType):
        inner = [_settings_class(part) for part in typing.get_args(hint)]
        return next((kind for kind in inner if kind is not None), None)
    return hint if isinstance(hint, type) and attrs.has(hint) else None


def effective(settings: object) -> Json:
    """Returns the settings tree as plain data, as `vkubelet check` prints it."""
    return attrs.asdict(typing.cast(attrs.AttrsInstance, settings))


def differences(before: JsonView, after: JsonView, path: str = "") -> set[str]:
    """Returns the paths of the settings that differ in two trees."""
    found: set[str] = set()
    for key in before.keys() | after.keys():
        one, other, where = before.get(key), after.get(key), f"{path}.{key}".lstrip(".")
        if isinstance(one, dict) and isinstance(other, dict):
            found |= differences(one, other, where)
        elif one != other:
            found.add(where)
    return found


def settings_tree(chosen: object, own: object | None) -> Json:
    """Returns the settings of a process as plain data, with those of its provider as `provider`."""
    return {**effective(chosen), "provider": effective(own) if own is not None else {}}


Read = Callable[[], tuple[S, object | None]]
"""Reads the settings of the process, and of its provider if it has one. Raises SettingsError."""


class FollowedSettings(Generic[S]):
    """Settings of a running process, polled for changes. Only values that were compared are applied, whatever the file contains by then.

    `chosen` and `own` are the values at the start, of the process and of its provider; `take` is `TakesSettings.take_settings`.
    """

    def __init__(
        self, chosen: S, own: object | None = None, *, read: Read[S], take: Callable[[object | None], Iterable[str]] | None = None
    ) -> None:
        self.chosen = chosen
        self._read = read
        self._take = take
        self._known = settings_tree(chosen, own)
        self._problem = ""

    async def follow(self, clock: Clock) -> None:
        """Polls until cancelled. No error of reading or applying stops the process: the settings stay unchanged."""
        isolated = Isolation("settings")
        while True:
            await clock.sleep(CHECK_EVERY)
            with isolated("file"):
                self.poll()

    def poll(self) -> None:
        """Applies changed settings that need no restart, and logs the others."""
        try:
            chosen, own = self._read()
        except SettingsError as error:
            if str(error) != self._problem:
                log.warning("the changed settings file is invalid, the settings stay unchanged: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        before, self._known = self._known, settings_tree(chosen, own)
        changed = differences(before, self._known)
        left = changed - self._apply(changed, chosen, own) if changed else changed
        if left:
            with bind(settings=", ".join(sorted(left))):
                log.warning("changed settings take effect only after a restart")

    def _apply(self, changed: Set[str], chosen: S, own: object | None) -> Set[str]:
        """Applies the settings that need no restart; returns which."""
        level = changed & {"log.level"}
        if level:
            change_level(chosen.log.level)
        if self._take is None or not any(name.startswith("provider.") for name in changed):
            return level
        taken = changed & {f"provider.{name}" for name in self._take(own)}
        if taken:
            with bind(settings=", ".join(sorted(taken))):
                log.info("settings changed")
        return level | taken
