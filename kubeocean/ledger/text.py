"""The ledger as text: the ConfigMap in which it is stored, the status of a policy, and CSV. Pure.

Invariant: what is read is what was written, to a thousandth of a resource-second; text that cannot be read counts for nothing. The stored
text has at most `LIMIT` characters: nodes are summed first, in the oldest hours first, then namespaces.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import define, field

from kubeocean.ledger import account
from kubeocean.ledger.account import Cell, Ledger, Sums
from vkubelet.api.objects import Json
from vkubelet.api.quantity import Quantity, Resources, sum_resources
from vkubelet.clock import parse_rfc3339, rfc3339, rfc3339_micro

LIMIT: Final = 512 * 1024
MOST_NAMESPACES_NAMED: Final = 32

_SINCE, _THROUGH, _TOTAL = "since", "through", "total"
_HOUR = "%Y-%m-%dT%HZ"
_HEAD = ("policy", "node", "namespace")
_THOUSANDTH = 1_000_000
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,9})?")


_SHRUNK: Final[Sequence[Callable[[Sums], Sums]]] = (lambda sums: sums, account.without_nodes, account.without_namespaces)
"""What is stored of the sums of an hour: all cells, then fewer."""


@define
class Texts:
    """Renders a ledger; hours that did not change since are not rendered again."""

    limit: int = LIMIT
    data: dict[str, str] = field(factory=dict)
    """What was rendered last, the data of the ConfigMap."""
    _rendered: dict[tuple[str, int], tuple[int, str]] = field(factory=dict)

    def render(self, ledger: Ledger) -> dict[str, str]:
        """Returns the data of the ConfigMap."""
        for _ in self.steps(ledger):
            pass
        return self.data

    def steps(self, ledger: Ledger) -> Iterator[None]:
        """Renders `data`, one hour in a step: an hour of a thousand nodes takes tens of milliseconds."""
        data = {_SINCE: rfc3339_micro(ledger.since), _THROUGH: rfc3339_micro(ledger.through)}
        hours = {name_of(hour): hour for hour in sorted(ledger.hours)}
        self._rendered = {key: text for key, text in self._rendered.items() if key[0] in hours}
        for level in range(len(_SHRUNK)):
            for name in (*hours, _TOTAL):
                if level and sum(map(len, data.values())) <= self.limit:
                    break
                data[name] = self._hour(ledger, hours[name], level) if name in hours else encode(_SHRUNK[level](ledger.total))
                yield
        self.data = data

    def _hour(self, ledger: Ledger, hour: datetime, level: int) -> str:
        key, changes = (name_of(hour), level), ledger.changes[hour]
        known = self._rendered.get(key)
        if known is None or known[0] != changes:
            known = self._rendered[key] = (changes, encode(_SHRUNK[level](ledger.hours[hour])))
        return known[1]


def parse(data: Mapping[str, str], *, hours: bool = True) -> Ledger | None:
    """Returns the stored ledger, with its hours or without; None when it does not state until when it was counted."""
    try:
        through = parse_rfc3339(data[_THROUGH])
        since = parse_rfc3339(data.get(_SINCE) or data[_THROUGH])
    except (KeyError, ValueError):
        return None
    ledger = Ledger(since=since, through=through, total=decode(data.get(_TOTAL, "")))
    for hour in hours_of(data) if hours else ():
        read_hour(ledger, data, hour)
    return ledger


def hours_of(data: Mapping[str, str]) -> list[datetime]:
    """Returns the hours that are stored."""
    return sorted(hour for name in data if (hour := _hour_named(name)) is not None)


def read_hour(ledger: Ledger, data: Mapping[str, str], hour: datetime) -> None:
    """Reads the sums of a stored hour."""
    ledger.hours[hour] = decode(data[name_of(hour)])


def name_of(hour: datetime) -> str:
    """Returns the key of an hour in the ConfigMap: `2026-01-31T12Z`."""
    return hour.strftime(_HOUR)


def _hour_named(name: str) -> datetime | None:
    try:
        return account.hour_of(parse_rfc3339(f"{name[:-1]}:00:00Z")) if name.endswith("Z") else None
    except ValueError:
        return None


def encode(sums: Mapping[Cell, Resources]) -> str:
    """Encodes sums as CSV: one line for each cell, one column for each resource."""
    names = account.resource_names(sums.values())
    rows = ([cell.policy, cell.node, cell.namespace, *_columns(lent, names)] for cell, lent in ordered(sums))
    return csv_text([*_HEAD, *names], rows)


def ordered(sums: Mapping[Cell, Resources]) -> list[tuple[Cell, Resources]]:
    """Returns the cells in the order of policy, node and namespace."""
    return sorted(sums.items(), key=lambda each: (each[0].policy, each[0].node, each[0].namespace))


def decode(text: str) -> Sums:
    """Decodes sums; lines and amounts that cannot be read are left out."""
    rows = csv.reader(io.StringIO(text))
    head = next(rows, [])
    sums = Sums()
    if tuple(head[: len(_HEAD)]) != _HEAD:
        return sums
    names = head[len(_HEAD) :]
    for row in rows:
        lent = {name: amount for name, text in zip(names, row[len(_HEAD) :], strict=False) if (amount := _amount(text)) is not None}
        if lent:
            sums[Cell(row[0], row[1], row[2])] = lent
    return sums


def _amount(text: str) -> Quantity | None:
    """Reads a decimal number as `decimal` writes it, much faster than a quantity is parsed."""
    if not _DECIMAL.fullmatch(text):
        return None
    whole, _, rest = text.lstrip("-").partition(".")
    nanos = int(whole) * 1_000_000_000 + int(f"{rest:0<9}")
    return Quantity(-nanos if text.startswith("-") else nanos)


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
        for cell, lent in ordered(ledger.hours[hour]):
            for name in account.resource_names([lent]):
                yield [rfc3339(hour), binding, cell.policy, cell.node, cell.namespace, name, decimal(lent[name])]


LONG_HEAD: Final = ("hour", "binding", "policy", "node", "namespace", "resource", "resource_seconds")


@define
class Summaries:
    """Summaries for the status of policies; of hours that did not change the sums by namespace are kept."""

    _by_namespace: dict[datetime, tuple[int, Sums]] = field(factory=dict)

    def of(self, ledger: Ledger, policy: str, *, now: datetime) -> Json:
        """Returns the field `ledger` of the status of a policy."""
        oldest = account.first_hour(now)
        for _ in self.steps(ledger, now=now):
            pass
        by_name: dict[str, list[Resources]] = {}
        for _, sums in self._by_namespace.values():
            for cell, lent in account.of_policy(sums, policy).items():
                by_name.setdefault(cell.namespace, []).append(lent)
        spaces = {name: sum_resources(parts) for name, parts in by_name.items()}
        return {
            "since": rfc3339(ledger.since),
            "from": rfc3339(max(oldest, ledger.since)),
            "through": rfc3339_micro(ledger.through),
            "lastDay": decimals(sum_resources(spaces.values())),
            "total": decimals(sum_resources(account.of_policy(ledger.total, policy).values())),
            "namespaces": [{"name": name, "lastDay": decimals(lent)} for name, lent in _largest(spaces)],
        }

    def steps(self, ledger: Ledger, *, now: datetime) -> Iterator[None]:
        """Computes the sums by namespace that `of` needs, one hour in a step."""
        oldest = account.first_hour(now)
        self._by_namespace = {hour: known for hour, known in self._by_namespace.items() if hour in ledger.hours and hour >= oldest}
        for hour in [hour for hour in ledger.hours if hour >= oldest]:
            self._by_namespace[hour] = self._hour(ledger, hour)
            yield

    def _hour(self, ledger: Ledger, hour: datetime) -> tuple[int, Sums]:
        known, changes = self._by_namespace.get(hour), ledger.changes[hour]
        return known if known is not None and known[0] == changes else (changes, account.without_nodes(ledger.hours[hour]))


def _largest(spaces: Mapping[str, Resources]) -> list[tuple[str, Resources]]:
    """Returns the namespaces that borrowed most, by CPU and memory."""

    def size(entry: tuple[str, Resources]) -> tuple[Quantity, Quantity, str]:
        name, lent = entry
        return (-lent.get("cpu", Quantity()), -lent.get("memory", Quantity()), name)

    return sorted(((name, lent) for name, lent in spaces.items() if name != account.ALL), key=size)[:MOST_NAMESPACES_NAMED]
