"""Lifecycle of pods whose containers are started and stopped one by one, with the time moved by hand."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.unit.vkubelet.containers.bench import Executor, app, bench, probe, sidecar, unavailable
from vkubelet.api.objects import PodRef
from vkubelet.errors import PodRejected
from vkubelet.provider import Running, Terminated, Waiting
from vkubelet.testing.host import with_status


async def test_crash_loop_backs_off_from_10_to_300_seconds_and_counts_its_restarts() -> None:
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        assert b.runs("main")
        waits = []
        for number in range(8):
            await b.end("main", 1)
            began = b.host.clock.monotonic()
            while not b.runs("main"):
                assert b.waits("main") == "CrashLoopBackOff"
                assert b.shown("main").last == b.backend.boxes[b.uid]["main"].state
                await b.pass_time(5)
            waits.append(b.host.clock.monotonic() - began)
            assert b.shown("main").restarts == number + 1
        assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
        assert b.backend.calls[-1] == "start main 8"


async def test_start_time_of_a_backed_off_container_is_exact() -> None:
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        await b.end("main", 1)
        await b.pass_time(3)
        await b.end("main", 1)
        shown = b.shown("main").state
        assert shown == Waiting("CrashLoopBackOff", "back-off 10s restarting failed container=main pod=web_default(uid-web)")
        assert b.events("BackOff") == ["Back-off restarting failed container main in pod web_default(uid-web)"]
        await b.pass_time(9.9)
        assert not b.runs("main")
        await b.pass_time(0.1)
        assert b.runs("main")


@pytest.mark.parametrize(("ran", "starts_at_once"), [(599, False), (601, True)])
async def test_ten_minutes_of_running_forgive_earlier_ends(ran: float, starts_at_once: bool) -> None:
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        for _ in range(3):
            await b.end("main", 1)
            await b.pass_time(40)
        # The third start came 20 s after the third end.
        await b.pass_time(ran - 20)
        await b.end("main", 1)
        assert b.runs("main") is starts_at_once


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
async def test_restart_policy_decides_what_runs_again(policy: str, code: int, again: bool) -> None:
    async with bench({"restartPolicy": policy, "containers": [app()]}) as b:
        await b.sync()
        await b.end("main", code)
        assert b.runs("main") is again
        assert isinstance(b.shown("main").state, Running if again else Terminated)


async def test_init_containers_run_one_by_one_and_apps_after_them() -> None:
    async with bench({"initContainers": [app("one"), app("two")], "containers": [app(), app("other")]}) as b:
        await b.sync()
        assert b.running() == ["one"]
        assert b.waits("main") == b.waits("two") == "PodInitializing"
        await b.end("one", 0)
        assert b.running() == ["two"]
        await b.end("two", 0)
        assert b.running() == ["main", "other"]
        await b.end("main", 1)
        assert [b.starts("one"), b.starts("two"), b.starts("main")] == [1, 1, 2]


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
async def test_failed_init_container_backs_off_and_holds_the_rest(policy: str) -> None:
    async with bench({"restartPolicy": policy, "initContainers": [app("one")], "containers": [app()]}) as b:
        await b.sync()
        await b.end("one", 1)
        await b.end("one", 1)
        assert b.waits("one") == "CrashLoopBackOff"
        await b.pass_time(10)
        assert b.running() == ["one"]
        await b.end("one", 0)
        assert b.running() == ["main"]


async def test_failed_init_container_of_a_pod_that_never_restarts_ends_it_and_its_sidecars() -> None:
    spec = {"restartPolicy": "Never", "initContainers": [sidecar(), app("one")], "containers": [app()]}
    async with bench(spec) as b:
        await b.sync()
        assert b.running() == ["side", "one"]
        await b.end("one", 3)
        await b.pass_time(1)
        assert b.running() == []
        assert b.starts("main") == 0
        assert b.shown("one").state.exit_code == 3  # type: ignore[union-attr]


async def test_sidecar_starts_before_apps_restarts_and_does_not_hold_a_job() -> None:
    spec = {"restartPolicy": "OnFailure", "initContainers": [app("one"), sidecar()], "containers": [app()]}
    async with bench(spec) as b:
        await b.sync()
        await b.end("one", 0)
        assert b.backend.calls[-2:] == ["start side 0", "start main 0"]
        await b.end("side", 0)
        assert b.running() == ["side", "main"]
        assert b.shown("side").restarts == 1
        await b.end("main", 0)
        await b.pass_time(1)
        assert b.running() == []
        assert b.starts("side") == 2


async def test_next_start_waits_for_a_sidecar_to_be_started() -> None:
    side = sidecar(startupProbe={"exec": {"command": ["up"]}, "periodSeconds": 5})
    async with bench({"initContainers": [side, app("one")], "containers": [app()]}) as b:
        b.provider.codes["up"] = 1
        await b.sync()
        await b.pass_time(4)
        assert b.running() == ["side"]
        assert b.shown("side").started is False
        b.provider.codes["up"] = 0
        await b.pass_time(1)
        assert b.running() == ["side", "one"]
        assert b.shown("side").started is True


async def test_deletion_stops_apps_first_and_sidecars_last_in_reverse() -> None:
    spec = {"initContainers": [sidecar("s1"), sidecar("s2")], "containers": [app("a"), app("b")]}
    async with bench(spec) as b:
        await b.sync()
        assert b.running() == ["s1", "s2", "a", "b"]
        b.backend.linger.update(a=3.0, b=1.0, s1=1.0, s2=1.0)
        await b.delete(30)
        assert [c for c in b.backend.calls if c.startswith("stop")] == ["stop a 30", "stop b 30"]
        await b.pass_time(3)
        assert b.backend.calls[-1] == "stop s2 27"
        await b.pass_time(1)
        assert b.backend.calls[-1] == "stop s1 26"
        assert b.host.gone == []
        await b.pass_time(1)
        assert b.backend.calls[-1] == "remove web"
        assert b.host.gone == [b.pod.ref]
        assert b.events("Killing") == [f"Stopping container {name}" for name in ("s1", "s2", "a", "b")]


async def test_when_the_grace_is_over_sidecars_wait_for_nobody() -> None:
    async with bench({"initContainers": [sidecar()], "containers": [app()]}) as b:
        await b.sync()
        b.backend.linger.update(main=None, side=None)
        await b.delete(10)
        await b.pass_time(10)
        assert b.backend.calls[-2:] == ["stop main 10", "stop side 2"]
        await b.pass_time(2)
        assert b.host.gone == [b.pod.ref]


async def test_shorter_grace_is_passed_on() -> None:
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        b.backend.linger["main"] = None
        await b.delete(30)
        await b.pass_time(5)
        await b.delete(10)
        assert b.backend.calls[-1] == "stop main 10"
        await b.pass_time(9.9)
        assert b.host.gone == []
        await b.pass_time(0.2)
        assert b.host.gone == [b.pod.ref]


async def test_container_always_gets_two_seconds_and_is_told_so_once() -> None:
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        b.backend.linger["main"] = None
        await b.delete(1)
        await b.pass_time(1)
        await b.delete(0)
        await b.pass_time(0.9)
        assert b.runs("main")
        assert [c for c in b.backend.calls if c.startswith("stop")] == ["stop main 2"]
        await b.pass_time(0.1)
        assert b.host.gone == [b.pod.ref]


async def test_start_that_fails_holds_up_no_other_container() -> None:
    async with bench({"containers": [app("a"), app("b")]}) as b:
        b.provider.refuse["a"] = unavailable("not found", waiting="ErrImagePull")
        await b.sync()
        assert b.running() == ["b"]
        assert b.waits("a") == "ErrImagePull"
        await b.pass_time(300)
        b.provider.refuse.clear()
        await b.pass_time(300)
        assert sorted(b.running()) == ["a", "b"]


async def test_pod_that_can_never_run_waits_for_no_other_start_of_it() -> None:
    async with bench({"containers": [app("a"), app("b")]}) as b:
        b.provider.refuse.update(a=unavailable("not found", waiting="ErrImagePull"), b=PodRejected("NoSuchUser", "there is no user 42"))
        await b.sync()
        starts = b.starts("a")
        await b.pass_time(300)
        assert b.starts("a") == starts
        await b.delete(30)
        assert b.host.gone == [b.pod.ref]


async def test_sidecar_in_a_crash_loop_does_not_hold_up_what_it_let_through_before() -> None:
    async with bench({"initContainers": [sidecar(), app("one")], "containers": [app()]}) as b:
        await b.sync()
        assert b.running() == ["side", "one"]
        await b.end("side", 1)
        await b.end("side", 1)
        assert b.waits("side") == "CrashLoopBackOff"
        await b.end("one", 0)
        assert b.running() == ["main"]


async def test_other_image_restarts_the_container_at_once_and_forgets_its_crash_loop() -> None:
    async with bench({"restartPolicy": "Never", "containers": [app("a"), app("b")]}) as b:
        await b.sync()
        await b.sync({"restartPolicy": "Never", "containers": [app("a", image="newer"), app("b")]})
        assert b.events("Killing") == ["Container a definition changed, will be restarted"]
        assert (b.starts("a"), b.starts("b")) == (2, 1)
        assert b.provider.resolved["a"].spec["image"] == "newer"
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        for _ in range(2):
            await b.end("main", 1)
        assert b.waits("main") == "CrashLoopBackOff"
        await b.sync({"containers": [app(image="newer")]})
        assert b.runs("main")


async def test_other_image_is_tried_at_once_when_the_first_could_not_be_had() -> None:
    async with bench({"containers": [app()]}) as b:
        b.provider.refuse["main"] = unavailable("not found", waiting="ErrImagePull")
        await b.sync()
        await b.pass_time(100)
        assert b.waits("main") == "ImagePullBackOff"
        await b.sync({"containers": [app(image="newer")]})
        assert b.waits("main") == "ErrImagePull"
        b.provider.refuse.clear()
        await b.sync({"containers": [app(image="newest")]})
        assert b.runs("main")


async def test_stop_that_is_tried_again_does_not_meet_the_next_run() -> None:
    class Stubborn(Executor):
        async def stop_container(self, pod: PodRef, container: str, *, grace: float) -> None:
            await super().stop_container(pod, container, grace=grace)
            raise unavailable("try again")

    async with bench({"containers": [app(livenessProbe=probe("alive"))]}, Stubborn()) as b:
        b.provider.codes["alive"] = 1
        await b.sync()
        b.backend.linger["main"] = None
        await b.pass_time(21)
        b.provider.codes["alive"] = 0
        await b.end("main", 1)
        stops = sum(call.startswith("stop") for call in b.backend.calls)
        await b.pass_time(60)
        assert b.runs("main")
        assert sum(call.startswith("stop") for call in b.backend.calls) == stops >= 1


async def test_deletion_while_a_container_is_being_started_ends_it() -> None:
    async with bench({"containers": [app()]}) as b:
        b.provider.gate = asyncio.Event()
        await b.sync()
        assert b.backend.calls[-1] == "start main 0"
        await b.delete(30)
        assert b.backend.calls[-1] == "remove web"
        assert b.host.gone == [b.pod.ref]


async def test_deadline_while_a_container_is_being_started_stops_what_may_have_begun() -> None:
    async with bench({"activeDeadlineSeconds": 5, "containers": [app()]}) as b:
        b.provider.gate = asyncio.Event()
        await b.sync()
        await b.pass_time(6)
        assert b.backend.calls[-1] == "stop main 0"
        report = b.host.latest(b.uid)
        assert report is not None and report.failure is not None
        b.provider.gate.set()
        await b.pass_time(60)
        assert b.starts("main") == 1


async def test_pod_that_never_was_is_gone_at_once() -> None:
    async with bench({"containers": [app()]}) as b:
        await b.delete(30)
        assert b.backend.calls == ["remove web"]
        assert b.host.gone == [b.pod.ref]


async def test_active_deadline_ends_the_pod_in_time() -> None:
    async with bench({"activeDeadlineSeconds": 60, "initContainers": [sidecar()], "containers": [app()]}) as b:
        await b.sync(status={"phase": "Running", "startTime": "2025-12-31T23:59:40Z"})
        await b.pass_time(39.9)
        assert b.running() == ["side", "main"]
        await b.pass_time(0.2)
        assert b.running() == []
        report = b.host.latest(b.uid)
        assert report is not None and report.failure is not None
        assert (report.failure.reason, report.failure.message) == (
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
        )
        assert b.events("DeadlineExceeded")
        assert b.host.gone == []
        await b.delete(30)
        assert b.host.gone == [b.pod.ref]


async def test_active_deadline_counts_from_the_start_time_as_it_was_published() -> None:
    async with bench({"activeDeadlineSeconds": 5, "containers": [app()]}) as b:
        await b.sync()
        b.host.pods.put(with_status(b.pod, {"phase": "Running", "startTime": "2026-01-01T00:00:01Z"}))
        await b.pass_time(5.9)
        assert b.runs("main")
        await b.pass_time(0.2)
        assert not b.runs("main")


async def test_active_deadline_can_be_shortened() -> None:
    async with bench({"activeDeadlineSeconds": 600, "containers": [app()]}) as b:
        await b.sync()
        await b.pass_time(20)
        await b.sync({"activeDeadlineSeconds": 30, "containers": [app()]}, status={"phase": "Running", "startTime": "2026-01-01T00:00:00Z"})
        await b.pass_time(9.9)
        assert b.runs("main")
        await b.pass_time(0.2)
        assert not b.runs("main")


async def test_ephemeral_container_is_started_in_a_running_pod_and_never_again() -> None:
    spec = {"containers": [app()]}
    async with bench(spec) as b:
        await b.sync()
        await b.sync({**spec, "ephemeralContainers": [app("debug")]})
        assert b.running() == ["main", "debug"]
        assert isinstance(b.shown("debug").state, Running)
        await b.end("debug", 0)
        await b.pass_time(600)
        assert b.starts("debug") == 1
        assert isinstance(b.shown("debug").state, Terminated)
        assert b.starts("main") == 1


async def test_ephemeral_container_starts_also_while_the_pod_is_initialised() -> None:
    async with bench({"initContainers": [app("one")], "containers": [app()], "ephemeralContainers": [app("debug")]}) as b:
        await b.sync()
        assert sorted(b.running()) == ["debug", "one"]


async def test_one_container_starts_after_the_other_as_their_hooks_allow() -> None:
    first = app("a", lifecycle={"postStart": {"exec": {"command": ["slow"]}}})
    async with bench({"containers": [first, app("b")]}) as b:
        b.provider.takes["slow"] = 5.0
        await b.sync()
        await b.pass_time(4.9)
        assert b.running() == ["a"]
        assert b.shown("a").ready is False
        await b.pass_time(0.1)
        assert b.running() == ["a", "b"]
        assert b.shown("a").ready is True


@pytest.mark.parametrize("seed", range(12))
async def test_random_lives_keep_the_order_and_end(seed: int) -> None:
    """Whatever containers do: init before apps, restart counts grow by one, nothing starts after the deletion, nothing is left."""
    chance = random.Random(seed)
    policy = chance.choice(["Always", "OnFailure", "Never"])
    hooks = {"postStart": {"exec": {"command": ["hello"]}}, "preStop": {"exec": {"command": ["bye"]}}}
    starting = [app("i1"), sidecar("s1", livenessProbe={"exec": {"command": ["alive"]}}), app("i2")][: chance.randrange(4)]
    apps = [app("a", lifecycle=hooks, readinessProbe={"exec": {"command": ["ready"]}}), app("b")][: chance.randint(1, 2)]
    async with bench({"restartPolicy": policy, "initContainers": starting, "containers": apps}) as b:
        b.provider.takes.update(hello=1.0, bye=2.0)
        await b.sync()
        for _ in range(60):
            running = b.running()
            if running and chance.random() < 0.6:
                await b.end(chance.choice(running), chance.choice([0, 0, 1]))
            b.provider.codes.update({word: chance.choice([0, 0, 0, 1]) for word in ("hello", "bye", "alive", "ready")})
            b.backend.linger.update({name: chance.choice([0.0, 3.0, None]) for name in ("a", "b", "s1")})
            await b.pass_time(chance.choice([0.5, 3.0, 30.0, 200.0]))
        begun = len(b.backend.calls)
        await b.delete(10)
        await b.pass_time(20)
        assert b.host.gone == [b.pod.ref]
        assert not b.backend.boxes
        assert not [call for call in b.backend.calls[begun:] if call.startswith("start")]
        counts: dict[str, int] = {}
        for name, restarts in (call.split()[1:] for call in b.backend.calls if call.startswith("start")):
            assert int(restarts) == counts.get(name, -1) + 1
            counts[name] = int(restarts)
            assert name not in ("a", "b") or all(c["name"] in counts for c in starting)
