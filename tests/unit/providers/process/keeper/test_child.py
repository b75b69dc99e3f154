"""Tests of a process between its fork and its program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from vkubelet_providers.process.keeper.child import Failed, Order, spawn

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root has mounts and other users")
USER = 54321


@pytest.fixture
def stdio(tmp_path: Path) -> Iterator[list[int]]:
    """Nothing to read, and a file for output."""
    nothing, output = os.open(os.devnull, os.O_RDWR), os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT)
    yield [nothing, output, output]
    for descriptor in (nothing, output):
        os.close(descriptor)


@pytest.fixture
def run(tmp_path: Path, stdio: list[int]) -> Callable[..., str]:
    """Returns what a program prints."""

    def run(*command: str, **changes: Any) -> str:
        pid = spawn(ordered(tmp_path, **changes), command, stdio=stdio, tty=False)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return os.pread(stdio[1], 65536, 0).decode()

    return run


def ordered(directory: Path, **changes: Any) -> Order:
    root, stage = directory / "root", directory / "stage"
    root.mkdir(mode=0o700, exist_ok=True)
    stage.mkdir(mode=0o700, exist_ok=True)
    if os.getuid() == 0:
        os.chown(root, USER, USER)
    who = {"uid": USER, "gid": USER, "groups": [USER]} if os.getuid() == 0 else {"uid": None, "gid": None, "groups": None}
    made: dict[str, Any] = {
        **{"directory": str(directory), "command": [], "env": {"PATH": os.defpath}, "cwd": str(root), "root": str(root), **who},
        **{"stdin": False, "stdin_once": False, "tty": False, "no_new_privileges": True, "start_timeout": 30.0, "hostname": ""},
        **{"binds": None, "stage": str(stage), "cgroups": [], "keeper_cgroups": [], "oom_files": [], "oom_score": 1000},
        **{"stop_signal": signal.SIGTERM, "log_directory": "", "log_size": 1, "log_files": 1},
    }
    order: Order = {**made, **changes}  # type: ignore[typeddict-item]
    return order


def test_a_start_that_hangs_is_killed_and_names_its_step(tmp_path: Path, stdio: list[int]) -> None:
    """Opening a FIFO waits for its reader, as a disk that does not answer lets wait."""
    os.mkfifo(tmp_path / "procs")
    with pytest.raises(Failed, match=r"^cgroup: not done within 0\.2 s$"):
        spawn(ordered(tmp_path, cgroups=[str(tmp_path / "procs")], start_timeout=0.2), ["true"], stdio=stdio, tty=False)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_program_gains_no_privileges_unless_the_order_allows_it(run: Callable[..., str], allowed: bool) -> None:
    assert f"NoNewPrivs:\t{0 if allowed else 1}" in run("cat", "/proc/self/status", no_new_privileges=not allowed)


def test_a_program_has_no_capabilities_and_no_session_keyring_of_ours(run: Callable[..., str]) -> None:
    if os.getuid() != 0:
        pytest.skip("root has capabilities to pass on")
    status = dict(line.split(":\t", 1) for line in run("cat", "/proc/self/status").splitlines())
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}


def test_the_score_for_want_of_memory_is_set_before_the_program_runs(run: Callable[..., str]) -> None:
    assert run("cat", "/proc/self/oom_score_adj") == "1000\n"


@root_only
def test_a_working_directory_is_entered_as_the_user(tmp_path: Path, stdio: list[int]) -> None:
    hidden = tmp_path / "private/app"
    hidden.mkdir(parents=True)
    (tmp_path / "private").chmod(0o700)
    with pytest.raises(Failed, match="workingDir .*: Permission denied"):
        spawn(ordered(tmp_path, cwd=str(hidden)), ["true"], stdio=stdio, tty=False)


@root_only
def test_the_containers_own_directory_is_entered_below_what_its_user_may_not_enter(run: Callable[..., str], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert run("touch", "file") == "" and (tmp_path / "root/file").stat().st_uid == USER


@root_only
def test_a_program_begins_in_its_own_directory_only_where_no_mount_hides_it(tmp_path: Path, stdio: list[int]) -> None:
    """A link that the pod has planted there leads where only root may go."""
    tmp_path.chmod(0o711)
    for path in tmp_path.parents[:2]:
        path.chmod(path.stat().st_mode | 0o011)
    hidden, volume = tmp_path / "private/app", tmp_path / "volume"
    hidden.mkdir(parents=True)
    (tmp_path / "private").chmod(0o700)
    volume.mkdir()
    (tmp_path / "own").mkdir()
    order = ordered(tmp_path / "own")
    (volume / "root").symlink_to(hidden)
    binds = [{"source": str(volume), "target": str(tmp_path / "own"), "read_only": False}]
    with pytest.raises(Failed, match="workingDir .*: Permission denied"):
        spawn({**order, "binds": binds}, ["true"], stdio=stdio, tty=False)  # type: ignore[typeddict-item]


class Importing(dict[str, str]):
    """An environment that loads a module when it is read, which happens last."""

    def keys(self) -> Any:
        with suppress(ImportError):
            import module_of_a_pod  # type: ignore[import-not-found]  # noqa: F401
        return super().keys()


def test_between_fork_and_program_no_module_is_loaded(run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pod's tree it could be a file of the pod."""
    (tmp_path / "module_of_a_pod.py").write_text("import os; os.write(1, b'loaded')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("true", env=Importing(PATH=os.defpath), uid=None, gid=None, groups=None) == ""


@root_only
@pytest.mark.parametrize("target", ["/proc", "/proc/self", "/sys/kernel", "/"])
def test_a_link_does_not_lead_a_mount_into_the_hosts_proc_or_sys(tmp_path: Path, stdio: list[int], target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "volume").mkdir()
    bind = {"source": str(tmp_path / "volume"), "target": str(tmp_path / "link"), "read_only": False}
    with pytest.raises(Failed, match="mounts: .* where nothing can be mounted"):
        spawn(ordered(tmp_path, binds=[bind]), ["true"], stdio=stdio, tty=False)


@root_only
def test_all_mounts_ignore_set_user_id_and_volumes_ignore_devices_too(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    new = "/vkubelet-test-of-the-tree/volume"
    bind = {"source": str(tmp_path / "volume"), "target": new, "read_only": True}
    mounts = [line.split() for line in run("cat", "/proc/self/mounts", binds=[bind]).splitlines()]
    assert all("nosuid" in mount[3].split(",") for mount in mounts)
    (volume,) = [set(mount[3].split(",")) for mount in mounts if mount[1] == new]
    assert {"ro", "nosuid", "nodev"} <= volume and not os.path.exists("/vkubelet-test-of-the-tree")
