"""Probes by the clock: delays, periods, thresholds, and what they lead to."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.vkubelet.containers.bench import Starter, app, bench, probe
from vkubelet.containers.plan import ProbeKind, ProbeSpec
from vkubelet.containers.prober import Streak
from vkubelet.errors import NotSupported
from vkubelet.provider import Running, Terminated, Waiting


async def test_readiness_follows_its_thresholds() -> None:
    readiness = probe("ready", initialDelaySeconds=5, periodSeconds=10, successThreshold=2, failureThreshold=3)
    async with bench({"containers": [app(readinessProbe=readiness)]}) as b:
        await b.sync()
        assert b.shown("main").ready is False
        await b.pass_time(4.9)
        assert b.provider.commands == []
        await b.pass_time(0.1)
        assert b.provider.commands == ["ready"]
        assert b.shown("main").ready is False
        await b.pass_time(10)
        assert b.shown("main").ready is True
        b.provider.codes["ready"] = 1
        await b.pass_time(20)
        assert b.shown("main").ready is True
        await b.pass_time(10)
        assert b.shown("main").ready is False
        assert b.events("Unhealthy") == ["Readiness probe failed: ready says 1"] * 3
        assert b.starts("main") == 1


async def test_one_success_between_failures_starts_the_count_anew() -> None:
    async with bench({"containers": [app(livenessProbe=probe("alive", periodSeconds=10, failureThreshold=3))]}) as b:
        await b.sync()
        for code in (1, 1, 0, 1, 1):
            b.provider.codes["alive"] = code
            await b.pass_time(10)
        assert b.starts("main") == 1
        b.provider.codes["alive"] = 1
        await b.pass_time(10)
        assert b.starts("main") == 2


async def test_liveness_kills_and_the_next_run_is_probed_anew() -> None:
    async with bench({"containers": [app(livenessProbe=probe("alive", periodSeconds=10, failureThreshold=2))]}) as b:
        b.provider.codes["alive"] = 7
        await b.sync()
        await b.pass_time(10)
        assert b.events("Killing") == ["Container main failed liveness probe, will be restarted"]
        # Twice of the first run, and once of the next already.
        assert b.events("Unhealthy") == ["Liveness probe failed: alive says 7"] * 3
        assert b.shown("main").restarts == 1
        b.provider.codes["alive"] = 0
        await b.pass_time(100)
        assert b.shown("main").restarts == 1
        assert b.shown("main").ready is True


async def test_failed_liveness_of_a_pod_that_never_restarts_says_only_that() -> None:
    spec = {"restartPolicy": "Never", "containers": [app(livenessProbe=probe("alive", failureThreshold=1))]}
    async with bench(spec) as b:
        b.provider.codes["alive"] = 1
        await b.sync()
        await b.pass_time(1)
        assert b.events("Killing") == ["Container main failed liveness probe"]
        assert b.running() == []
        assert b.starts("main") == 1


async def test_other_probes_wait_for_startup_which_then_rests() -> None:
    probes = {
        "startupProbe": probe("up", periodSeconds=1, failureThreshold=30),
        "livenessProbe": probe("alive", periodSeconds=10),
        "readinessProbe": probe("ready", periodSeconds=10),
    }
    async with bench({"containers": [app(**probes)]}) as b:
        b.provider.codes["up"] = 1
        await b.sync()
        await b.pass_time(10)
        assert set(b.provider.commands) == {"up"}
        assert b.shown("main").started is False
        b.provider.codes["up"] = 0
        await b.pass_time(1)
        assert b.provider.commands[-3:] == ["up", "alive", "ready"]
        assert (b.shown("main").started, b.shown("main").ready) == (True, True)
        count = b.provider.commands.count("up")
        await b.pass_time(60)
        assert b.provider.commands.count("up") == count


async def test_startup_that_fails_too_often_restarts_the_container() -> None:
    async with bench({"containers": [app(startupProbe=probe("up", periodSeconds=5, failureThreshold=3))]}) as b:
        b.provider.codes["up"] = 1
        await b.sync()
        await b.pass_time(9.9)
        assert b.starts("main") == 1
        await b.pass_time(0.2)
        assert b.events("Killing") == ["Container main failed startup probe, will be restarted"]
        assert b.starts("main") == 2


async def test_while_the_pod_ends_only_readiness_is_asked() -> None:
    probes = {"livenessProbe": probe("alive", periodSeconds=1), "readinessProbe": probe("ready", periodSeconds=1)}
    async with bench({"containers": [app(**probes)]}) as b:
        b.backend.linger["main"] = 20.0
        await b.sync()
        await b.delete(30)
        b.provider.commands.clear()
        b.provider.codes["ready"] = 1
        await b.pass_time(5)
        assert set(b.provider.commands) == {"ready"}
        assert b.shown("main").ready is False


async def test_probe_that_can_not_be_carried_out_is_tried_thrice_and_counts_for_nothing() -> None:
    async with bench({"containers": [app(livenessProbe=probe("alive", failureThreshold=1))]}) as b:
        b.provider.codes["alive"] = NotSupported("no commands here")
        await b.sync()
        await b.pass_time(5)
        assert b.provider.commands == ["alive"] * 3
        assert b.events("Unhealthy") == ["Liveness probe errored and resulted in unknown state: no commands here"]
        await b.pass_time(60)
        assert b.starts("main") == 1


async def test_without_exec_a_command_probe_says_what_is_missing() -> None:
    async with bench({"containers": [app(readinessProbe=probe("ready"))]}, Starter()) as b:
        await b.sync()
        await b.pass_time(1)
        assert b.shown("main").ready is False
        text = "the provider of this node does not support exec; use an httpGet, tcpSocket or grpc action"
        assert b.events("Unhealthy") == [f"Readiness probe errored and resulted in unknown state: {text}"]


async def test_slow_probe_keeps_its_period_and_never_overlaps_itself() -> None:
    async with bench({"containers": [app(readinessProbe=probe("ready", periodSeconds=10))]}) as b:
        b.provider.takes["ready"] = 4.0
        await b.sync()
        await b.pass_time(44)
        assert len(b.provider.commands) == 5
        b.provider.takes["ready"] = 25.0
        b.provider.commands.clear()
        await b.pass_time(60)
        assert len(b.provider.commands) == 3


async def test_command_of_a_probe_knows_the_literal_variables_of_its_container() -> None:
    env = [{"name": "HOW", "value": "well"}, {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    hook = {"postStart": {"exec": {"command": ["$(HOW)"]}}}
    async with bench({"containers": [app(env=env, livenessProbe=probe("$(HOW)$(NO)$$(HOW)"), lifecycle=hook)]}) as b:
        await b.sync()
        await b.pass_time(1)
        # A hook's command stays as it is written.
        assert b.provider.commands == ["$(HOW)", "well$(NO)$(HOW)"]


async def test_result_of_an_earlier_run_does_not_count_for_the_next() -> None:
    async with bench({"containers": [app(livenessProbe=probe("alive", failureThreshold=1))]}) as b:
        b.provider.codes["alive"], b.provider.takes["alive"] = 1, 5.0
        await b.sync()
        await b.pass_time(1)
        b.provider.codes["alive"] = 1
        await b.end("main", 0)
        assert b.runs("main")
        await b.pass_time(4.5)
        assert b.events("Killing") == b.events("Unhealthy") == []


@pytest.mark.parametrize("kind", ["livenessProbe", "readinessProbe", "startupProbe"])
async def test_init_containers_that_are_no_sidecars_are_not_probed(kind: str) -> None:
    async with bench({"initContainers": [app("one", **{kind: probe("any")})], "containers": [app()]}) as b:
        await b.sync()
        await b.pass_time(30)
        assert b.provider.commands == []


async def test_results_are_counted_for_the_metrics_endpoint_of_the_node() -> None:
    async with bench({"containers": [app(readinessProbe=probe("ready", periodSeconds=10))]}) as b:
        await b.sync()
        await b.pass_time(10)
        b.provider.codes["ready"] = 1
        await b.pass_time(10)
        engine = b.adapter._engine  # type: ignore[attr-defined]
        text = engine.probe_metrics("node").decode()
        labels = 'container="main",namespace="default",pod="web",pod_uid="uid-web",probe_type="Readiness"'
        assert f'prober_probe_total{{{labels},result="successful"}} 2.0' in text
        assert f'prober_probe_total{{{labels},result="failed"}} 1.0' in text
        assert engine.probe_metrics("another") == b""
        await b.delete(0)
        await b.pass_time(3)
        assert engine.probe_metrics("node") == b""


@pytest.mark.parametrize(("policy", "again"), [("Always", True), ("OnFailure", True), ("Never", False)])
async def test_container_that_a_probe_ends_well_is_restarted_all_the_same(policy: str, again: bool) -> None:
    """As a kubelet, which kills and starts in one step, and looks at the exit code only of what ended by itself."""
    main = app(livenessProbe=probe("alive"), terminationGracePeriodSeconds=5)
    async with bench({"restartPolicy": policy, "containers": [main]}) as b:
        b.provider.codes["alive"] = 1
        await b.sync()
        b.backend.linger["main"] = None
        await b.pass_time(21)
        await b.end("main", 0)
        assert b.runs("main") is again
        ends = [c.state for report in b.host.reports for c in report.containers if isinstance(c.state, Terminated | Waiting)]
        assert not again or all(end == Waiting("ContainerCreating") for end in ends), "or the pod would be taken for one that has succeeded"
        if again and policy == "OnFailure":
            began = next(n for n, r in enumerate(b.host.reports) if isinstance(r.containers[0].state, Running))
            assert all(isinstance(r.containers[0].state, Running) for r in b.host.reports[began:])


async def test_container_stopped_by_a_probe_is_not_terminated_while_its_restart_waits() -> None:
    spec = {"restartPolicy": "OnFailure", "containers": [app("a", livenessProbe=probe("alive")), app("b")]}
    async with bench(spec) as b:
        await b.sync()
        b.provider.codes["alive"], b.backend.linger["a"] = 1, None
        await b.pass_time(31)
        b.provider.gate = asyncio.Event()
        await b.end("b", 1)
        await b.end("a", 0)
        assert not b.runs("a")
        assert isinstance(b.shown("a").state, Running)
        b.provider.gate.set()
        await b.pass_time(0)
        assert b.runs("a")
        last = b.shown("a").last
        assert b.shown("a").restarts == 1 and last is not None and last.exit_code == 0


async def test_restarts_by_probes_back_off_from_the_end_of_the_run_before() -> None:
    """As a kubelet, which knows of no later end when it starts what it has just killed."""
    async with bench({"containers": [app(livenessProbe=probe("alive", periodSeconds=5, failureThreshold=4))]}) as b:
        b.provider.codes["alive"] = 1
        await b.sync()
        moments = [b.host.clock.monotonic()]
        while len(moments) < 8:
            await b.pass_time(0.5)
            if b.starts("main") > len(moments):
                moments.append(b.host.clock.monotonic())
        gaps = [round(later - earlier) for earlier, later in zip(moments, moments[1:], strict=False)]
        # Each run lasts 15 s: a back-off of 10 s is over by the end of the next run, and those of 20 and more are not.
        assert gaps == [15, 15, 15, 35, 55, 95, 175]


@pytest.mark.parametrize(
    ("kind", "successes", "failures", "results", "verdicts"),
    [
        (ProbeKind.READINESS, 1, 3, "++", "++"),
        (ProbeKind.READINESS, 2, 3, "+++", ".++"),
        (ProbeKind.READINESS, 1, 3, "---", "..-"),
        (ProbeKind.READINESS, 1, 3, "--+---", "..+..-"),
        (ProbeKind.READINESS, 2, 2, "+-+-++--", ".....+.-"),
        (ProbeKind.LIVENESS, 1, 1, "-", "-"),
        (ProbeKind.STARTUP, 1, 30, "--+", "..+"),
    ],
)
def test_verdicts_follow_equal_results_in_a_row(kind: ProbeKind, successes: int, failures: int, results: str, verdicts: str) -> None:
    spec = ProbeSpec(kind=kind, action={}, successes=successes, failures=failures)
    streak = Streak(1)
    reported = [streak.note(result == "+", spec) for result in results]
    assert "".join({True: "+", False: "-", None: "."}[verdict] for verdict in reported) == verdicts


@pytest.mark.parametrize(
    ("kind", "result", "held"),
    [
        (ProbeKind.LIVENESS, False, True),
        (ProbeKind.LIVENESS, True, False),
        (ProbeKind.STARTUP, True, True),
        (ProbeKind.STARTUP, False, True),
        (ProbeKind.READINESS, False, False),
    ],
)
def test_which_verdicts_need_no_more_probing_of_this_run(kind: ProbeKind, result: bool, held: bool) -> None:
    streak = Streak(1)
    streak.note(result, ProbeSpec(kind=kind, action={}, successes=1, failures=1))
    assert streak.held is held
