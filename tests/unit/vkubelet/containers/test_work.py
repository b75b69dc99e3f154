"""Starts that fail, hooks, other resources, and the ends of logs."""

from __future__ import annotations

import pytest

from tests.unit.vkubelet.containers.bench import Executor, Starter, app, bench, probe, sidecar, unavailable
from vkubelet.api.objects import JsonView, PodRef
from vkubelet.errors import BadRequest, PodRejected
from vkubelet.provider import Running, Terminated, Waiting


def hook(kind: str, command: str) -> dict[str, object]:
    return {"lifecycle": {kind: {"exec": {"command": [command]}}}}


# --- starts that fail ---


async def test_start_that_fails_is_shown_and_tried_again_soon() -> None:
    async with bench({"containers": [app()]}) as b:
        b.provider.refuse["main"] = unavailable("no such file", waiting="CreateContainerError", event="Failed")
        await b.sync()
        assert b.shown("main").state == Waiting("CreateContainerError", "no such file")
        await b.pass_time(60)
        assert b.starts("main") == 9  # after 1, 2, 4, 8 s, and then every 10 s
        assert b.events("Failed") == ["Error: no such file"] * 4
        b.provider.refuse.clear()
        await b.pass_time(10)
        assert b.runs("main")
        assert b.shown("main").restarts == 0


async def test_image_that_can_not_be_pulled_backs_off_longer() -> None:
    async with bench({"containers": [app()]}) as b:
        b.provider.refuse["main"] = unavailable("not found", waiting="ErrImagePull")
        await b.sync()
        assert b.waits("main") == "ErrImagePull"
        await b.pass_time(10)
        assert b.shown("main").state == Waiting("ImagePullBackOff", 'Back-off pulling image "image": not found')
        assert b.events("BackOff") == ['Back-off pulling image "image"']
        await b.pass_time(60)
        assert b.starts("main") == 4  # after 10, 30, 70 s


async def test_missing_object_makes_the_container_wait_and_the_provider_is_not_called() -> None:
    async with bench({"containers": [app()]}) as b:
        b.host.missing = unavailable('configmap "settings" not found', event="Failed", waiting="CreateContainerConfigError")
        await b.sync()
        assert b.shown("main").state == Waiting("CreateContainerConfigError", 'configmap "settings" not found')
        assert b.starts("main") == 0
        b.host.missing = None
        await b.pass_time(2)
        assert b.runs("main")


async def test_bug_of_the_provider_is_shown_without_its_text_and_tried_again() -> None:
    async with bench({"containers": [app()]}) as b:
        b.provider.refuse["main"] = KeyError("password=secret")
        await b.sync()
        assert b.shown("main").state == Waiting("RunContainerError", "the provider raised KeyError; its log contains the cause")
        b.provider.refuse.clear()
        await b.pass_time(5)
        assert b.runs("main")


async def test_container_that_can_never_run_fails_the_pod() -> None:
    async with bench({"initContainers": [sidecar()], "containers": [app()]}) as b:
        b.provider.refuse["main"] = PodRejected("NoSuchUser", "there is no user 42")
        await b.sync()
        report = b.host.latest(b.uid)
        assert report is not None and report.failure is not None
        assert report.failure.reason == "NoSuchUser"
        assert not b.runs("side")
        assert b.events("NoSuchUser") == ["there is no user 42"]


async def test_events_of_a_start_name_the_container() -> None:
    async with bench({"initContainers": [sidecar()], "containers": [app()]}) as b:
        await b.sync()
        reported = [(e.reason, e.message, e.subject.field_path) for e in b.host.events.events]
        assert reported == [
            ("Created", "Created container: side", "spec.initContainers{side}"),
            ("Started", "Started container side", "spec.initContainers{side}"),
            ("Created", "Created container: main", "spec.containers{main}"),
            ("Started", "Started container main", "spec.containers{main}"),
        ]


# --- hooks ---


async def test_failed_post_start_hook_kills_the_container_which_starts_again() -> None:
    async with bench({"containers": [app(**hook("postStart", "hello"))]}) as b:
        b.provider.codes["hello"] = 1
        await b.sync()
        assert b.events("FailedPostStartHook")[:1] == ["PostStartHook failed"]
        assert b.events("Killing")[:1] == ["FailedPostStartHook"]
        b.provider.codes["hello"] = 0
        await b.pass_time(10)
        assert b.shown("main").ready is True


async def test_container_waits_in_its_status_until_its_post_start_hook_is_through() -> None:
    async with bench({"containers": [app(**hook("postStart", "hello"))]}) as b:
        b.provider.takes["hello"] = 5.0
        await b.sync()
        await b.pass_time(4)
        assert b.runs("main")
        assert (b.shown("main").state, b.shown("main").id) == (Waiting("ContainerCreating"), "")
        await b.pass_time(1)
        assert isinstance(b.shown("main").state, Running)
        assert b.shown("main").id


async def test_failed_post_start_hook_is_the_waiting_reason_until_the_back_off_shows() -> None:
    async with bench({"containers": [app(**hook("postStart", "hello"))]}) as b:
        b.provider.codes["hello"], b.provider.takes["hello"] = 3, 1.0
        await b.sync()
        await b.pass_time(1)
        text = 'Exec lifecycle hook ([hello]) for Container "main" in Pod "web_default(uid-web)" failed - error: command \'hello\''
        wanted = Waiting("PostStartHookError", f'{text} exited with 3: , message: "hello says 3"')
        assert (b.starts("main"), b.shown("main").state, b.shown("main").restarts) == (2, wanted, 0)
        assert isinstance(b.shown("main").last, Terminated)
        await b.pass_time(2)
        assert (b.starts("main"), b.shown("main").state, b.shown("main").restarts) == (2, wanted, 1)
        await b.pass_time(10)
        await b.pass_time(11)
        assert (b.starts("main"), b.waits("main")) == (3, "CrashLoopBackOff")
        b.provider.codes["hello"] = 0
        await b.pass_time(20)
        assert isinstance(b.shown("main").state, Running)


@pytest.mark.parametrize(
    ("policy", "action", "events"),
    [
        ("Always", {"exec": {"command": ["hello"]}}, ["PostStartHook failed", "FailedPostStartHook"]),
        ("Never", {"exec": {"command": ["hello"]}}, ["PostStartHook failed", "FailedPostStartHook"]),
        ("Always", {"sleep": {"seconds": 5}}, []),
    ],
)
async def test_container_that_ends_during_its_post_start_hook_lets_it_fail(policy: str, action: JsonView, events: list[str]) -> None:
    async with bench({"restartPolicy": policy, "containers": [app(lifecycle={"postStart": action})]}) as b:
        b.provider.takes["hello"] = 5.0
        await b.sync()
        await b.end("main", 0)
        assert b.events("FailedPostStartHook", "Killing") == events
        assert (b.waits("main") == "PostStartHookError") is bool(events and policy == "Always")
        assert isinstance(b.shown("main").state, Terminated) is (policy == "Never")


@pytest.mark.parametrize("lingers", [0.5, None])
async def test_pre_stop_hook_that_its_container_does_not_survive_has_failed(lingers: float | None) -> None:
    async with bench({"containers": [app(**hook("preStop", "bye"))]}) as b:
        b.provider.takes["bye"] = 100.0
        b.backend.linger["main"] = lingers
        await b.sync()
        await b.delete(3)
        if lingers is not None:
            await b.end("main", 0)
        await b.pass_time(5)
        assert b.events("FailedPreStopHook") == ["PreStopHook failed"]
        assert b.host.gone == [b.pod.ref]


@pytest.mark.parametrize("fails", [False, True])
async def test_pre_stop_hook_runs_before_the_stop_and_its_failure_is_an_event(fails: bool) -> None:
    async with bench({"containers": [app(**hook("preStop", "bye"))]}) as b:
        b.provider.codes["bye"] = 1 if fails else 0
        b.provider.takes["bye"] = 4.0
        await b.sync()
        await b.delete(30)
        assert b.backend.calls[-1] == "exec bye"
        await b.pass_time(4)
        assert b.backend.calls[-2:] == ["stop main 26", "remove web"]
        assert b.events("FailedPreStopHook") == (["PreStopHook failed"] if fails else [])


async def test_pre_stop_hook_that_takes_the_whole_grace_leaves_two_seconds() -> None:
    async with bench({"containers": [app(**hook("preStop", "bye"))]}) as b:
        b.provider.takes["bye"] = 100.0
        b.backend.linger["main"] = None
        await b.sync()
        await b.delete(30)
        await b.pass_time(30)
        assert b.backend.calls[-1] == "stop main 2"
        await b.pass_time(2)
        assert b.host.gone == [b.pod.ref]


async def test_sleep_hook_sleeps_by_the_clock() -> None:
    async with bench({"containers": [app(lifecycle={"preStop": {"sleep": {"seconds": 5}}})]}) as b:
        await b.sync()
        await b.delete(30)
        await b.pass_time(4.9)
        assert b.runs("main")
        await b.pass_time(0.2)
        assert b.host.gone == [b.pod.ref]


async def test_deletion_ends_a_post_start_hook() -> None:
    async with bench({"containers": [app(**hook("postStart", "hello"))]}) as b:
        b.provider.takes["hello"] = 1000.0
        await b.sync()
        await b.delete(30)
        assert b.host.gone == [b.pod.ref]


async def test_hook_without_a_provider_that_runs_commands_has_failed() -> None:
    async with bench({"containers": [app(**hook("postStart", "hello"))]}, Starter()) as b:
        await b.sync()
        assert b.events("FailedPostStartHook")


# --- termination messages ---


@pytest.mark.parametrize(
    ("policy", "code", "message"), [("FallbackToLogsOnError", 3, "it broke\n"), ("FallbackToLogsOnError", 0, ""), ("File", 3, "")]
)
async def test_end_of_the_log_stands_in_for_a_message(policy: str, code: int, message: str) -> None:
    async with bench({"restartPolicy": "Never", "containers": [app(terminationMessagePolicy=policy)]}) as b:
        b.provider.logs = b"2026-01-01T00:00:00Z it broke\n"
        await b.sync()
        b.provider.takes["logs"] = 1.0
        await b.end("main", code)
        await b.pass_time(1)
        state = b.shown("main").state
        assert isinstance(state, Terminated)
        assert state.message == message
        # A terminal phase is written once: the message is there from the first report of the end on.
        ends = [c.state for report in b.host.reports for c in report.containers if isinstance(c.state, Terminated)]
        assert {end.message for end in ends} == {message}


# --- other resources ---


class Resizing(Executor):
    """One that can give other resources, unless `full`."""

    full = False

    async def resize_container(self, pod: PodRef, container: str, resources: JsonView) -> None:
        if self.full:
            raise unavailable("the cgroup is busy")
        self.backend.calls.append(f"resize {container} {resources['requests']['cpu']}")


def sized(cpu: str, **more: object) -> dict[str, object]:
    return {"containers": [app(resources={"requests": {"cpu": cpu}}, **more)]}


async def test_resize_that_fits_is_carried_out_and_told() -> None:
    async with bench(sized("1"), Resizing()) as b:
        await b.sync()
        assert b.shown("main").allocated == {"cpu": "1"}
        await b.sync(sized("2"), generation=2)
        assert b.backend.calls[-1] == "resize main 2"
        shown = b.shown("main")
        assert (shown.allocated, shown.resources) == ({"cpu": "2"}, {"requests": {"cpu": "2"}})
        assert b.conditions() == {}
        reported = '{"containers":[{"name":"main","resources":{"requests":{"cpu":"2"}}}]}'
        assert b.events("ResizeCompleted") == [f"Pod resize completed: {reported}"]
        assert b.starts("main") == 1


async def test_resize_in_progress_says_why_it_is_not_done_yet() -> None:
    async with bench(sized("1"), Resizing()) as b:
        await b.sync()
        b.provider.full = True
        await b.sync(sized("2"), generation=2)
        condition = b.conditions()["PodResizeInProgress"]
        assert (condition["reason"], condition["message"], condition["observedGeneration"]) == ("Error", "the cgroup is busy", 2)
        assert b.shown("main").resources == {"requests": {"cpu": "1"}}
        b.provider.full = False
        await b.pass_time(5)
        assert b.conditions() == {}


async def test_resize_over_the_capacity_of_the_node_is_infeasible() -> None:
    async with bench(sized("1"), Resizing()) as b:
        await b.sync()
        await b.sync(sized("5"), generation=2)
        condition = b.conditions()["PodResizePending"]
        text = "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000"
        assert (condition["status"], condition["reason"], condition["message"]) == ("True", "Infeasible", text)
        assert b.events("ResizeInfeasible") == [text]
        assert b.shown("main").allocated == {"cpu": "1"}
        await b.sync(sized("1"), generation=3)
        assert b.conditions() == {}


async def test_resize_that_does_not_fit_beside_others_waits_for_them() -> None:
    from vkubelet.testing.host import make_pod

    async with bench(sized("1"), Resizing()) as b:
        other = make_pod("other", spec=sized("2"))
        b.host.pods.put(other)
        await b.adapter.sync_pod(other)
        await b.sync()
        await b.sync(sized("3"), generation=2)
        condition = b.conditions()["PodResizePending"]
        assert condition["reason"] == "Deferred"
        assert condition["message"] == "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
        assert b.events("ResizeDeferred")
        b.host.pods.remove(other)
        await b.adapter.delete_pod(other.ref, 30)
        await b.pass_time(0)
        assert b.conditions() == {}
        assert b.shown("main").allocated == {"cpu": "3"}


async def test_deferred_resize_is_looked_at_again_by_itself() -> None:
    from vkubelet.testing.host import make_pod

    async with bench(sized("1"), Resizing()) as b:
        other = make_pod("other", spec=sized("2"))
        b.host.pods.put(other)
        await b.sync()
        await b.sync(sized("3"), generation=2)
        b.host.pods.remove(other)
        await b.pass_time(59)
        assert b.conditions()["PodResizePending"]["reason"] == "Deferred"
        await b.pass_time(2)
        assert b.conditions() == {}


async def test_resize_without_support_is_infeasible_and_says_so() -> None:
    async with bench(sized("1")) as b:
        await b.sync()
        await b.sync(sized("2"), generation=2)
        condition = b.conditions()["PodResizePending"]
        text = "the provider of this node does not support changing the resources of running containers; recreate the pod"
        assert (condition["reason"], condition["message"]) == ("Infeasible", text)


async def test_resize_that_needs_a_restart_restarts_the_container() -> None:
    policy = {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}
    async with bench(sized("1", **policy), Resizing()) as b:
        await b.sync()
        await b.sync(sized("2", **policy), generation=2)
        assert b.starts("main") == 2
        assert b.events("Killing") == ["Container main resize requires restart"]
        assert b.provider.resolved["main"].spec["resources"] == {"requests": {"cpu": "2"}}
        assert b.conditions() == {}


async def test_container_that_restarts_before_its_resize_was_granted_gets_what_it_had() -> None:
    async with bench(sized("1")) as b:
        await b.sync()
        await b.sync(sized("2"), generation=2)
        await b.end("main", 1)
        assert b.runs("main")
        assert b.provider.resolved["main"].spec["resources"] == {"requests": {"cpu": "1"}}


async def test_exec_that_is_refused_makes_a_hook_fail() -> None:
    async with bench({"containers": [app(**hook("preStop", "bye"))]}) as b:
        b.provider.codes["bye"] = BadRequest("not in this container")
        await b.sync()
        await b.delete(30)
        assert b.events("FailedPreStopHook") == ["PreStopHook failed"]
        assert b.host.gone == [b.pod.ref]


async def test_probe_kill_uses_the_grace_of_the_probe() -> None:
    spec = {"terminationGracePeriodSeconds": 30, "containers": [app(livenessProbe=probe("alive", terminationGracePeriodSeconds=5))]}
    async with bench(spec) as b:
        b.provider.codes["alive"] = 1
        b.backend.linger["main"] = None
        await b.sync()
        await b.pass_time(20)
        assert b.backend.calls[-1] == "stop main 5"
        await b.pass_time(5)
        assert isinstance(b.shown("main").state, Running)
        assert b.shown("main").restarts == 1
