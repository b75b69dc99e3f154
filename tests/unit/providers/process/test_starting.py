"""Tests of what a keeper is told to start."""

from __future__ import annotations

import grp
import os
import pwd
import signal
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from vkubelet import Unavailable
from vkubelet.provider import Mount, ResolvedContainer, ResolvedPod
from vkubelet.testing.host import make_pod, with_status
from vkubelet_providers.process.attempts import About
from vkubelet_providers.process.cgroups import Cgroups
from vkubelet_providers.process.local_pods import LocalPod
from vkubelet_providers.process.starting import Ways, command_of, foreign_groups, oom_score, order, stop_signal
from vkubelet_providers.process.users import Identity

WAYS = Ways(mounts=True, path="/bin", log_size=1, log_files=2, memory=1000 << 20, cgroups=Cgroups())


def ordered(tmp_path: Path, *, ways: Ways = WAYS, **container: Any) -> Any:
    pod = make_pod("web")
    held = LocalPod(pod.ref, tmp_path)
    attempt = held.attempt("main", 0)
    attempt.make(About(), uid=None)
    one = ResolvedContainer(name="main", image="i", **{"command": ["run"], **container})
    whole = ResolvedPod(pod=pod, containers={"main": one}, hostname="web", hosts="127.0.0.1 localhost\n", resolv_conf="")
    return order(whole, one, held=held, attempt=attempt, who=Identity(7, 8, [8, 9]), ways=ways)


def test_the_environment_is_the_pods_and_three_variables(tmp_path: Path) -> None:
    assert ordered(tmp_path, env={"A": "1", "PATH": "/own"})["env"] == {"PATH": "/own", "HOME": "/", "HOSTNAME": "web", "A": "1"} | {
        "HOME": ordered(tmp_path)["env"]["HOME"]
    }


def test_command_and_arguments_are_one_and_the_user_is_kept(tmp_path: Path) -> None:
    made = ordered(tmp_path, args=["--x"], spec={"stdin": True, "tty": True})
    assert made["command"] == ["run", "--x"] and (made["uid"], made["gid"], made["groups"]) == (7, 8, [8, 9])
    assert made["stdin"] and made["tty"] and not made["stdin_once"]


@pytest.mark.parametrize("asked", [{}, {"allowPrivilegeEscalation": False}, {"allowPrivilegeEscalation": True}, {"privileged": True}])
@pytest.mark.parametrize("allowed", [False, True], ids=["forbidden", "allowed"])
def test_privileges_are_gained_where_the_node_allows_and_the_pod_asks(tmp_path: Path, asked: dict[str, bool], allowed: bool) -> None:
    made = ordered(tmp_path, ways=evolve(WAYS, privilege_escalation=allowed), spec={"securityContext": asked})
    assert made["no_new_privileges"] is not (allowed and any(asked.values()))


@pytest.mark.parametrize("path", ["/proc", "/proc/self/fd", "/sys", "/sys/fs/cgroup", "/dev", "/dev/null", "/dev/pts/0", "dev/../proc/x"])
def test_a_mount_over_what_the_host_has_in_proc_sys_or_dev_is_refused(tmp_path: Path, path: str) -> None:
    mount = Mount(volume="data", path=path, source=tmp_path)
    with pytest.raises(Unavailable, match="cannot be mounted: it is in /") as refused:
        ordered(tmp_path, mounts=[mount])
    assert (refused.value.event, refused.value.waiting) == ("Failed", "RunContainerError")
    with pytest.raises(Unavailable, match="cannot be mounted"):
        ordered(tmp_path, spec={"terminationMessagePath": path})


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/part", "/dev/of-the-pod/part", "/process", "/system", "/srv/proc"])
def test_a_mount_beside_proc_and_sys_or_at_a_free_place_in_dev_is_made(tmp_path: Path, path: str) -> None:
    assert path in {each["target"] for each in ordered(tmp_path, mounts=[Mount(volume="data", path=path, source=tmp_path)])["binds"]}


def test_files_of_the_pod_are_mounted_if_there_is_something_in_them(tmp_path: Path) -> None:
    targets = {each["target"]: Path(each["source"]) for each in ordered(tmp_path)["binds"]}
    assert set(targets) == {"/etc/hosts", "/etc/hostname", "/dev/termination-log"}
    assert targets["/etc/hosts"].read_text() == "127.0.0.1 localhost\n" and targets["/etc/hostname"].read_text() == "web\n"
    moved = ordered(tmp_path, spec={"terminationMessagePath": "/tmp/last"})["binds"]
    assert "/tmp/last" in {each["target"] for each in moved}


def test_without_mounts_a_variable_names_the_directory(tmp_path: Path) -> None:
    made = ordered(tmp_path, ways=evolve(WAYS, mounts=False))
    root = Path(made["env"]["VKUBELET_ROOT"])
    assert made["binds"] is None and made["cwd"] == str(root)
    assert (root / "etc/hosts").read_text() == "127.0.0.1 localhost\n"


def test_a_container_without_command_is_refused() -> None:
    with pytest.raises(Unavailable, match="command is missing") as refused:
        command_of(ResolvedContainer(name="main", image="busybox", args=["only"]))
    assert refused.value.waiting == "CreateContainerError"


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, 15), ("SIGUSR1", signal.SIGUSR1), ("SIGRTMIN+3", signal.SIGRTMIN + 3), ("SIGRTMAX-1", signal.SIGRTMAX - 1), ("odd", 15)],
)
def test_the_signal_that_asks_for_the_end(name: str | None, expected: int) -> None:
    assert stop_signal({"lifecycle": {"stopSignal": name}} if name else {}) == expected


@pytest.mark.parametrize(
    ("quality", "requested", "expected"),
    [("Guaranteed", "1Mi", -997), ("BestEffort", None, 1000), ("Burstable", "250Mi", 750), ("Burstable", "1000Mi", 3)],
)
def test_the_score_for_want_of_memory_is_the_kubelets(quality: str, requested: str | None, expected: int) -> None:
    container = {"resources": {"requests": {"memory": requested}}} if requested else {}
    assert oom_score(with_status(make_pod(), {"qosClass": quality}), container, memory=1000 << 20) == expected


def test_groups_of_the_host_are_foreign_to_all_but_their_members() -> None:
    own = pwd.getpwuid(os.getuid())
    unknown = next(gid for gid in range(70_000, 80_000) if gid not in {each.gr_gid for each in grp.getgrall()})
    assert foreign_groups(own.pw_uid, [own.pw_gid, unknown]) == set()
    assert foreign_groups(unknown, [own.pw_gid, unknown]) == {own.pw_gid}
    assert foreign_groups(unknown, [own.pw_gid], allowed=[own.pw_gid]) == set()
