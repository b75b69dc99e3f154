"""Where the time of a burst goes: CPU of each program, requests and watch events of both API servers; ours beside the ideal pipeline's.

Invariant: both columns are of the same burst on the same clusters, measured from outside: CPU by proc(5), the rest by the API servers' own
metrics. Nothing is asked of the program that is measured. Requests by client are those of a further burst, as an audit log costs CPU too.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from attrs import define, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.benchmarks.callers import Callers
from tests.benchmarks.figures import Figure
from tests.benchmarks.leased import Bursts, Lease, Removal, Round, leased
from tests.support.outside import Outside
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane, Site

NODES = 50
ROUNDS = 3
AUDITED = 100
"""Pods of the burst whose requests are counted by client."""
NOISE = 0.02
"""Requests or events a pod; what is below with both is not shown."""
REQUESTS, EVENTS = "apiserver_request_total", "apiserver_watch_events_total"
_KIND = ("verb", "resource", "subresource", "code")
OURS, IDEAL, DELETER = "kubeocean", "ideal pipeline", "ideal deleter"
PROGRAM, LOAD = "the program itself", "load and watch of the benchmark"

Spent = Mapping[str, float]
"""Seconds of CPU by program, or requests and events by kind."""


@frozen
class Books:
    """What is measured: a lease, and the process whose turn it is."""

    lease: Lease
    pid: int

    def read(self) -> tuple[Spent, Spent]:
        """CPU, and what the API servers counted, since they started."""
        hub, worker = self.lease.bound.hub, self.lease.bound.worker
        cpu = {PROGRAM: self.pid, LOAD: os.getpid(), "worker kwok": self.lease.simulator}
        counted: dict[str, float] = {}
        for side, plane in (("hub", hub), ("worker", worker)):
            cpu |= {f"{side} {name}": process.pid for name, process in plane.processes.items()}
            counted |= {f"{side} {what}": count for what, count in _metrics(plane).items()}
        return {name: Outside(pid).cpu_seconds() for name, pid in cpu.items()}, counted


def _metrics(plane: ControlPlane) -> Spent:
    api = api_client(plane.kubeconfig)
    text = api.rest_client.pool_manager.request("GET", f"{api.configuration.host}/metrics").data.decode()
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == REQUESTS:
                found[_request(sample.labels)] += sample.value
            elif sample.name == EVENTS:
                found[f"watch events of {sample.labels.get('resource') or sample.labels.get('kind')}"] += sample.value
    return found


def _request(labels: Mapping[str, str]) -> str:
    verb, resource, subresource, code = (labels.get(name, "") for name in _KIND)
    refused = "" if code.startswith("2") else f" {code}"
    return f"{verb} {'/'.join(filter(None, (resource, subresource)))}{refused}"


@define
class Accounted(Bursts):
    """Bursts of which each is accounted for, by who runs it, until all of its pods run and until they are gone."""

    cpu: dict[str, list[Spent]] = field(factory=dict)
    counted: dict[str, list[Spent]] = field(factory=dict)
    removals: dict[str, list[Spent]] = field(factory=dict)

    async def burst(self, namespace: str, nodes: Sequence[str], pid: int = 0) -> Round:
        books = Books(self.lease, pid)
        cpu, counted = books.read()
        found = await super().burst(namespace, nodes, pid)
        after = books.read()
        who = IDEAL if nodes[0].startswith("ideal-") else OURS
        self.cpu.setdefault(who, []).append(_each(after[0], cpu, self.pods))
        self.counted.setdefault(who, []).append(_each(after[1], counted, self.pods))
        return found

    async def removal(self, namespace: str, mount: str, pid: int) -> Removal:
        books = Books(self.lease, pid)
        cpu, _ = books.read()
        found = await super().removal(namespace, mount, pid)
        self.removals.setdefault(OURS if mount == self.lease.bound.mount else IDEAL, []).append(_each(books.read()[0], cpu, self.pods))
        return found


@define
class Audited(Bursts):
    """Bursts whose requests are counted by client, until all of their pods run, and from then until they are gone."""

    calls: dict[str, list[Spent]] = field(factory=dict)
    removals: dict[str, list[Spent]] = field(factory=dict)

    async def burst(self, namespace: str, nodes: Sequence[str], pid: int = 0) -> Round:
        callers = self._callers()
        found = await super().burst(namespace, nodes, pid)
        self.calls.setdefault(IDEAL if nodes[0].startswith("ideal-") else OURS, []).append(_each(callers.read(), {}, self.pods))
        return found

    async def removal(self, namespace: str, mount: str, pid: int) -> Removal:
        callers = self._callers()
        found = await super().removal(namespace, mount, pid)
        who = OURS if mount == self.lease.bound.mount else IDEAL
        self.removals.setdefault(who, []).append(_each(callers.read(), {}, self.pods))
        return found

    def _callers(self) -> Callers:
        return Callers({"hub": self.lease.bound.hub, "worker": self.lease.bound.worker})


def _each(after: Spent, before: Spent, pods: int) -> Spent:
    """A pod's share."""
    return {what: (after[what] - before.get(what, 0.0)) / pods for what in after}


async def measure(site: Site) -> Sequence[Figure]:
    """500 pods by the ideal pipeline and by the real program in turn: the machine's time for each pod by program, requests and events."""
    async with leased(site, "account", nodes=NODES) as lease:
        await Bursts(lease, pods=100).round()
        bursts = Accounted(lease)
        for _ in range(ROUNDS):
            await bursts.round()
    async with leased(site, "account-audited", nodes=NODES, audited=True) as lease:
        audited = Audited(lease, pods=AUDITED)
        await audited.round()
    _show("requests a pod by client, until all run", audited.calls)
    _show("requests a pod by client, until all are gone", audited.removals)
    _show("CPU, ms a pod, until all run", bursts.cpu, scale=1000)
    _show("CPU, ms a pod, until all are gone", bursts.removals, scale=1000)
    _show("requests and watch events a pod, until all run", bursts.counted)
    return [
        *_figures("account", bursts.cpu, IDEAL),
        *_figures("account_removal", bursts.removals, DELETER),
        *_parts("account_cpu", bursts.cpu, unit="ms/pod", scale=1000),
        *_parts("account_calls", audited.calls, unit="1/pod"),
    ]


def _parts(name: str, rows: Mapping[str, Sequence[Spent]], *, unit: str, scale: float = 1.0) -> list[Figure]:
    """Returns a figure of each row of a table that both have, by its name in lower case."""
    found = {what: values for what, values in _medians(rows, scale).items() if min(values) >= NOISE}
    return [
        Figure(name=f"{name}_{re.sub('[^a-z0-9]+', '_', what.lower())}", value=ours, unit=unit, ratio_to=IDEAL, ratio=ours / ideal)
        for what, (ours, ideal) in found.items()
    ]


def _medians(rows: Mapping[str, Sequence[Spent]], scale: float) -> Mapping[str, tuple[float, float]]:
    """Returns ours and the ideal pipeline's by name, the greatest difference first."""
    names = {name for spent in rows.values() for each in spent for name in each}
    ours, ideal = ({name: median(each.get(name, 0.0) for each in rows[who]) * scale for name in names} for who in (OURS, IDEAL))
    return {name: (ours[name], ideal[name]) for name in sorted(names, key=lambda name: ideal[name] - ours[name])}


def _figures(name: str, rows: Mapping[str, Sequence[Spent]], ideal_program: str) -> list[Figure]:
    ours, ideal = (median(sum(each.values()) for each in rows[who]) * 1000 for who in (OURS, IDEAL))
    return [
        Figure(name=f"{name}_machine", value=ours, unit="ms/pod", ratio_to=ideal_program, ratio=ours / ideal, most_ratio=1.2),
        Figure(name=f"{name}_machine_ideal", value=ideal, unit="ms/pod"),
    ]


def _show(title: str, rows: Mapping[str, Sequence[Spent]], *, scale: float = 1.0) -> None:
    """Medians beside each other, the greatest difference first."""
    found = _medians(rows, scale)
    print(f"\n    {title}\n    {'ours':>8} {'ideal':>8} {'more':>8}")
    for name, (ours, ideal) in found.items():
        if max(ours, ideal) >= NOISE:
            print(f"    {ours:8.2f} {ideal:8.2f} {ours - ideal:8.2f}  {name}")
    totals = [sum(pair[column] for pair in found.values()) for column in (0, 1)]
    print(f"    {totals[0]:8.2f} {totals[1]:8.2f} {totals[0] - totals[1]:8.2f}  in all", flush=True)
