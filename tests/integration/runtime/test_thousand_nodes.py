"""A thousand nodes in one process, and a hundred in another beside it: what they cost, and that nothing is late.

One scene, looked at from several sides. The same at full length, with times in seconds, is measured by `make bench`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from attrs import frozen

from tests.integration.runtime.crowd import RENEW_EVERY, Crowd, crowd
from tests.integration.runtime.fleet import Fleet
from tests.support.audit import Audit
from tests.support.outside import Meter
from tests.support.program import eventually
from vkubelet.node.lease import DURATION as LEASE
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.fixtures import run_apart

NODES = 1000
FEW = 100
WATCHED = 22.0
"""Seconds: more than two intervals of a Lease."""
IDLE = 8.0
BARE_WRITES = 300
ONCE_EACH = (("create", "nodes"), ("patch", "nodes/status"), ("create", "leases"))


@frozen
class Change:
    """What followed from a new label of one pod: reconciles by controller, and the names of what was written, Leases aside."""

    pod: str
    reconciles: Counter[str]
    written: set[str]


@frozen(kw_only=True)
class Found:
    """What was seen of the thousand; `few_…` of the hundred. Sizes in MiB, times in seconds."""

    writes: Counter[tuple[str, str]]
    flips: list[str]
    rss_without_pods: float
    rss_with_pods: float
    descriptors: int
    """Each node has a listener; watches and other connections do not grow with the nodes."""
    filling: float
    """Until a thousand pods ran."""
    oldest: float
    cpu_per_renewal: float
    cpu_per_bare_write: float
    """What an update of a Lease costs on this machine at the same time, by the standard library alone."""
    cores: float
    change: Change
    few_oldest: float
    few_busy: float
    """The share of seconds in which some of their Leases were renewed."""


@pytest.fixture(scope="module")
def found(bare_hub: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    large = _fleet(bare_hub, tmp_path_factory.mktemp("thousand"))
    small = _fleet(bare_hub, tmp_path_factory.mktemp("hundred"))
    try:
        yield run_apart(_watch(large, small))
    finally:
        run_apart(large.remove())
        run_apart(small.remove())


def _fleet(plane: ControlPlane, directory: Path) -> Fleet:
    fleet = Fleet(plane=plane, directory=directory, settings={"log": {"level": "INFO"}})
    fleet.namespace = run_apart(plane.namespace("fleet"))
    fleet.kubeconfig = plane.client_config(fleet.instance, ["system:masters"])
    return fleet


async def _watch(large: Fleet, small: Fleet) -> Found:
    audit, metrics = Audit(large.plane, large.instance), large.plane.site.free_port()
    few_audit = Audit(small.plane, small.instance)
    async with AsyncExitStack() as stack:
        many = await stack.enter_async_context(
            crowd(large, NODES, health={"health_address": "", "metrics_address": f"127.0.0.1:{metrics}"})
        )
        print(f"{NODES} nodes Ready after {many.ready_after:.1f} s")
        few = await stack.enter_async_context(crowd(small, FEW))
        both_ready = datetime.now(UTC)
        await eventually(lambda: all(name in many.leases.times for name in many.names), "all have a Lease")
        # A write can be seen before its answer is in the audit log.
        await eventually(lambda: all(_written(audit)[each] >= NODES for each in ONCE_EACH), "every write is answered", every=0.5)
        writes = _written(audit)
        empty = many.process.rss_mib()
        rate = await many.fill(1)
        print(f"{rate:.0f} pods/s")
        full, idle, since = many.process.rss_mib(), Meter(many.process), datetime.now(UTC)
        rest = asyncio.create_task(asyncio.sleep(max(IDLE, few.ready_at + WATCHED - time.monotonic())))
        bare = await asyncio.to_thread(_bare_write, small)
        await rest
        idle.stop()
        end = datetime.now(UTC)
        # A hundred renewals later the audit log has all of them.
        change = await _change_one(many, metrics)
        renewals = _renewals(audit, many.names, since=both_ready, until=end)
        few_renewals = _renewals(few_audit, few.names, since=both_ready, until=end)
        return Found(
            writes=writes,
            flips=await many.flips(),
            rss_without_pods=empty,
            rss_with_pods=full,
            descriptors=many.process.descriptors(),
            filling=NODES / rate,
            oldest=_longest_pause(renewals),
            cpu_per_renewal=idle.cpu / sum(since <= at < end for times in renewals.values() for at in times),
            cpu_per_bare_write=bare,
            cores=idle.cores,
            change=change,
            few_oldest=_longest_pause(few_renewals),
            few_busy=_busy(few_renewals),
        )


def _bare_write(fleet: Fleet) -> float:
    """Seconds of CPU of this thread for one of many updates of a Lease, one after the other on one connection."""
    plane, path = fleet.plane, f"/apis/coordination.k8s.io/v1/namespaces/{fleet.namespace}/leases"
    context = ssl.create_default_context(cafile=str(plane.ca))
    context.load_cert_chain(plane.directory / "pki" / "admin.crt", plane.directory / "pki" / "admin.key")
    connection = http.client.HTTPSConnection(urlsplit(plane.url).netloc, context=context)
    lease: Any = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "bare"}, "spec": {"holderIdentity": "bare"}}
    with closing(connection):
        for number in range(BARE_WRITES + 1):
            if number == 1:
                path, started = f"{path}/bare", time.thread_time()
            lease["spec"]["renewTime"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            body, headers = json.dumps(lease), {"Content-Type": "application/json"}
            connection.request("PUT" if number else "POST", path, body, headers)
            answer = connection.getresponse()
            lease = json.loads(answer.read())
            assert answer.status in (200, 201), lease
    return (time.thread_time() - started) / BARE_WRITES


def _renewals(audit: Audit, names: Sequence[str], *, since: datetime, until: datetime) -> Mapping[str, Sequence[datetime]]:
    """When the API server received them, as our own watch may be told of them late; and the edges of the span, as if they were some."""
    found: dict[str, list[datetime]] = defaultdict(list)
    for call in audit.writes():
        if call.what == "leases" and since <= call.at < until:
            found[call.name].append(call.at)
    return {name: [since, *sorted(found[name]), until] for name in names}


def _longest_pause(renewals: Mapping[str, Sequence[datetime]]) -> float:
    """Seconds."""
    return max((after - before).total_seconds() for times in renewals.values() for before, after in pairwise(times))


def _busy(renewals: Mapping[str, Sequence[datetime]]) -> float:
    since, *_, until = next(iter(renewals.values()))
    seconds = Counter(int((at - since).total_seconds()) for times in renewals.values() for at in times[1:-1])
    print(sorted(seconds.items()))
    return len(seconds) / (until - since).total_seconds()


def _written(audit: Audit) -> Counter[tuple[str, str]]:
    return Counter((call.verb, call.what) for call in audit.writes())


async def _change_one(many: Crowd, port: int) -> Change:
    audit, before, pod = Audit(many.fleet.plane, many.fleet.instance), _reconciles(port), f"{many.names[7]}-0"
    await many.fleet.kubectl("label", "pod", pod, "colour=blue")
    await eventually(lambda: (_reconciles(port) - before)["pods"], "the pod was looked at")
    # A hundred renewals later everything that follows has happened.
    await eventually(lambda: len(audit.writes()) > 100, "Leases are renewed", every=0.2)
    return Change(pod, _reconciles(port) - before, {call.name for call in audit.writes() if call.what != "leases"})


def _reconciles(port: int) -> Counter[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("vkubelet_reconcile_total{")]
    out: Counter[str] = Counter()
    for line in lines:
        labels, _, value = line.partition("} ")
        out[json.loads(labels.split("controller=")[1].split(",")[0])] += int(float(value))
    return out


def test_a_thousand_nodes_are_written_once_each_and_stay_ready(found: Found) -> None:
    assert found.flips == []
    written = {key: number / NODES for key, number in found.writes.items()}
    print(written)
    # A write whose answer is late is repeated.
    assert set(written) <= {*ONCE_EACH, ("update", "leases")}
    assert all(1 <= written[each] < 1.1 for each in ONCE_EACH)


def test_a_thousand_nodes_with_pods_need_little_memory_and_little_cpu_at_rest(found: Found) -> None:
    print(f"{found.rss_without_pods:.0f} MiB, with {NODES} pods {found.rss_with_pods:.0f} MiB")
    print(f"{found.cores:.3f} cores, {found.cpu_per_renewal * 1000:.2f} ms for each renewal, {found.cpu_per_bare_write * 1000:.2f} ms bare")
    assert found.rss_without_pods < 300
    # A hundred KiB for each pod are half a GiB for ten pods on each of 500 nodes.
    assert found.rss_with_pods - found.rss_without_pods < NODES * 0.1
    # Seconds of CPU differ between machines: we are compared to a loop of the same writes, which has no timers, no pods and no other nodes.
    assert found.cpu_per_renewal < 5 * found.cpu_per_bare_write


def test_no_lease_of_a_thousand_nodes_is_late_while_a_thousand_pods_start(found: Found) -> None:
    print(f"oldest {found.oldest:.1f} s, the pods took {found.filling:.1f} s")
    # Did Leases wait for pods, they would be late by all the time that these take; and without a renewal for 40 s a node is lost.
    assert found.oldest < min(RENEW_EVERY + max(RENEW_EVERY / 2, found.filling / 2), LEASE)


def test_leases_of_a_hundred_nodes_are_spread_over_the_interval_and_none_is_old(found: Found) -> None:
    print(f"oldest {found.few_oldest:.1f} s")
    # V20: two intervals, so that none was left out.
    assert found.few_oldest < 20
    # All at once, they would fill one or two seconds of each interval; a machine that stands still for a while takes away some.
    assert found.few_busy > 0.5


def test_one_pod_change_causes_work_for_one_node_only(found: Found) -> None:
    change = found.change
    # The cluster's own controllers change Nodes meanwhile, so "nodes" tells nothing here.
    print(dict(change.reconciles), change.written)
    assert change.reconciles["pods"] == 1
    assert change.reconciles["pod-status"] <= 1
    assert change.written <= {change.pod}
    assert found.descriptors < NODES + 200
