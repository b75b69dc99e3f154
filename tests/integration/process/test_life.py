"""One container of the process provider from its start to its end.

Invariant: what is asserted is what a program in the container sees, or what the kernel says of it.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from attrs import evolve

from tests.integration.process.conftest import NODE, Bench, groups, long_time, processes, running, sleeping
from tests.support.program import eventually
from vkubelet import Pod, PodRejected, Running, SettingsError, Terminated, Unavailable
from vkubelet.api.podspec import Kind, Reference
from vkubelet.api.quantity import Quantity
from vkubelet.clock import SystemClock
from vkubelet.provider import ContainerProvider, Mount
from vkubelet.resolve.references import Content
from vkubelet.testing.host import make_pod
from vkubelet_providers.process import Process
from vkubelet_providers.process.volumes import ROOT_VARIABLE

ROOT = os.getuid() == 0


async def test_a_container_runs_with_its_own_environment_and_ends_with_its_code(bench: Bench) -> None:
    assert isinstance(bench.provider, ContainerProvider)
    before = SystemClock().now()
    pod = await bench.start("web", "sh", "-c", "env; echo oops >&2; printf unended; exit 7", env={"A": "1", "B": "two words"})
    ended = await bench.ended(pod)
    assert (ended.exit_code, ended.reason) == (7, "Error")
    assert ended.started_at is not None and ended.finished_at is not None
    assert before - timedelta(seconds=1) < ended.started_at < ended.finished_at < SystemClock().now()
    lines = (await bench.logs(pod)).splitlines()
    expected = {"A=1", "B=two words", "HOSTNAME=web", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    assert {
        line for line in lines if "=" in line and line.split("=")[0] not in ("HOME", "PWD", "SHLVL", "_", "OLDPWD", ROOT_VARIABLE)
    } == expected
    assert {"oops", "unended"} <= set(lines)


async def test_a_restart_keeps_the_log_and_the_end_of_the_time_before(bench: Bench) -> None:
    pod = await bench.start("web", "sh", "-c", "echo first; exit 3")
    await bench.ended(pod)
    await bench.start("web", "sh", "-c", "echo second; sleep 1000", restarts=1, pod=pod)
    report = bench.report(pod)
    assert isinstance(report.state, Running) and report.restarts == 1
    assert report.last is not None and report.last.exit_code == 3
    assert await bench.logs(pod, previous=True) == "first\n"
    await eventually(lambda: b"second" in _log(bench, "web", 1), "it writes", every=0.02)
    assert await bench.logs(pod) == "second\n"
    await bench.start("web", "sh", "-c", "echo not again", restarts=1, pod=pod)
    assert (await bench.running(pod)).started_at == report.state.started_at


def _log(bench: Bench, name: str, number: int) -> bytes:
    return Path(bench.provider.directory / "pods" / f"uid-{name}" / "containers/main" / str(number) / "log/000000.log").read_bytes()


@pytest.mark.parametrize(
    ("command", "container", "waiting", "text"),
    [
        ((), {}, "CreateContainerError", "command"),
        (("no-such-program",), {}, "RunContainerError", "executable file not found"),
        (("sh",), {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "CreateContainerConfigError", "runAsNonRoot"),
        (("sh",), {"workingDir": "/etc/hostname"}, "RunContainerError", "/etc/hostname"),
    ],
)
async def test_what_can_not_start_says_why_and_leaves_nothing(
    bench: Bench, command: tuple[str, ...], container: dict[str, object], waiting: str, text: str
) -> None:
    with pytest.raises(Unavailable, match=text) as refused:
        await bench.start("web", *command, **container)
    assert refused.value.waiting == waiting
    assert not list((bench.provider.directory / "pods/uid-web").glob("containers/main/*"))


async def test_stop_asks_first_and_then_ends_everything(bench: Bench) -> None:
    long = long_time()
    stubborn = (
        f"trap '' TERM; setsid sleep {long} & (setsid setsid sleep {long} &) ; sleep {long} & echo ready; while :; do sleep 0.1; done"
    )
    polite = await bench.start("polite", "sh", "-c", "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.1; done")
    other = await bench.start("other", "sh", "-c", stubborn)
    custom = await bench.start(
        "custom", "sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.1; done", lifecycle={"stopSignal": "SIGUSR1"}
    )
    await eventually(lambda: len(sleeping(long)) == 3, "all that it starts runs", every=0.02)
    for pod in (polite, other, custom):
        await eventually(lambda pod=pod: b"ready" in _log(bench, pod.metadata.name, 0), "it is ready", every=0.02)
        await bench.provider.stop_container(pod.ref, "main", grace=30 if pod is not other else 0.5)
    assert (await bench.ended(polite)).exit_code == 4
    assert (await bench.ended(custom)).exit_code == 5
    assert (await bench.ended(other)).exit_code == 137
    # Without control groups nobody waits for what was killed.
    await eventually(lambda: not processes(long), "everything ends", every=0.02)
    assert (await bench.logs(polite)).endswith("asked\n")


async def test_a_later_stop_hastens_an_earlier_one(bench: Bench) -> None:
    pod = await bench.start("web", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    await eventually(lambda: b"ready" in _log(bench, "web", 0), "it is ready", every=0.02)
    await bench.provider.stop_container(pod.ref, "main", grace=1000)
    await bench.provider.stop_container(pod.ref, "main", grace=0)
    assert (await bench.ended(pod)).exit_code == 137


async def test_the_message_of_the_end_comes_from_its_file(bench: Bench) -> None:
    pod = await bench.start("file", "sh", "-c", "echo last words > ${VKUBELET_ROOT:-}/dev/termination-log")
    assert (await bench.ended(pod)).message == "last words\n"


@pytest.mark.parametrize("group", [True, False], ids=["with groups", "without"])
async def test_a_keeper_that_is_killed_is_told_as_unknown_and_its_process_ends(settings: Process.Settings, group: bool) -> None:
    long = long_time()
    async with running(settings if group else evolve(settings, cgroup="")) as bench:
        pod = await bench.start("web", "sleep", long)
        held = bench.provider.pods.get("uid-web")
        assert held is not None
        state = held.containers["main"].state
        try:
            os.kill(state.keeper, signal.SIGKILL)
            ended = await bench.ended(pod)
            assert (ended.exit_code, ended.reason) == (137, "ContainerStatusUnknown")
            await eventually(lambda: not processes(long), "its process ends", every=0.02)
        finally:
            await bench.remove(pod)


async def test_a_keeper_that_is_killed_takes_its_process_along_while_nobody_looks(settings: Process.Settings) -> None:
    """Without control groups and without vkubelet."""
    own, long = evolve(settings, cgroup=""), long_time()
    async with running(own) as bench:
        pod = await bench.start("web", "sleep", long)
        held = bench.provider.pods.get("uid-web")
        assert held is not None
        keeper = held.containers["main"].state.keeper
    os.kill(keeper, signal.SIGKILL)
    await eventually(lambda: not processes(long), "its process ends", every=0.02)
    async with running(own) as bench:
        (report,) = await bench.provider.list_containers(NODE)
        state = report.containers[0].state
        assert isinstance(state, Terminated) and state.reason == "ContainerStatusUnknown"
        await bench.provider.remove_pod(pod.ref)


SEES = """
cat /etc/config/key /srv/deep/host/key; grep files /etc/hosts; hostname; id -u; id -G
touch /data-98765/made && stat -c %g /data-98765/made; touch /etc/config/x
df /run/fast | tail -1 | cut -d' ' -f1; test -d /proc/self && pwd
"""


@pytest.mark.skipif(not ROOT, reason="only root has mounts")
async def test_files_lie_where_the_pod_says_and_the_host_has_none_of_them(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("host")
    mounts = {"config": "/etc/config", "data": "/data-98765", "fast": "/var/run/fast", "host": "/srv/deep/host"}
    main = {"name": "main", "image": "image", "command": ["sh", "-c", SEES]}
    main["volumeMounts"] = [
        {"name": name, "mountPath": path, **({"subPath": "part"} if name == "data" else {})} for name, path in mounts.items()
    ]
    volumes = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "data", "emptyDir": {}},
        {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
    ]
    security = {"runAsUser": 65534, "fsGroup": 4711}
    pod = make_pod("files", node=NODE, spec={"containers": [main], "volumes": volumes, "securityContext": security})
    bench.host.objects[Reference(Kind.CONFIGMAP, "config")] = Content(text={"key": "config"})
    sandbox = await bench.provider.prepare_pod(pod)
    await bench.begin(pod, await bench.host.resolve(pod, files=sandbox.files, pod_ips=sandbox.ips))
    assert (await bench.ended(pod)).exit_code == 0
    out = await bench.logs(pod)
    for expected in ("confighost", "127.0.0.1\tfiles\n", "\nfiles\n", "65534\n65534 4711\n4711\n", "Read-only file system", "tmpfs"):
        assert expected in out, out
    assert not any(Path(path).exists() for path in ("/etc/config", "/data-98765", "/run/fast", "/srv/deep"))
    own = f"{bench.provider.directory}/pods/uid-files/"
    assert own in Path("/proc/self/mountinfo").read_text()
    await bench.remove(pod)
    assert own not in Path("/proc/self/mountinfo").read_text()
    assert (tmp_path / "key").read_text() == "host"


async def test_without_mounts_volumes_are_links_and_an_event_says_what_is_hidden(settings: Process.Settings, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("value")
    async with running(evolve(settings, mounts=False)) as bench:
        mounts = (Mount(volume="config", path="/some/key", source=tmp_path / "key"), Mount(volume="etc", path="/etc", source=tmp_path))
        pod = await bench.start("web", "sh", "-c", "cat $VKUBELET_ROOT/some/key $VKUBELET_ROOT/etc/key some/key", mounts=mounts)
        try:
            await bench.ended(pod)
            assert await bench.logs(pod) == "valuevaluevalue\n"
            (event,) = bench.host.events.events
            assert event.reason == "NotIsolated" and "/etc" in event.message and "/some" not in event.message
        finally:
            await bench.remove(pod)
    assert (tmp_path / "key").exists()


@pytest.mark.parametrize(
    "volume",
    [{"name": "v", "nfs": {"server": "s", "path": "/"}}, {"name": "v", "hostPath": {"path": "/tmp/../etc"}}],
    ids=["nfs", "hostPath"],
)
async def test_volumes_that_can_not_be_are_refused(bench: Bench, volume: dict[str, object]) -> None:
    with pytest.raises(PodRejected, match="volume v"):
        await bench.provider.prepare_pod(make_pod("web", node=NODE, spec={"volumes": [volume]}))


async def test_memory_that_is_too_much_is_told_as_oom_killed(bench: Bench, settings: Process.Settings) -> None:
    if not bench.provider.ways.cgroups.limits("memory"):
        pytest.skip("this host lets us limit no memory")
    limits = {"resources": {"limits": {"memory": "32Mi", "cpu": "500m"}}}
    pod = await bench.start("greedy", "python3", "-S", "-c", "x = bytearray(200 << 20); print(len(x))", **limits)
    ended = await bench.ended(pod)
    assert (ended.exit_code, ended.reason) == (137, "OOMKilled")
    pod = await bench.start("resized", "sleep", "1000", **limits)
    await bench.provider.resize_container(pod.ref, "main", {"limits": {"memory": "64Mi", "cpu": "1"}})
    if (place := Path(f"/sys/fs/cgroup/memory/{settings.cgroup}/node/poduid-resized/main.0")).exists():
        assert (place / "memory.limit_in_bytes").read_text() == f"{64 << 20}\n"
    pod = await bench.start("modest", "python3", "-S", "-c", "x = bytearray(4 << 20); print(len(x))", **limits)
    assert (await bench.ended(pod)).exit_code == 0
    await bench.remove(pod)
    assert not [path for path in groups(settings.cgroup) if "poduid-modest" in str(path)]


async def test_pods_weigh_against_each_other_as_much_as_they_ask_for(bench: Bench, settings: Process.Settings) -> None:
    """And all of them against the rest of the host as much as the node has for pods."""
    if not bench.provider.ways.cgroups.limits("cpu"):
        pytest.skip("this host lets us share out no CPU")

    def weight(*inner: str) -> int:
        """Hundreds of thousandths of a core, as far as numbers of version 2 tell."""
        here = [path for path in groups(settings.cgroup) if path.parts[-1 - len(inner) :] == (settings.cgroup, *inner)]
        texts = {file: path / file for path in here for file in ("cpu.shares", "cpu.weight") if (path / file).exists()}
        (told,) = [(file, int(path.read_text())) for file, path in texts.items()]
        shares = told[1] if told[0] == "cpu.shares" else (told[1] - 1) * 262142 // 9999 + 2
        return round(shares / 102.4)

    def pod(name: str, cpu: str) -> Pod:
        spec = {"name": "main", "image": "image", "resources": {"requests": {"cpu": cpu}} if cpu else {}}
        return make_pod(name, node=NODE, spec={"containers": [spec, {**spec, "name": "other"}]})

    for name, cpu in (("heavy", "500m"), ("light", "100m"), ("none", "")):
        await bench.start(name, "sleep", "1000", pod=pod(name, cpu))
    assert [weight("node", f"poduid-{name}") for name in ("heavy", "light", "none")] == [10, 2, 0]
    assert weight("node") == weight() == Quantity.parse(bench.provider.describe().allocatable["cpu"]).milli() // 100
    bench.host.pods.put(pod("heavy", "1"))
    await bench.provider.resize_container(pod("heavy", "1").ref, "main", {"requests": {"cpu": "1"}})
    assert weight("node", "poduid-heavy") == 20


@pytest.mark.parametrize("setting", ["capacity", "allocatable"])
async def test_an_amount_of_cpu_that_is_none_is_refused_by_the_name_of_its_setting(settings: Process.Settings, setting: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with running(evolve(settings, **{setting: {"cpu": "many"}})):
            pass
    (problem,) = caught.value.exceptions
    assert isinstance(problem, SettingsError) and f"provider.{setting}" in str(problem) and "cpu" in str(problem)


async def test_stats_tell_what_a_container_uses(bench: Bench) -> None:
    pod = await bench.start("busy", "python3", "-S", "-c", "x = bytearray(b'1' * (50 << 20))\nwhile True: pass")

    async def seconds() -> float:
        document = await bench.provider.stats_summary(NODE)
        (one,) = next(each for each in document["pods"] if each["podRef"]["uid"] == pod.ref.uid)["containers"]
        assert one["name"] == "main"
        return float(one["cpu"]["usageCoreNanoSeconds"]) / 1e9 if one["memory"]["workingSetBytes"] > 50 << 20 else 0.0

    await eventually(lambda: _above(seconds), "it has worked for a while", every=0.1)


async def _above(seconds: object) -> bool:
    return await seconds() > 0.3  # type: ignore[operator]
