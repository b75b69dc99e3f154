"""Two thousand clusters on one `fleet hub`, both APIs on: how long do they take to join, what do they cost at rest, what does a restart do?

The clusters are played: each renews its Lease and sends a heartbeat as a member once a minute. What the hub writes is counted by the audit
log of the API server, and requests by its metrics.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from attrs import define, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from fleet.api import keys
from fleet.core.rights import hub_objects
from tests.benchmarks.figures import Figure
from tests.integration.fleet.conftest import define as define_kinds
from tests.integration.fleet.conftest import prepare
from tests.integration.fleet.player import ACCEPTED, CLUSTERS, MEMBERS, RBAC, conditions, internal, lease, managed, rfc3339
from tests.integration.fleet.test_process import readiness
from tests.support.audit import Audit
from tests.support.load import Load, Request
from tests.support.outside import Meter, Outside
from tests.support.program import Program, eventually
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.cluster.pki import write_kubeconfig

COUNT, PERIOD, WATCHED = 2000, 60, 300.0
"""Clusters, seconds between two renewals of each, and seconds for which each of the two phases is measured."""
SETTLE = 75.0
"""Seconds from the last step of joining until the hub is called idle: each clock is compared at the first renewal."""
JOINED_WITHIN = 900.0
ACCOUNT = f"system:serviceaccount:{keys.NAMESPACE}:{keys.HUB}"
_MERGE = "application/merge-patch+json"
_AUDITED = f"""
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {{level: Metadata, users: ["{ACCOUNT}"], verbs: [create, update, patch, delete]}}
- {{level: None}}
"""
_COUNTED = {"leases", "managedclusters", "memberclusters", "internalmemberclusters"}
_AVAILABLE = {"type": "ManagedClusterConditionAvailable", "status": "True", "reason": "ManagedClusterAvailable", "message": ""}

Body = dict[str, Any]


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
class Clusters:
    """The played clusters of one hub."""

    plane: ControlPlane
    program: Program
    port: int
    names: Sequence[str]
    load: Load = field(init=False)
    _turn: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.load = Load(self.plane.kubeconfig)

    @property
    def process(self) -> Outside:
        return Outside(self.program.process.pid)

    # --- joining ---

    async def join(self) -> float:
        """Lets all of them join; the seconds until each is accepted, mirrored, available, and has no taint."""
        began = time.monotonic()
        await self.load.send(Request("POST", CLUSTERS, _record(name)) for name in self.names)
        await self._all(CLUSTERS, lambda body: conditions(body).get("HubAcceptedManagedCluster") == ACCEPTED, "accepted")
        await self._all(MEMBERS, lambda body: conditions(body).get("ReadyToJoin", ("",))[0] == "True", "mirrored")
        await self.load.send(map(_renewal, self.names))
        found = {each["metadata"]["name"]: each for each in (await self.load.get(CLUSTERS))["items"]}
        await self.load.send(_report(name, found[name]) for name in self.names)
        await self._all(CLUSTERS, lambda body: not body["spec"].get("taints"), "without a taint")
        return time.monotonic() - began

    async def _all(self, path: str, holds: Callable[[Body], bool], what: str) -> None:
        async def check() -> bool:
            listed = (await self.load.get(path))["items"]
            return len(listed) == len(self.names) and all(map(holds, listed))

        await eventually(check, f"all are {what}\n{self.program.tail()}", seconds=JOINED_WITHIN, every=5.0)

    # --- at rest ---

    async def live(self, seconds: float, *, heartbeats: bool) -> int:
        """Renews every Lease once a minute, a share of them each second, likewise the heartbeats; how many of these were sent."""
        ends, sent = time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            due = time.monotonic() + 1.0
            share = self.names[self._turn % PERIOD :: PERIOD]
            self._turn += 1
            await self.load.send(map(_renewal, share))
            if heartbeats:
                await self.load.send(map(_heartbeat, share))
                sent += len(share)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return sent

    async def rest(self, seconds: float, *, heartbeats: bool) -> Steady:
        """Lives for a while, and measures that."""
        before, audit, meter = await self._requests(), Audit(self.plane, ACCOUNT), Meter(self.process)
        sent = await self.live(seconds, heartbeats=heartbeats)
        meter.stop()
        requests = await self._requests() - before
        written = [call for call in audit.writes() if (call.what, call.namespace) != ("leases", keys.NAMESPACE)]
        copied = [call for call in written if call.what == "memberclusters/status"]
        print("written at rest:", Counter(f"{call.verb} {call.what} {call.code}" for call in written).most_common(5), flush=True)
        return Steady(
            cores=meter.cores,
            rss=self.process.rss_mib(),
            writes=len(written) - len(copied),
            copied=len(copied),
            heartbeats=sent,
            requests=requests / len(self.names) / seconds * PERIOD,
        )

    async def _requests(self) -> float:
        """All requests so far on what clusters write, but for watches and lists."""
        text = await self.plane.kubectl("get", "--raw", "/metrics")
        families = text_string_to_metric_families(text)
        return sum(
            each.value
            for family in families
            if family.name == "apiserver_request"
            for each in family.samples
            if each.labels.get("resource") in _COUNTED and each.labels.get("verb") not in ("WATCH", "LIST")
        )

    # --- what happens to them ---

    async def versions(self) -> dict[str, str]:
        """The resourceVersion of each record."""
        listed = [each for path in (CLUSTERS, MEMBERS) for each in (await self.load.get(path))["items"]]
        return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in listed}

    async def unknown(self) -> int:
        """How many are not available any more, although each has renewed its Lease."""
        listed = (await self.load.get(CLUSTERS))["items"]
        return sum(conditions(each).get(_AVAILABLE["type"], ("",))[0] != "True" for each in listed)

    async def restart(self) -> float:
        """Restarts the hub; the seconds until it has its complete view again."""
        self.program.terminate()
        began = time.monotonic()
        self.program.start()

        async def ready() -> bool:
            return (await readiness(self.port))[0] == 200

        await eventually(ready, "the view is complete", seconds=120, every=0.1)
        return time.monotonic() - began

    async def deny(self, name: str) -> float:
        """Denies one; the seconds until its rights in its namespace are deleted."""
        began = time.monotonic()
        await self.load.send([Request("PATCH", f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": False}}, _MERGE)])

        async def revoked() -> bool:
            return not (await self.load.get(f"{RBAC}/namespaces/{name}/rolebindings"))["items"]

        await eventually(revoked, f"{name} is denied", seconds=60, every=0.05)
        return time.monotonic() - began


def _record(name: str) -> Body:
    body = managed(name)
    body["spec"]["leaseDurationSeconds"] = PERIOD
    return body


def _renewal(name: str) -> Request:
    return Request("PATCH", lease(name), {"spec": {"renewTime": rfc3339(datetime.now(UTC)), "holderIdentity": name}}, _MERGE)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _report(name: str, found: Body) -> Request:
    """What the agent of a cluster reports, beside what the hub has."""
    others = [each for each in (found.get("status") or {}).get("conditions") or () if each["type"] != _AVAILABLE["type"]]
    return Request(
        "PATCH", f"{CLUSTERS}/{name}/status", {"status": {"conditions": [*others, {**_AVAILABLE, "lastTransitionTime": _now()}]}}, _MERGE
    )


def _heartbeat(name: str) -> Request:
    """What the agent of a member reports once in each period."""
    own = [
        {
            "type": type_,
            "status": "True",
            "reason": f"InternalMemberCluster{type_}",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for type_ in ("Joined", "Healthy")
    ]
    agents = [{"type": "MemberAgent", "conditions": own, "lastReceivedHeartbeat": _now()}]
    return Request("PATCH", f"{internal(name)}/status", {"status": {"agentStatus": agents}}, _MERGE)


@asynccontextmanager
async def on_new_hub(site: Site, count: int) -> AsyncIterator[Clusters]:
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
            yield Clusters(plane, program, port, [f"many-{number}" for number in range(count)])


async def clusters(site: Site, *, count: int = COUNT, seconds: float = WATCHED) -> Sequence[Figure]:
    """2,000 clusters on one hub: they join, rest for five minutes by each API, and outlive a restart."""
    async with on_new_hub(site, count) as many:
        joined = await many.join()
        await many.live(SETTLE, heartbeats=False)
        first = await many.rest(seconds, heartbeats=False)
        await many.live(SETTLE, heartbeats=True)
        both = await many.rest(seconds, heartbeats=True)
        unknown, before = await many.unknown(), await many.versions()
        view = await many.restart()
        await many.live(20.0, heartbeats=False)
        after = await many.versions()
        denied = await many.deny(many.names[count // 2])
    written = sum(before[uid] != after.get(uid) for uid in before)
    figure = partial(Figure, unit="writes")
    return [
        Figure(name="fleet_2000_joined", value=joined, unit="s", most=300),
        Figure(name="fleet_2000_leases_cpu", value=first.cores, unit="cores", most=0.15),
        Figure(name="fleet_2000_cpu", value=both.cores, unit="cores", most=0.15),
        Figure(name="fleet_2000_rss", value=max(first.rss, both.rss), unit="MiB", most=300),
        figure(name="fleet_idle_writes", value=first.writes + first.copied + both.writes, most=1),
        figure(
            name="fleet_copied_heartbeats", value=both.copied, ratio_to="heartbeats", ratio=both.copied / both.heartbeats, most_ratio=1.0
        ),
        Figure(name="fleet_leases_requests_ratio", value=first.requests, unit="per cluster and minute", most=1.2),
        Figure(name="fleet_requests_ratio", value=both.requests, unit="per cluster and minute", most=3.3),
        Figure(name="fleet_2000_unknown", value=unknown, unit="clusters", most=1),
        Figure(name="fleet_restart_view", value=view, unit="s", most=20),
        figure(name="fleet_restart_writes", value=written, most=1),
        Figure(name="fleet_denial", value=denied, unit="s", most=2),
    ]
