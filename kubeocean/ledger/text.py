"""The ledger as text: the ConfigMap in which it is stored, the status of a policy, and CSV. Pure.

Invariant: what is read is what was written, to a thousandth of a resource-second; text that cannot be read counts for nothing. The stored
text has at most `LIMIT` characters: nodes are summed first, in the oldest hours first, then namespaces.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from attrs import define, field

from kubeocean.ledger.account import (
    ALL,
    Cell,
    Ledger,
    Sums,
    first_hour,
    hour_of,
    of_policy,
    resource_names,
    without_namespaces,
    without_nodes,
)
from vkubelet.api.objects import Json
from vkubelet.api.quantity import Quantity, Resources, sum_resources
from vkubelet.clock import parse_rfc3339, rfc3339, rfc3339_micro

LIMIT: Final = 512 * 1024
MOST_NAMESPACES_NAMED: Final = 32

_SINCE, _THROUGH, _TOTAL = "since", "through", "total"
_HOUR = "%Y-%m-%dT%HZ"
_HEAD = ("policy", "node", "namespace")
_THOUSANDTH = 1_000_000


@define
class Texts:
    """Renders a ledger; hours that did not change since are not rendered again."""

    limit: int = LIMIT
    _rendered: dict[datetime, tuple[int, str]] = field(factory=dict)

    def render(self, ledger: Ledger) -> dict[str, str]:
        """Returns the data of the ConfigMap."""
        self._rendered = {hour: self._hour(ledger, hour) for hour in sorted(ledger.hours)}
        data = {name_of(hour): text for hour, (_, text) in self._rendered.items()}
        data |= {_SINCE: rfc3339_micro(ledger.since), _THROUGH: rfc3339_micro(ledger.through), _TOTAL: encode(ledger.total)}
        sums = {**{name_of(hour): ledger.hours[hour] for hour in self._rendered}, _TOTAL: ledger.total}
        for shrunk in (without_nodes, without_namespaces):
            for name, cells in sums.items():
                if sum(map(len, data.values())) <= self.limit:
                    return data
                data[name] = encode(shrunk(cells))
        return data

    def _hour(self, ledger: Ledger, hour: datetime) -> tuple[int, str]:
        known, changes = self._rendered.get(hour), ledger.changes[hour]
        return known if known is not None and known[0] == changes else (changes, encode(ledger.hours[hour]))


def parse(data: Mapping[str, str]) -> Ledger | None:
    """Returns the stored ledger; None when it does not state until when it was counted."""
    try:
        through = parse_rfc3339(data[_THROUGH])
        since = parse_rfc3339(data.get(_SINCE) or data[_THROUGH])
    except (KeyError, ValueError):
        return None
    hours = {hour: decode(text) for name, text in data.items() if (hour := _hour_named(name)) is not None}
    return Ledger(since=since, through=through, hours=hours, total=decode(data.get(_TOTAL, "")))


def name_of(hour: datetime) -> str:
    """Returns the key of an hour in the ConfigMap: `2026-01-31T12Z`."""
    return hour.strftime(_HOUR)


def _hour_named(name: str) -> datetime | None:
    try:
        return hour_of(parse_rfc3339(f"{name[:-1]}:00:00Z")) if name.endswith("Z") else None
    except ValueError:
        return None


def encode(sums: Mapping[Cell, Resources]) -> str:
    """Encodes sums as CSV: one line for each cell, one column for each resource."""
    names = resource_names(sums.values())
    rows = (
        [cell.policy, cell.node, cell.namespace, *_columns(lent, names)] for cell, lent in sorted(sums.items(), key=lambda each: each[0])
    )
    return csv_text([*_HEAD, *names], rows)


def decode(text: str) -> Sums:
    """Decodes sums; lines and amounts that cannot be read are left out."""
    sums = Sums()
    for row in csv.DictReader(io.StringIO(text)):
        lent = {}
        for name, amount in row.items():
            if name is not None and name not in _HEAD and amount:
                with suppress(ValueError):
                    lent[name] = Quantity.parse(amount)
        if all(row.get(name) is not None for name in _HEAD) and lent:
            sums[Cell(*(row[name] for name in _HEAD))] = lent
    return sums


def csv_text(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Renders a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def decimal(amount: Quantity) -> str:
    """Formats an amount as a decimal number with at most three digits after the point."""
    thousandths = (amount.nanos + _THOUSANDTH // 2) // _THOUSANDTH
    whole, rest = divmod(abs(thousandths), 1000)
    digits = f".{rest:03}".rstrip("0") if rest else ""
    return f"{'-' if thousandths < 0 else ''}{whole}{digits}"


def decimals(amounts: Resources) -> dict[str, str]:
    """Formats amounts as decimal numbers."""
    return {name: decimal(amount) for name, amount in amounts.items()}


def _columns(lent: Resources, names: Sequence[str]) -> list[str]:
    return [decimal(lent[name]) if name in lent else "" for name in names]


def long_rows(ledger: Ledger, binding: str) -> Iterator[Sequence[str]]:
    """Yields a row for each hour, cell and resource: hour, binding, policy, node, namespace, resource, resource-seconds."""
    for hour in sorted(ledger.hours):
        for cell, lent in sorted(ledger.hours[hour].items(), key=lambda each: each[0]):
            for name in resource_names([lent]):
                yield [rfc3339(hour), binding, cell.policy, cell.node, cell.namespace, name, decimal(lent[name])]


LONG_HEAD: Final = ("hour", "binding", "policy", "node", "namespace", "resource", "resource_seconds")


@define
class Summaries:
    """Summaries for the status of policies; of hours that did not change the sums by namespace are kept."""

    _by_namespace: dict[datetime, tuple[int, Sums]] = field(factory=dict)

    def of(self, ledger: Ledger, policy: str, *, now: datetime) -> Json:
        """Returns the field `ledger` of the status of a policy."""
        oldest = first_hour(now)
        self._by_namespace = {hour: self._hour(ledger, hour) for hour in ledger.hours if hour >= oldest}
        by_name: dict[str, list[Resources]] = {}
        for _, sums in self._by_namespace.values():
            for cell, lent in of_policy(sums, policy).items():
                by_name.setdefault(cell.namespace, []).append(lent)
        spaces = {name: sum_resources(parts) for name, parts in by_name.items()}
        return {
            "since": rfc3339(ledger.since),
            "from": rfc3339(max(oldest, ledger.since)),
            "through": rfc3339(ledger.through),
            "lastDay": decimals(sum_resources(spaces.values())),
            "total": decimals(sum_resources(of_policy(ledger.total, policy).values())),
            "namespaces": [{"name": name, "lastDay": decimals(lent)} for name, lent in _largest(spaces)],
        }

    def _hour(self, ledger: Ledger, hour: datetime) -> tuple[int, Sums]:
        known, changes = self._by_namespace.get(hour), ledger.changes[hour]
        return known if known is not None and known[0] == changes else (changes, without_nodes(ledger.hours[hour]))


def _largest(spaces: Mapping[str, Resources]) -> list[tuple[str, Resources]]:
    """Returns the namespaces that borrowed most, by CPU and memory."""

    def size(entry: tuple[str, Resources]) -> tuple[Quantity, Quantity, str]:
        name, lent = entry
        return (-lent.get("cpu", Quantity()), -lent.get("memory", Quantity()), name)

    return sorted(((name, lent) for name, lent in spaces.items() if name != ALL), key=size)[:MOST_NAMESPACES_NAMED]
