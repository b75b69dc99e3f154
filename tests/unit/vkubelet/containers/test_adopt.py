"""A process that begins anew: what runs goes on, and what ended meanwhile is seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.vkubelet.containers.bench import Backend, Box, Executor, app, bench, probe, sidecar
from vkubelet.provider import Running, Terminated, Waiting
from vkubelet.testing.host import make_pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""When the new process begins."""


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def left(**boxes: Box) -> Executor:
    """A backend that an earlier process has left."""
    pod = make_pod()
    return Executor(Backend(boxes={pod.ref.uid: dict(boxes)}, pods={pod.ref.uid: pod.ref}))


def running(restarts: int = 0, *, since: float = 100, started: bool = True, ready: bool = True) -> dict[str, Any]:
    """A published status."""
    state = {"running": {"startedAt": text(ago(since))}}
    return {"name": "main", "state": state, "restartCount": restarts, "started": started, "ready": ready, "lastState": {}}


async def test_what_runs_is_not_started_again() -> None:
    provider = left(side=Box(Running(ago(100)), 0), main=Box(Running(ago(90)), 3))
    async with bench({"initContainers": [sidecar()], "containers": [app()]}, provider) as b:
        await b.sync(status={"phase": "Running", "containerStatuses": [running(3, since=90)]})
        await b.pass_time(3600)
        assert b.backend.calls == ["prepare web"]
        shown = b.shown("main")
        assert (shown.state, shown.restarts, shown.ready, shown.started) == (Running(ago(90)), 3, True, True)


@pytest.mark.parametrize(("policy", "restarts"), [("Always", 3), ("Never", 3)])
async def test_image_that_changed_while_nobody_looked_restarts_the_container(policy: str, restarts: int) -> None:
    for was, calls in (("image", []), ("older", ["stop main 30", f"start main {restarts + 1}"])):
        provider = left(main=Box(Running(ago(90)), restarts))
        async with bench({"restartPolicy": policy, "containers": [app()]}, provider) as b:
            await b.sync(status={"phase": "Running", "containerStatuses": [{**running(restarts, since=90), "image": was}]})
            assert b.backend.calls == ["prepare web", *calls]


async def test_end_that_came_meanwhile_is_seen_with_its_code_and_restarted() -> None:
    provider = left(main=Box(Terminated(7, finished_at=ago(5)), 0))
    async with bench({"containers": [app()]}, provider) as b:
        await b.sync(status={"phase": "Running", "containerStatuses": [running()]})
        shown = b.shown("main")
        assert shown.last == Terminated(7, finished_at=ago(5))
        assert (shown.restarts, shown.state) == (1, Running(NOW))


async def test_end_that_came_meanwhile_is_final_when_nothing_restarts() -> None:
    provider = left(main=Box(Terminated(0, finished_at=ago(5)), 0))
    async with bench({"restartPolicy": "Never", "containers": [app()]}, provider) as b:
        await b.sync(status={"phase": "Running", "containerStatuses": [running()]})
        assert b.shown("main").state == Terminated(0, finished_at=ago(5))
        assert b.starts("main") == 0


async def test_back_off_goes_on() -> None:
    """Four restarts had brought it to 80 s, of which 50 are over."""
    end = Terminated(1, started_at=ago(51), finished_at=ago(50))
    async with bench({"containers": [app()]}, left(main=Box(end, 4))) as b:
        await b.sync(status={"phase": "Running", "containerStatuses": [running(4)]})
        assert b.waits("main") == "CrashLoopBackOff"
        await b.pass_time(29.9)
        assert b.starts("main") == 0
        await b.pass_time(0.2)
        assert b.backend.calls[-1] == "start main 5"


async def test_initialised_pod_is_not_initialised_again() -> None:
    provider = left(one=Box(Terminated(0, finished_at=ago(100)), 0), main=Box(Running(ago(90)), 0))
    async with bench({"initContainers": [app("one")], "containers": [app()]}, provider) as b:
        await b.sync()
        assert b.backend.calls == ["prepare web"]


async def test_initialisation_goes_on_where_it_was() -> None:
    provider = left(one=Box(Terminated(0, finished_at=ago(100)), 0), two=Box(Running(ago(90)), 0))
    async with bench({"initContainers": [app("one"), app("two")], "containers": [app()]}, provider) as b:
        await b.sync()
        assert b.running() == ["two"]
        await b.end("two", 0)
        assert b.running() == ["main"]
        assert b.starts("one") == 0


@pytest.mark.parametrize(("policy", "again"), [("Always", True), ("Never", False)])
async def test_container_that_vanished_with_all_others_ended_unseen(policy: str, again: bool) -> None:
    spec = {"restartPolicy": policy, "initContainers": [app("one")], "containers": [app()]}
    first = {"name": "one", "state": {"terminated": {"exitCode": 0, "finishedAt": text(ago(200))}}, "restartCount": 0}
    async with bench(spec) as b:
        await b.sync(status={"phase": "Running", "initContainerStatuses": [first], "containerStatuses": [running(2)]})
        if again:
            assert b.running() == ["one"]
            await b.end("one", 0)
            await b.pass_time(20)
            assert b.backend.calls[-1] == "start main 3"
        assert b.starts("one") == again, "nothing is initialised for containers that are not to run again"
        main = b.shown("main")
        ended = main.last if again else main.state
        assert isinstance(ended, Terminated)
        assert (ended.exit_code, ended.reason) == (137, "ContainerStatusUnknown")


async def test_ephemeral_container_that_ended_is_not_started_again() -> None:
    debug = {"name": "debug", "state": {"terminated": {"exitCode": 0}}, "restartCount": 0}
    spec = {"containers": [app()], "ephemeralContainers": [app("debug")]}
    async with bench(spec, left(main=Box(Running(ago(9)), 0))) as b:
        await b.sync(status={"phase": "Running", "ephemeralContainerStatuses": [debug]})
        await b.pass_time(60)
        assert b.starts("debug") == 0


async def test_probes_go_on_without_a_moment_of_doubt() -> None:
    provider = left(main=Box(Running(ago(90)), 0))
    provider.codes.update(ready=0, up=1)
    probes = {"readinessProbe": probe("ready"), "startupProbe": probe("up"), "livenessProbe": probe("alive")}
    async with bench({"containers": [app(**probes)]}, provider) as b:
        await b.sync(status={"phase": "Running", "containerStatuses": [running()]})
        assert all(c.ready for report in b.host.reports for c in report.containers)
        await b.pass_time(30)
        assert set(b.provider.commands) == {"ready", "alive"}


async def test_post_start_hook_of_what_runs_already_is_not_run_again() -> None:
    hook = {"lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}}
    async with bench({"containers": [app(**hook)]}, left(main=Box(Running(ago(90)), 0))) as b:
        await b.sync()
        assert b.provider.commands == []
        assert b.shown("main").started is True


async def test_pod_that_ended_while_nobody_was_there_is_taken_down_with_its_hooks() -> None:
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}}
    async with bench({"containers": [app(**hook)]}, left(main=Box(Running(ago(90)), 0))) as b:
        b.host.pods.put(b.pod)
        await b.delete(30)
        await b.pass_time(1)
        assert b.backend.calls == ["exec bye", "stop main 30", "remove web"]
        assert b.host.gone == [b.pod.ref]


async def test_orphan_is_ended_without_its_object() -> None:
    async with bench({"containers": [app()]}, left(main=Box(Running(ago(90)), 0), other=Box(Running(ago(90)), 0))) as b:
        await b.delete(30)
        await b.pass_time(1)
        assert b.backend.calls == ["stop main 30", "stop other 30", "remove web"]
        assert b.host.gone == [b.pod.ref]


async def test_end_between_the_first_look_and_the_sync_is_not_missed() -> None:
    provider = left(main=Box(Running(ago(90)), 0))
    async with bench({"restartPolicy": "Never", "containers": [app()]}, provider) as b:
        other = make_pod("other", spec={"containers": [app("x")]})
        await b.adapter.sync_pod(other)
        b.backend.end(b.uid, "main", 9)
        # A backend that has forgotten the end by now.
        b.backend.boxes.pop(b.uid)
        await b.sync(status={"phase": "Running", "containerStatuses": [running()]})
        state = b.shown("main").state
        assert isinstance(state, Terminated)
        assert state.exit_code == 9


async def test_listing_shows_what_nobody_reported() -> None:
    async with bench({"restartPolicy": "Never", "containers": [app(), app("other")]}) as b:
        await b.sync()
        await b.pass_time(1)
        b.backend.boxes[b.uid]["main"].state = Terminated(4)
        del b.backend.boxes[b.uid]["other"]
        reports = list(await b.adapter.list_pods("node"))
        assert [report.pod for report in reports] == [b.pod.ref]
        await b.pass_time(0)
        main, other = b.shown("main").state, b.shown("other").state
        assert isinstance(main, Terminated) and isinstance(other, Terminated)
        assert (main.exit_code, other.exit_code, other.reason) == (4, 137, "ContainerStatusUnknown")


async def test_listing_shows_orphans_as_they_are() -> None:
    async with bench({"containers": [app()]}, left(main=Box(Running(ago(90)), 0))) as b:
        (report,) = await b.adapter.list_pods("node")
        assert (report.pod, report.containers[0].state) == (b.pod.ref, Running(ago(90)))


async def test_crash_loop_of_a_container_that_waited_when_the_process_ended() -> None:
    """The backend keeps nothing of ended containers: the status is what is left."""
    ended = {"exitCode": 1, "startedAt": text(ago(30)), "finishedAt": text(ago(20))}
    status = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}, "restartCount": 3}
    provider = left(other=Box(Running(ago(90)), 0))
    async with bench({"containers": [app(), app("other")]}, provider) as b:
        await b.sync(status={"phase": "Running", "containerStatuses": [status]})
        assert isinstance(b.shown("main").state, Waiting)
        await b.pass_time(19)
        assert b.starts("main") == 0
        await b.pass_time(2)
        assert b.backend.calls[-1] == "start main 4"
