"""Translates a kubelet's page of Prometheus text to the virtual names (pure).

Invariant: of the series of pods only those of the given pods pass, and of the series of the machine none; what passes contains no name of
the worker cluster.

Pages are megabytes and mostly of other tenants: they are read as they arrive, and only lines of the mount namespace are parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import define, field, frozen

from vkubelet.api.objects import Pod, PodRef

_LABEL: Final = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ERRORS: Final = re.compile(rb"(?:resource_|container_)?scrape_error[ {]")
_NODE_CPU: Final = b"node_cpu_usage_seconds_total"
_LONGEST_LINE: Final = 1 << 20
_LONGEST_TIME: Final = 14
"""Digits of a time in milliseconds, until the year 5138."""

# Some readers find namespace and pod by their position (spec of /metrics/resource).
_OF_CONTAINERS: Final = (b"container", b"pod", b"namespace")
_OF_PODS: Final = (b"namespace", b"pod")


@frozen
class Alias:
    """One of our physical pods, and its identity in the hub."""

    virtual: PodRef
    physical_name: str
    physical_uid: str
    pod: Pod | None = None
    """The virtual pod, while it exists."""


@frozen(kw_only=True)
class Tenancy:
    """Which pods of a physical node are shown, and under which virtual node."""

    node: str
    namespace: str
    aliases: tuple[Alias, ...]
    spread: bool = False
    """Whether the pods are in namespaces whose names have `namespace` and "-" as prefix: the hash in a pod's name identifies it anyway."""

    def includes(self, namespace: bytes) -> bool:
        """Checks whether our pods may be in a namespace."""
        own = self.namespace.encode()
        return namespace.startswith(own + b"-") if self.spread else namespace == own

    def uids(self) -> set[str]:
        """Returns the UIDs of the virtual pods."""
        return {alias.virtual.uid for alias in self.aliases}


@frozen
class Reading:
    """Usage of a pod: nanoseconds of CPU since its start, bytes of memory and swap, and the time in Unix milliseconds (0: unknown)."""

    cpu: int | None = None
    memory: int | None = None
    swap: int | None = None
    at: int = 0

    def plus(self, other: Reading) -> Reading:
        """Adds the readings of two containers of one pod."""
        return self._with(other, lambda a, b: a + b)

    def largest(self, other: Reading) -> Reading:
        """Combines the readings of the pod and its containers: the kubelet measures them at different times, a new pod's last."""
        return self._with(other, max)

    def _with(self, other: Reading, joined: Callable[[int, int], int]) -> Reading:
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in ("cpu", "memory", "swap")}
        known = {name: b if a is None else a if b is None else joined(a, b) for name, (a, b) in pairs.items()}
        return Reading(**known, at=max(self.at, other.at))


_NOTHING: Final = Reading()
_READINGS: Final = {
    b"cpu_usage_seconds_total": ("cpu", 10**9),
    b"memory_working_set_bytes": ("memory", 1),
    b"swap_usage_bytes": ("swap", 1),
}


@define
class _Names:
    """Replacements in the lines of one pod."""

    uid: str
    labels: Mapping[bytes, bytes]
    uids: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, alias: Alias) -> _Names:
        virtual, physical = alias.virtual, alias.physical_uid.encode()
        labels = {b"namespace": virtual.namespace.encode(), b"pod": virtual.name.encode()}
        uid = virtual.uid.encode()
        # With the systemd driver a cgroup's name has "_" for "-".
        return cls(virtual.uid, labels, ((physical, uid), (physical.replace(b"-", b"_"), uid.replace(b"-", b"_"))))

    def applied(self, labels: bytes) -> bytes:
        """Returns the labels with the virtual UID."""
        for old, new in self.uids:
            labels = labels.replace(old, new)
        return labels


@define
class Exposition:
    """Filters and translates a page, piece by piece; `label_node` adds the label `node` to each series."""

    tenancy: Tenancy
    label_node: bool = False
    measured_at: int = 0
    """When the physical node was measured, in milliseconds of Unix time; 0 until read."""
    _of_pods: dict[str, Reading] = field(factory=dict)
    _of_containers: dict[str, Reading] = field(factory=dict)
    _rest: bytes = b""
    _comments: list[bytes] = field(factory=list)
    _after_sample: bool = False
    _needle: bytes = field(init=False)
    _pods: dict[bytes, _Names] = field(init=False)
    _known: dict[bytes, tuple[bytes, str] | None] = field(factory=dict)
    """Translated labels and UID, by the labels in the page: most of them occur in dozens of families."""

    def __attrs_post_init__(self) -> None:
        self._needle = f'namespace="{self.tenancy.namespace}{"-" if self.tenancy.spread else chr(34)}'.encode()
        self._pods = {alias.physical_name.encode(): _Names.of(alias) for alias in self.tenancy.aliases}

    def feed(self, piece: bytes) -> bytes:
        """Returns the translation of the lines that are complete now. Raises ValueError when a line is longer than any kubelet's."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("a line of the page has no end")
        return b"".join(self._shown(lines))

    def end(self) -> bytes:
        """Returns the last line, if it had no newline."""
        return self.feed(b"\n")

    def readings(self) -> dict[str, Reading]:
        """Returns the usage of each of our pods so far, by the UID of the virtual pod."""
        uids = self._of_pods.keys() | self._of_containers.keys()
        return {uid: self._of_pods.get(uid, _NOTHING).largest(self._of_containers.get(uid, _NOTHING)) for uid in uids}

    def _shown(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        for line in lines:
            if line.startswith(b"#"):
                if self._after_sample:
                    self._comments, self._after_sample = [], False
                self._comments.append(line + b"\n")
                continue
            self._after_sample = True
            shown = self._renamed(line)
            if shown:
                # A family is described only when one of its series is shown.
                yield from self._comments
                self._comments = []
                yield shown + b"\n"

    def _renamed(self, line: bytes) -> bytes:
        """Returns the translated line; empty when it is none of ours."""
        if self._needle not in line:
            if line.startswith(_NODE_CPU):
                _, _, value = line.partition(b" ")
                self.measured_at = _time_of(value)
            return line if _ERRORS.match(line) else b""
        family, _, rest = line.partition(b"{")
        block, _, value = rest.rpartition(b"} ")
        if block not in self._known:
            self._known[block] = self._at_home(block)
        known = self._known[block]
        if known is None:
            return b""
        labels, uid = known
        level, _, measure = family.partition(b"_")
        if measure in _READINGS:
            self._read(self._of_pods if level == b"pod" else self._of_containers, uid, reading=_reading(measure, value))
        return b"%s{%s} %s" % (family, labels, value)

    def _at_home(self, block: bytes) -> tuple[bytes, str] | None:
        labels = dict(_LABEL.findall(block))
        names = self._pods.get(labels.get(b"pod", b""))
        if names is None or not self.tenancy.includes(labels.get(b"namespace", b"")):
            return None
        labels |= names.labels
        if self.label_node:
            labels.setdefault(b"node", self.tenancy.node.encode())
        first = _OF_CONTAINERS if b"container" in labels else _OF_PODS
        ordered = {**{name: labels[name] for name in first}, **labels}
        return names.applied(b",".join([b'%s="%s"' % pair for pair in ordered.items()])), names.uid

    def _read(self, level: dict[str, Reading], uid: str, *, reading: Reading) -> None:
        level[uid] = level.get(uid, _NOTHING).plus(reading)


def _reading(measure: bytes, value: bytes) -> Reading:
    kind, factor = _READINGS[measure]
    try:
        amount = float(value.partition(b" ")[0])
    except ValueError:
        return _NOTHING
    amount *= factor
    return Reading(**{kind: round(amount)}, at=_time_of(value)) if math.isfinite(amount) else _NOTHING


def _time_of(value: bytes) -> int:
    """Returns the time after the value of a sample; 0 when it has none, or one that no date can have."""
    _, _, time = value.partition(b" ")
    return int(time) if time.isdigit() and len(time) <= _LONGEST_TIME else 0
