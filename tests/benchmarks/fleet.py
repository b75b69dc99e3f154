"""Two thousand clusters on one `fleet hub`, both APIs on: how long do they take to join, what do they cost at rest, what does a restart do?

The clusters are played: each renews its Lease and sends a heartbeat as a member once a minute. What the hub writes is counted by the audit
log of the API server, and requests by its metrics.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import yaml
from attrs import define, frozen
from prometheus_client.parser import text_string_to_metric_families

from fleet.api import keys
from fleet.core.rights import hub_objects
from tests.benchmarks.figures import Figure
from tests.integration.fleet.conftest import define as define_kinds
from tests.integration.fleet.conftest import prepare
from tests.integration.fleet.player import CLUSTERS, MEMBERS, RBAC
from tests.integration.fleet.test_process import readiness
from tests.support.audit import Audit
from tests.support.load import Request
from tests.support.many_clusters import MERGE, PERIOD, ManyClusters, own_writes
from tests.support.outside import Meter, Outside
from tests.support.program import Program, eventually
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.cluster.pki import write_kubeconfig

COUNT, WATCHED = 2000, 300.0
"""Clusters, and seconds for which each of the two phases is measured."""
SETTLE = 15.0
"""Seconds without a write of the hub after which it is called idle."""
ACCOUNT = f"system:serviceaccount:{keys.NAMESPACE}:{keys.HUB}"
_AUDITED = f"""
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {{level: Metadata, users: ["{ACCOUNT}"], verbs: [create, update, patch, delete]}}
- {{level: None}}
"""
_COUNTED = {"leases", "managedclusters", "memberclusters", "internalmemberclusters"}


@frozen(kw_only=True)
class Steady:
    """One phase: `requests` are those of all clients on the records and Leases of clusters, watches apart, per cluster and minute."""

    cores: float
    rss: float
    writes: int
    """Of the hub, but for its own Lease and the statuses of members."""
    copied: int
    """Statuses of members that the hub has written."""
    heartbeats: int
    requests: float


@define
class Measured:
    """The played clusters of one hub, and what they cost its process, whose health is served at `port`."""

    many: ManyClusters
    port: int

    @property
    def process(self) -> Outside:
        return Outside(self.many.program.process.pid)

    async def rest(self, seconds: float, *, heartbeats: bool) -> Steady:
        """Lives for a while, and measures that."""
        before, audit, meter = await self._requests(), Audit(self.many.plane, ACCOUNT), Meter(self.process)
        sent = await self.many.live(seconds, heartbeats=heartbeats)
        meter.stop()
        requests = await self._requests() - before
        written = own_writes(audit)
        copied = [call for call in written if call.what == "memberclusters/status"]
        print("written at rest:", Counter(f"{call.verb} {call.what} {call.code}" for call in written).most_common(5), flush=True)
        return Steady(
            cores=meter.cores,
            rss=self.process.rss_mib(),
            writes=len(written) - len(copied),
            copied=len(copied),
            heartbeats=sent,
            requests=requests / self.many.count / seconds * PERIOD,
        )

    async def _requests(self) -> float:
        """All requests so far on what clusters write, but for watches and lists."""
        text = await self.many.plane.kubectl("get", "--raw", "/metrics")
        families = text_string_to_metric_families(text)
        return sum(
            each.value
            for family in families
            if family.name == "apiserver_request"
            for each in family.samples
            if each.labels.get("resource") in _COUNTED and each.labels.get("verb") not in ("WATCH", "LIST")
        )

    async def versions(self) -> dict[str, str]:
        """The resourceVersion of each record."""
        listed = [each for path in (CLUSTERS, MEMBERS) for each in (await self.many.load.get(path))["items"]]
        return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in listed}

    async def restart(self) -> float:
        """Restarts the hub; the seconds until it has its complete view again."""
        self.many.program.terminate()
        began = time.monotonic()
        self.many.program.start()

        async def ready() -> bool:
            return (await readiness(self.port))[0] == 200

        await eventually(ready, "the view is complete", seconds=120, every=0.1)
        return time.monotonic() - began

    async def deny(self, name: str) -> float:
        """Denies one; the seconds until its rights in its namespace are deleted."""
        began = time.monotonic()
        await self.many.load.send([Request("PATCH", f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": False}}, MERGE)])

        async def revoked() -> bool:
            return not (await self.many.load.get(f"{RBAC}/namespaces/{name}/rolebindings"))["items"]

        await eventually(revoked, f"{name} is denied", seconds=60, every=0.05)
        return time.monotonic() - began


@asynccontextmanager
async def on_new_hub(site: Site, count: int) -> AsyncIterator[Measured]:
    """A hub of its own with the process `fleet hub`, which has the rights of its account and nothing more."""
    options = Options(controllers=False, scheduler=False, aggregation=False, verify_kubelets=False, audit_policy=_AUDITED)
    async with ControlPlane("fleet", site, options=options) as plane:
        directory = Path(site.directory, "fleet-hub")
        directory.mkdir()
        await define_kinds(plane)
        await prepare(plane)
        listed = {"apiVersion": "v1", "kind": "List", "items": hub_objects()}
        await plane.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        token = (await plane.kubectl("create", "token", keys.HUB, "-n", keys.NAMESPACE, "--duration=10h")).strip()
        kubeconfig = write_kubeconfig(directory / "hub.kubeconfig", plane.name, server=plane.url, ca=plane.ca.read_bytes(), client=token)
        port, config = site.free_port(), directory / "settings.yaml"
        health = {"health_address": f"127.0.0.1:{port}", "metrics_address": "127.0.0.1:0"}
        config.write_text(yaml.safe_dump({"health": health, "hub": {"profile_namespace": "default"}}))
        arguments = ("hub", "--config", str(config), "--kubeconfig", str(kubeconfig))
        with Program("fleet", *arguments, log=directory / "hub.log") as program:
            yield Measured(ManyClusters(plane, program, count), port)


async def clusters(site: Site, *, count: int = COUNT, seconds: float = WATCHED) -> Sequence[Figure]:
    """2,000 clusters on one hub: they join, rest for five minutes by each API, and outlive a restart."""
    async with on_new_hub(site, count) as hub:
        joined = await hub.many.join()
        await hub.many.settle(ACCOUNT, seconds=SETTLE)
        first = await hub.rest(seconds, heartbeats=False)
        await hub.many.live(PERIOD, heartbeats=True)
        await hub.many.settle(ACCOUNT, seconds=SETTLE, heartbeats=True)
        both = await hub.rest(seconds, heartbeats=True)
        unknown, before = await hub.many.unavailable(), await hub.versions()
        view = await hub.restart()
        await hub.many.live(20.0)
        after = await hub.versions()
        denied = await hub.deny(hub.many.names[count // 2])
    written = sum(before[uid] != after.get(uid) for uid in before)
    figure = partial(Figure, unit="writes")
    return [
        Figure(name="fleet_2000_joined", value=joined, unit="s", most=300),
        Figure(name="fleet_2000_leases_cpu", value=first.cores, unit="cores", most=0.15),
        Figure(name="fleet_2000_cpu", value=both.cores, unit="cores", most=0.15),
        Figure(name="fleet_2000_rss", value=max(first.rss, both.rss), unit="MiB", most=300),
        figure(name="fleet_idle_writes", value=first.writes + first.copied + both.writes, most=1),
        # Some of the last heartbeats before the measurement are copied in it.
        figure(
            name="fleet_copied_heartbeats", value=both.copied, ratio_to="heartbeats", ratio=both.copied / both.heartbeats, most_ratio=1.01
        ),
        Figure(name="fleet_leases_requests_ratio", value=first.requests, unit="per cluster and minute", most=1.2),
        Figure(name="fleet_requests_ratio", value=both.requests, unit="per cluster and minute", most=3.3),
        Figure(name="fleet_2000_unknown", value=len(unknown), unit="clusters", most=1),
        Figure(name="fleet_restart_view", value=view, unit="s", most=20),
        figure(name="fleet_restart_writes", value=written, most=1),
        Figure(name="fleet_denial", value=denied, unit="s", most=2),
    ]
