"""What a pod promises, on a provider that only starts and stops containers: seen through a real API server."""

from __future__ import annotations

import asyncio
from datetime import datetime

from aiohttp import web

from tests.integration.containers.conftest import Body, Scene, condition, status_of
from tests.support.program import PATIENCE, eventually
from vkubelet.errors import Unavailable

DEADLINE = 10
"""Seconds, in which also a busy machine has started the container that has to run when they are over."""


def phase(wanted: str) -> object:
    return lambda pod: pod["status"].get("phase") == wanted


def ready(pod: Body) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def waits_for(pod: Body) -> str:
    reason: str = status_of(pod).get("state", {}).get("waiting", {}).get("reason", "")
    return reason


def restarted_after(status: Body) -> float:
    """Seconds from the end of the run before to the start of the present one."""
    began, ended = status["state"]["running"]["startedAt"], status["lastState"]["terminated"]["finishedAt"]
    return (datetime.fromisoformat(began) - datetime.fromisoformat(ended)).total_seconds()


async def test_init_containers_sidecars_and_the_end_of_a_job(scene: Scene) -> None:
    async with scene.running():
        starting = [{"name": "one", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}]
        uid = await scene.create("job", restartPolicy="Never", initContainers=starting, containers=[{"name": "main"}, {"name": "other"}])
        await scene.started(uid, "one")
        pod = await scene.until("job", lambda pod: "running" in status_of(pod, "one").get("state", {}), "one runs")
        assert pod["status"]["phase"] == "Pending"
        assert status_of(pod)["state"]["waiting"]["reason"] == "PodInitializing"
        assert not scene.runs(uid, "side")
        scene.end(uid, "one", code=0)
        pod = await scene.until("job", ready, "ready")
        assert [status_of(pod, name)["started"] for name in ("side", "main", "other")] == [True] * 3
        assert condition(pod, "Initialized")["status"] == "True"
        scene.end(uid, "main", code=0)
        scene.end(uid, "other", code=0)
        pod = await scene.until("job", phase("Succeeded"), "succeeded although its sidecar ran")  # type: ignore[arg-type]
        assert not scene.runs(uid, "side")
        assert condition(pod, "Ready")["reason"] == "PodCompleted"
        await scene.delete("job")
        await scene.absent("job")
        await eventually(lambda: scene.provider.backend.calls[-1] == "remove job", "nothing of it is kept")


async def test_crash_loop_is_shown_and_a_new_process_neither_restarts_nor_forgets(scene: Scene) -> None:
    async with scene.running():
        uid = await scene.create("crash", containers=[{"name": "main"}, {"name": "calm"}])
        await scene.started(uid)
        await scene.started(uid, "calm")
        scene.end(uid, code=1)
        await scene.started(uid)
        scene.end(uid, code=2)
        pod = await scene.until("crash", lambda p: waits_for(p) == "CrashLoopBackOff", "waits")
        shown = status_of(pod)
        assert shown["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=main pod=crash_")
        assert (shown["lastState"]["terminated"]["exitCode"], shown["restartCount"]) == (2, 1)
        assert pod["status"]["phase"] == "Running"
        await scene.told("crash", "BackOff", "Back-off restarting failed container main")
    calls = len(scene.provider.backend.calls)
    scene.end(uid, "calm", code=5)
    async with scene.running():

        def seen(pod: Body) -> bool:
            return status_of(pod, "calm").get("restartCount") == 1 and waits_for(pod) in ("CrashLoopBackOff", "")

        pod = await scene.until("crash", seen, "the end of the other is seen")
        assert status_of(pod, "calm")["lastState"]["terminated"]["exitCode"] == 5
        later = [call for call in scene.provider.backend.calls[calls:] if call != "start main 2"]
        assert later == ["prepare crash", "start calm 1"]
        # The back-off of the first goes on, for as long as it was told.
        assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 2
        assert (status_of(pod)["restartCount"], waits_for(pod)) == (1, "CrashLoopBackOff") or restarted_after(status_of(pod)) >= 10


async def test_deadline_fails_the_pod_in_time(scene: Scene) -> None:
    async with scene.running():
        await scene.create("late", activeDeadlineSeconds=DEADLINE)
        pod = await scene.until("late", phase("Failed"), "failed")  # type: ignore[arg-type]
        assert pod["status"]["reason"] == "DeadlineExceeded"
        assert pod["status"]["message"] == "Pod was active on the node longer than the specified deadline"
        ended = datetime.fromisoformat(status_of(pod)["state"]["terminated"]["finishedAt"])
        began = datetime.fromisoformat(pod["status"]["startTime"])
        # As soon as it is over, and not with some look of every minute.
        assert DEADLINE <= (ended - began).total_seconds() < DEADLINE + 60
        await scene.told("late", "DeadlineExceeded")


async def test_probes_of_all_kinds_and_hooks_reach_a_real_server(scene: Scene) -> None:
    healthy, asked = {"status": 500}, list[str]()

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.path} {request.headers['User-Agent']}")
        return web.Response(status=healthy["status"] if request.path == "/health" else 204)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    # An answer that is only late fails no probe here.
    quick = {"periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": int(PATIENCE)}
    main = {
        "name": "main",
        "ports": [{"name": "web", "containerPort": port}],
        "startupProbe": {**quick, "tcpSocket": {"port": "web"}},
        "livenessProbe": {**quick, "exec": {"command": ["alive"]}},
        "readinessProbe": {**quick, "httpGet": {"port": "web", "path": "/health"}},
        "lifecycle": {"postStart": {"httpGet": {"port": port, "path": "/started"}}, "preStop": {"httpGet": {"port": port, "path": "/bye"}}},
    }
    # The store of the cluster's own control plane answers health checks by gRPC.
    store = {"name": "store", "readinessProbe": {**quick, "grpc": {"port": scene.hub.plane.etcd_port}}}
    try:
        async with scene.running():
            uid = await scene.create("probed", containers=[main, store])
            pod = await scene.until("probed", lambda pod: status_of(pod, "store").get("ready"), "gRPC answers")
            pod = await scene.until("probed", lambda pod: status_of(pod).get("started"), "started")
            assert not status_of(pod)["ready"] and condition(pod, "Ready")["reason"] == "ContainersNotReady"
            await scene.told("probed", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500")
            healthy["status"] = 200
            await scene.until("probed", ready, "ready")
            assert asked[0] == "/started kube-lifecycle/1.34"
            assert "/health kube-probe/1.34" in asked
            scene.provider.codes["alive"] = 1
            await scene.until("probed", lambda pod: status_of(pod).get("restartCount"), "restarted by its liveness probe")
            scene.provider.codes["alive"] = 0
            await scene.told("probed", "Killing", "Container main failed liveness probe, will be restarted")
            await scene.started(uid)
            await scene.delete("probed")
            await scene.absent("probed")
            assert "/bye kube-lifecycle/1.34" in asked
    finally:
        await runner.cleanup()


async def test_ephemeral_container_and_a_resize_come_through_their_subresources(scene: Scene) -> None:
    async with scene.running():
        uid = await scene.create("grown", containers=[{"name": "main", "resources": {"requests": {"cpu": "1"}}}])
        await scene.until("grown", ready, "ready")
        await scene.change("grown", "ephemeralcontainers", {"spec": {"ephemeralContainers": [{"name": "debug", "image": "tools"}]}})
        await scene.until("grown", lambda pod: "running" in status_of(pod, "debug").get("state", {}), "the debugger runs")
        scene.end(uid, "debug", code=3)
        pod = await scene.until("grown", lambda pod: "terminated" in status_of(pod, "debug").get("state", {}), "the debugger ended")
        assert status_of(pod, "debug")["state"]["terminated"]["exitCode"] == 3
        assert ready(pod)
        wish = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
        await scene.change("grown", "resize", wish)
        pod = await scene.until("grown", lambda pod: condition(pod, "PodResizePending"), "the wish is judged")
        assert condition(pod, "PodResizePending")["reason"] == "Infeasible"
        assert status_of(pod)["allocatedResources"] == {"cpu": "1"}
        await scene.told("grown", "ResizeInfeasible", "does not support changing the resources")


async def test_pods_deleted_while_they_start_wait_and_back_off_all_go(scene: Scene) -> None:
    async with scene.running():
        scene.provider.refuse["refused"] = Unavailable("no such program", waiting="CreateContainerError")
        await scene.create("waits", containers=[{"name": "refused"}])
        crashed = await scene.create("crashed")
        await scene.started(crashed)
        scene.end(crashed, code=1)
        await eventually(lambda: scene.provider.backend.calls.count("start main 1"), "it is started again")
        scene.end(crashed, code=1)
        await scene.until("waits", lambda pod: "CreateContainerError" in str(status_of(pod, "refused").get("state")), "waits")
        async with asyncio.TaskGroup() as group:
            for name in ("waits", "crashed"):
                group.create_task(scene.delete(name))
        await scene.absent("waits")
        await scene.absent("crashed")
        await eventually(lambda: not scene.provider.backend.boxes, "nothing of them is kept")
