"""`kubeocean status --ledger [NAME]`: what was lent, in resource-seconds, from the ledger that each binding keeps in its worker.

Invariant: amounts are those of the stored ledger, complete until the time that is shown with them; present pods are not read.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import frozen

from kubeocean.commands import reading
from kubeocean.commands.output import Block, Columns, Format, data, write
from kubeocean.ledger.account import Cell, Ledger, first_hour, without_nodes
from kubeocean.ledger.text import LONG_HEAD, csv_text, decimals, long_rows, ordered, parse
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.ownership import Ownership, classify
from vkubelet.api.objects import CONFIGMAPS, Json, Key
from vkubelet.api.quantity import ZERO, Quantity, Resources
from vkubelet.clock import rfc3339, rfc3339_micro
from vkubelet.commands import clusters
from vkubelet.commands.reading import Reader
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import SettingsError, VKubeletError

_HOUR: Final = 3600
_GIBIBYTE: Final = 1 << 30
_SHOWN: Final = ("cpu", "memory")


@frozen(kw_only=True)
class Asked:
    """The flags: one binding or all, the clusters, and the format; `csv` prints each hour."""

    hub: clusters.Choice
    worker: clusters.Choice | None
    binding: str
    output: Format
    csv: bool = False

    def check(self) -> None:
        """Raises SettingsError for flags that exclude each other."""
        if self.csv and self.output is not Format.TABLE:
            raise SettingsError("--csv", "is a format of its own; leave out --output")


async def show(asked: Asked, terminal: Terminal) -> None:
    """Prints the ledgers. Raises CommandFailed, and SystemExit with 1 when one of them cannot be read."""
    asked.check()
    found, missing = dict[str, Ledger](), list[str]()
    async with clusters.opened(asked.hub) as client:
        reader = Reader(client, asked.hub)
        chosen = await reading.bindings(reader, asked.binding)
        if asked.worker is not None and len(chosen) > 1:
            raise SettingsError("NAME", "is required with --worker-context where there are several ClusterBindings")
        for binding in chosen:
            try:
                found[binding.name] = await _read(reader, binding, asked.worker)
            except VKubeletError as error:
                missing.append(f"ClusterBinding {binding.name}: {error}")
    if asked.csv:
        rows = (row for name, ledger in found.items() for row in long_rows(ledger, name))
        terminal.write_line(csv_text(LONG_HEAD, rows).rstrip("\n"))
    elif asked.output.is_data:
        terminal.write_line(data({"ledgers": [body(name, ledger) for name, ledger in found.items()], "missing": missing}, asked.output))
    else:
        write(terminal, blocks(found, missing, nodes=asked.output is Format.WIDE))
    if missing:
        raise SystemExit(1)


async def _read(hub: Reader, binding: ClusterBinding, chosen: clusters.Choice | None) -> Ledger:
    owner = await reading.owner_of(hub, binding)
    async with reading.worker_reader(hub, binding, owner, chosen=chosen) as worker:
        key = Key(binding.mount_namespace, keys.LEDGER)
        stored = await worker.get(CONFIGMAPS, key)
    ours = stored is not None and classify(stored.metadata, owner) is Ownership.OURS
    ledger = parse(stored.body.get("data") or {}) if stored is not None and ours else None
    if ledger is None:
        raise clusters.CommandFailed(f"the worker cluster has no ledger in ConfigMap {key}; it is created when the first pod runs there")
    return ledger


# --- Rendering (pure) ---------------------------------------------------------------------------------------------------------------------


def body(binding: str, ledger: Ledger) -> Json:
    """Returns the ledger of a binding as data, in resource-seconds."""
    return {
        "binding": binding,
        "since": rfc3339(ledger.since),
        "from": rfc3339(_start(ledger)),
        "through": rfc3339_micro(ledger.through),
        "lastDay": _cells(ledger.last_day(ledger.through)),
        "total": _cells(ledger.total),
    }


def blocks(found: Mapping[str, Ledger], missing: Sequence[str], *, nodes: bool) -> list[Block]:
    """Renders the ledgers as a table of core-hours and GiB-hours; `nodes` adds a row for each physical node."""
    out: list[Block] = []
    rows = [row for name, ledger in found.items() for row in _rows(name, ledger, nodes=nodes)]
    head = ("BINDING", "POLICY", "NAMESPACE", *(("NODE",) if nodes else ()), "CPU (core-h)", "MEMORY (GiB-h)", "OTHERS (h)")
    for name, ledger in found.items():
        out.append(f"{name}: lent from {rfc3339(_start(ledger))} until {rfc3339(ledger.through)}")
    if rows:
        out += ["", Columns(head, rows)]
    return [*out, *missing]


def _start(ledger: Ledger) -> datetime:
    return max(ledger.since, first_hour(ledger.through))


def _cells(sums: Mapping[Cell, Resources]) -> list[Json]:
    return [{"policy": cell.policy, "node": cell.node, "namespace": cell.namespace, "lent": decimals(lent)} for cell, lent in ordered(sums)]


def _rows(binding: str, ledger: Ledger, *, nodes: bool) -> list[Sequence[str]]:
    day = ledger.last_day(ledger.through)
    sums = day if nodes else without_nodes(day)
    rows: list[Sequence[str]] = []
    for cell, lent in ordered(sums):
        others = ", ".join(f"{name} {_hours(lent[name])}" for name in sorted(lent) if name not in _SHOWN)
        place = (cell.policy or "-", cell.namespace or "*", *((cell.node or "*",) if nodes else ()))
        cpu, memory = (lent.get(name, ZERO) for name in _SHOWN)
        rows.append([binding, *place, _hours(cpu), _hours(memory, _GIBIBYTE), others])
    return rows


def _hours(amount: Quantity, unit: int = 1) -> str:
    return f"{amount.nanos / 1e9 / unit / _HOUR:.3f}"
