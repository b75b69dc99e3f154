"""Pods of a real API server on a process node, by the real runtime.

Invariant: kubectl says what is asserted; what is left is looked for on the host.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve

from tests.integration.process.conftest import clear
from tests.support.program import PATIENCE, eventually
from vkubelet.client.connection import load_connection
from vkubelet.runtime import Runtime
from vkubelet.settings import Settings, convert
from vkubelet.testing.cluster import ControlPlane
from vkubelet_providers.process import Process

Body = dict[str, Any]


@define
class Scene:
    """A namespace and a process node."""

    hub: ControlPlane
    namespace: str
    node: str

    async def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return await self.hub.kubectl("-n", self.namespace, *args, stdin=stdin)

    async def create(self, kind: str, name: str, spec: Body) -> None:
        version = "v1" if kind in ("Pod", "ConfigMap") else "batch/v1"
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **spec}
        await self.kubectl("create", "-f", "-", stdin=json.dumps(body))

    async def pod(self, name: str, script: str, *, container: Body | None = None, **spec: Any) -> None:
        main = {"name": "main", "image": "none", "command": ["sh", "-c", script], **(container or {})}
        await self.create("Pod", name, {"spec": {"nodeName": self.node, "containers": [main], **spec}})

    async def until(self, name: str, wanted: Callable[[Body], Any], what: str) -> Body:
        async def check() -> Body | None:
            found: Body = json.loads(await self.kubectl("get", "pod", name, "-o", "json"))
            return found if wanted(found) else None

        pod: Body = await eventually(check, f"{name}: {what}", every=0.2)
        return pod


@pytest.fixture
async def scene(bare_hub: ControlPlane, settings: Process.Settings) -> AsyncIterator[Scene]:
    hub = bare_hub
    namespace = await hub.namespace("process")
    node = f"node-{namespace}"
    own = evolve(settings, node=node, address=hub.host_address)
    sections = {
        "instance": node,
        "server": {"certificate": "self-signed", "main_port": 0, "node_address": hub.host_address},
        "health": {"health_address": "", "metrics_address": ""},
        "leader": {"enabled": False},
    }
    runtime = Runtime(Process(own), convert(sections, Settings), connection=await load_connection(kubeconfig=hub.kubeconfig))
    made = Scene(hub, namespace, node)
    async with asyncio.TaskGroup() as group:
        group.create_task(runtime.run())
        try:
            yield made
        finally:
            await made.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
            runtime.stop()
    await made.kubectl("delete", "node", node, "--ignore-not-found")
    await clear(own)


async def test_pods_live_as_the_api_says(scene: Scene, settings: Process.Settings) -> None:
    await scene.create("ConfigMap", "config", {"data": {"key": "value", "COLOUR": "blue"}})
    volume = {"volumes": [{"name": "c", "configMap": {"name": "config"}}]}
    container = {
        "envFrom": [{"configMapRef": {"name": "config"}}],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": [{"name": "c", "mountPath": "/etc/config-98769"}],
    }
    await scene.pod("once", 'cat /etc/config-98769/key; echo " $COLOUR $IP"', container=container, restartPolicy="Never", **volume)
    await scene.pod("crash", "echo attempt; exit 3")
    # It ends because it is asked to: its grace period is longer than anybody waits here.
    await scene.pod("server", "trap 'exit 0' TERM; while :; do sleep 0.1; done", terminationGracePeriodSeconds=600)
    once = await scene.until("once", lambda pod: pod["status"]["phase"] == "Succeeded", "succeeds")
    assert once["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    address = once["status"]["podIP"]
    assert (await scene.kubectl("logs", "once")).strip() == f"value blue {address}"

    def crashed(pod: Body) -> bool:
        statuses = pod["status"].get("containerStatuses") or [{}]
        waits = (statuses[0].get("state") or {}).get("waiting") or {}
        return statuses[0].get("restartCount", 0) >= 1 and waits.get("reason") == "CrashLoopBackOff"

    crash = await scene.until("crash", crashed, "backs off")
    assert crash["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3
    assert (await scene.kubectl("logs", "crash", "-p")).strip() == "attempt"
    await scene.until("server", lambda pod: pod["status"]["phase"] == "Running", "runs")
    assert (await scene.kubectl("exec", "server", "--", "sh", "-c", "hostname; echo $HOSTNAME")).split() == ["server", "server"]
    await scene.kubectl("delete", "pods", "--all", f"--timeout={PATIENCE:g}s")
    pods = Path(settings.directory) / "pods"
    await eventually(lambda: not list(pods.iterdir()), "nothing is left of them")
