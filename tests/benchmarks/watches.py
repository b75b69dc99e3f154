"""What a shard of 250 nodes costs itself and the API server by one watch of all pods, by a watch for each node, or by one with a label.

`python -m tests.benchmarks.watches KUBECONFIG WAY EXPECTED` is the shard: informers of the product and nothing else. It prints a line when
every pod is in its stores, and another one after so many changes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.benchmarks.figures import Figure
from tests.benchmarks.leased import account, make_account
from tests.benchmarks.planes import NO_AUDIT
from tests.support.load import Load, Request, pod
from tests.support.outside import Meter, Outside
from vkubelet.api.objects import PODS, Pod
from vkubelet.client.connection import load_connection
from vkubelet.client.rest import Client, Selection
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.pods.dispatch import stub
from vkubelet.testing.cluster import ControlPlane, Options, Site

SHARDS, NODES = 4, 250
"""NODES of each; a pod on each node."""
CHANGES = 8
"""Of each pod."""
WAYS = ("all", "nodes", "label")
USER = "shard"
LABEL = "shard"
SERVER = "kube-apiserver"


async def measure(site: Site) -> Sequence[Figure]:
    """8,000 events of 1,000 pods, of which a quarter are those of the shard."""
    keeps = ["--controllers=*,-pod-garbage-collector-controller"]
    options = Options(scheduler=False, verify_kubelets=False, audit_policy=NO_AUDIT, controller_flags=keeps)
    async with ControlPlane("watches", site, options=options) as plane:
        await make_account(plane, USER)
        namespace = await plane.namespace("watches")
        names = {f"p-{number}": number % SHARDS for number in range(SHARDS * NODES)}
        await Load(plane.kubeconfig).send(_labelled(pod(name, namespace, _node(name)), shard) for name, shard in names.items())
        alone = await _cost(plane, namespace, names, "none")
        found: list[Figure] = []
        for way in WAYS:
            found += _figures(way, await _cost(plane, namespace, names, way), alone)
        return found


Cost = dict[str, float]


async def _cost(plane: ControlPlane, namespace: str, names: dict[str, int], way: str) -> Cost:
    """Seconds of CPU of the shard and of the API server while every pod is changed, and MiB of the shard; way "none": without a shard."""
    server = Outside(plane.processes[SERVER].pid)
    started = Meter(server)
    async with _shard(plane, way) as process:
        own = Outside(process.pid if process else os.getpid())
        begin, start_server, size = own.cpu_seconds(), started.cpu, own.rss_mib()
        meters = Meter(own), Meter(server)
        await Load(plane.kubeconfig).send(_changes(namespace, list(names), way))
        if process is not None:
            await _line(process)
        print(f"    {way}: {meters[0].cpu:.1f} s of CPU of the shard, {meters[1].cpu:.1f} s of the API server", flush=True)
        return {"start": begin, "start_server": start_server, "cpu": meters[0].cpu, "server": meters[1].cpu, "rss": size}


def _figures(way: str, cost: Cost, alone: Cost) -> Sequence[Figure]:
    events = SHARDS * NODES * CHANGES
    received = events if way == "all" else events // SHARDS
    return [
        Figure(name=f"watches_{way}_received", value=received, unit="events"),
        Figure(name=f"watches_{way}_connections", value=NODES if way == "nodes" else 1, unit="watches"),
        Figure(name=f"watches_{way}_start", value=cost["start"], unit="s"),
        Figure(name=f"watches_{way}_start_server", value=cost["start_server"], unit="s"),
        Figure(name=f"watches_{way}_cpu", value=cost["cpu"] / events * 1e6, unit="µs"),
        Figure(
            name=f"watches_{way}_server",
            value=cost["server"] / events * 1e6,
            unit="µs",
            ratio_to="no shard",
            ratio=cost["server"] / alone["server"],
        ),
        Figure(name=f"watches_{way}_rss", value=cost["rss"], unit="MiB"),
    ]


def _node(name: str) -> str:
    """A node of the shard of the pod: one pod on each."""
    return f"n-{name[2:]}"


def _labelled(request: Request, shard: int) -> Request:
    env = [{"name": f"SETTING_{number}", "value": "v" * 40} for number in range(30)]
    spec = request.body["spec"]
    spec = {**spec, "containers": [{**container, "env": env} for container in spec["containers"]]}
    metadata = {**request.body["metadata"], "labels": {LABEL: str(shard)}}
    return Request(request.method, request.path, {**request.body, "spec": spec, "metadata": metadata})


def _changes(namespace: str, names: Sequence[str], way: str) -> list[Request]:
    kind = "application/merge-patch+json"
    return [
        Request("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"labels": {"round": f"{way}-{number}"}}}, kind)
        for number in range(CHANGES)
        for name in names
    ]


@asynccontextmanager
async def _shard(plane: ControlPlane, way: str) -> AsyncIterator[Process | None]:
    if way == "none":
        yield None
        return
    expected = SHARDS * NODES * CHANGES if way == "all" else NODES * CHANGES
    arguments = (str(account(plane, USER)), way, str(expected))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.benchmarks.watches", *arguments, stdout=PIPE)
    try:
        await _line(process)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _line(process: Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(300):
        assert await process.stdout.readline(), "the shard stopped"


# --- the shard ---


async def shard(kubeconfig: Path, way: str, expected: int) -> None:
    """Watches until so many changes were received; the shard is the first."""
    changed, done = 0, asyncio.Event()

    def note(change: Change[Pod]) -> None:
        nonlocal changed
        changed += not change.initial
        if changed >= expected:
            done.set()

    nodes = {f"n-{number}" for number in range(0, SHARDS * NODES, SHARDS)}
    selections = {
        "all": [Selection(fields="spec.nodeName!=")],
        "nodes": [Selection(fields=f"spec.nodeName={node}") for node in nodes],
        "label": [Selection(labels=f"{LABEL}=0")],
    }[way]
    connection = await load_connection(kubeconfig=kubeconfig)
    async with Client(connection) as client, asyncio.TaskGroup() as group:
        tasks = []
        for where in selections:
            informer = Informer(client, PODS, where=where, store=Store(keep=lambda pod: pod if pod.node in nodes else stub(pod)))
            informer.on_change(note)
            tasks.append((informer, group.create_task(informer.run())))
        for informer, _ in tasks:
            await informer.wait_synced()
        print(f"synced {time.monotonic()}", flush=True)
        await done.wait()
        print(f"received {changed}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(shard(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
