"""Prepares a new process between the fork and its program: limits, mounts, terminal, user, environment.

Invariant: either the program runs with all of that, or the keeper receives the failed step and nothing ran.
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import termios
import time

# Used by os.execvpe, which would load it too late.
import warnings as warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, TypedDict

from . import kernel, mounts

START_FAILED = 128
_KILL_SECONDS = 2.0


class Order(TypedDict):
    """Order for a keeper, as vkubelet writes it to its standard input; it is kept in memory alone."""

    directory: str
    command: list[str]
    env: dict[str, str]
    cwd: str
    root: str
    """Working directory of the container, which is entered although only root may reach it by its path."""
    uid: int | None
    gid: int | None
    groups: list[int] | None
    stdin: bool
    stdin_once: bool
    tty: bool
    no_new_privileges: bool
    start_timeout: float
    """Seconds for a new process to execute its program: a disk that does not respond must not block a start forever."""
    hostname: str
    binds: list[mounts.Bind] | None
    """Mounts; None: no mount namespace."""
    stage: str
    cgroups: list[str]
    """Files that the number of the process is written to."""
    keeper_cgroups: list[str]
    oom_files: list[str]
    oom_score: int
    stop_signal: int
    log_directory: str
    log_size: int
    log_files: int


class Failed(Exception):
    """The program could not be started; the text is for the user."""


Stdio = Sequence[int]
"""Three descriptors; those of a terminal are the same one three times."""


class Birth:
    """A forked process, until it has executed its program or has failed to."""

    def __init__(self, pid: int, reading: int, *, patience: float) -> None:
        os.set_blocking(reading, False)
        self.pid = pid
        self._patience = patience
        self.reading = reading
        """Descriptor that is readable when there may be a result."""
        self._deadline = time.monotonic_ns() / 1e9 + patience
        self._heard = b""

    @property
    def left(self) -> float:
        """Seconds until it is late."""
        return max(0.0, self._deadline - time.monotonic_ns() / 1e9)

    def is_over(self) -> bool:
        """Checks whether it runs its program. Raises Failed; then there is no process any more, or one that will never run its program."""
        try:
            while data := os.read(self.reading, 4096):
                self._heard += data
        except BlockingIOError:
            if self.left:
                return False
            self._abandon()
        os.close(self.reading)
        trouble = self._heard.rpartition(b"\n")[2]
        if trouble:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            raise Failed(json.loads(trouble))
        return True

    def _abandon(self) -> NoReturn:
        """Kills a process that may not even exit by SIGKILL now, but runs nothing when it wakes up."""
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic_ns() / 1e9 + _KILL_SECONDS
        with suppress(ChildProcessError):
            while not os.waitpid(self.pid, os.WNOHANG)[0] and time.monotonic_ns() / 1e9 < deadline:
                select.select([], [], [], 0.01)
        os.close(self.reading)
        steps = self._heard.decode().split()
        raise Failed(f"{steps[-1] if steps else 'start'}: not done within {self._patience:g} s")


def fork(order: Order, command: Sequence[str], *, stdio: Stdio, tty: bool, main: int) -> Birth:
    """Starts a process that will run `command`; with `main` it joins that process, else it is the container's own. Raises OSError."""
    reading, writing = os.pipe()
    keeper = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        os.close(reading)
        if not kernel.ends_with_parent(signal.SIGKILL, keeper):
            os._exit(START_FAILED)
        _become(order, command, stdio=stdio, tty=tty, main=main, told=writing)
    os.close(writing)
    return Birth(pid, reading, patience=order["start_timeout"])


def spawn(order: Order, command: Sequence[str], *, stdio: Stdio, tty: bool) -> int:
    """Returns the number of the container's own process, once it runs its program. Raises Failed, OSError."""
    birth = fork(order, command, stdio=stdio, tty=tty, main=0)
    while not birth.is_over():
        select.select([birth.reading], [], [], birth.left)
    return birth.pid


def _become(order: Order, command: Sequence[str], *, stdio: Stdio, tty: bool, main: int, told: int) -> NoReturn:
    step, keeper = "", os.getppid()

    def run(name: str, work: Callable[[], None]) -> None:
        nonlocal step
        step = name
        os.write(told, name.encode() + b"\n")
        work()

    # Independent of vkubelet's umask: mount points, and what the program creates, are for the program's user.
    os.umask(0o022)
    _load_no_more()
    groups: list[int] = []
    begin: list[int] = []
    try:
        run("session", os.setsid)
        # /proc is the host's now; what a pod has mounted must not be opened by root.
        run("oomScore", lambda: _set_oom_score(order["oom_score"]))
        run("cgroup", lambda: groups.extend(os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in order["cgroups"]))
        run("mounts", lambda: begin.extend(_join_mounts(order, main) if main else _make_mounts(order)))
        run("terminal", lambda: _take_stdio(stdio, tty=tty))
        # Not sooner: on a busy host a pod without CPU requests gets so little that its mounts alone would take seconds.
        run("cgroup", lambda: _join(groups))
        run("securityContext", lambda: _take_user(order, keeper))
        run("workingDir", lambda: _enter(order, begin))
        run("command", lambda: _execute(order, command, tty=tty))
    except OSError as error:
        _report_failure(told, _sentence(step, error, order=order, command=command))
    except (ValueError, OverflowError) as error:
        _report_failure(told, f"{step}: {error}")
    finally:
        # In any case it must not continue as a second keeper.
        os._exit(START_FAILED)


def _load_no_more() -> None:
    """Disables imports: from the pod's tree no Python module may be loaded: it could be the pod's own, and run as root."""
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path.clear()


def _report_failure(told: int, text: str) -> None:
    os.write(told, json.dumps(text[:2000]).encode())


def _sentence(step: str, error: OSError, *, order: Order, command: Sequence[str]) -> str:
    if step == "command" and error.errno in (errno.ENOENT, errno.ENOTDIR):
        what = "no such file or directory" if "/" in command[0] else "executable file not found in $PATH"
        return f'exec: "{command[0]}": {what}'
    if step == "command":
        return f'exec: "{command[0]}": {error.strerror}'
    if step == "workingDir":
        return f"workingDir {order['cwd']}: {error.strerror}"
    return f"{step}: {error.strerror}" + (f": {error.filename}" if error.filename else "")


def _join(groups: Sequence[int]) -> None:
    for descriptor in groups:
        os.write(descriptor, b"%d" % os.getpid())
        os.close(descriptor)


def _make_mounts(order: Order) -> list[int]:
    """Makes the mounts; returns the result of `_begin`."""
    binds, own = order["binds"], os.stat(order["root"])
    if binds is None:
        return _begin(order, own)
    tree = mounts.Tree(order["stage"])
    tree.enter(no_suid=order["no_new_privileges"])
    if order["hostname"]:
        socket.sethostname(order["hostname"])
    sources = [(one, mounts.held(one["source"])) for one in binds]
    for one, source in sorted(sources, key=lambda pair: pair[0]["target"].rstrip("/").count("/")):
        tree.bind(one, source)
        os.close(source)
    tree.make(order["cwd"])
    tree.leave()
    return _begin(order, own)


def _join_mounts(order: Order, main: int) -> list[int]:
    """Joins the mount namespace; returns the result of `_begin`."""
    own = os.stat(order["root"])
    if order["binds"] is None:
        return _begin(order, own)
    names = ("uts", "mnt")
    spaces = [os.open(f"/proc/{main}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    others = [not os.path.samestat(os.fstat(space), os.stat(f"/proc/self/ns/{name}")) for space, name in zip(spaces, names, strict=True)]
    for space, is_other in zip(spaces, others, strict=True):
        if is_other:
            kernel.join(space)
        os.close(space)
    return _begin(order, own)


def _begin(order: Order, own: os.stat_result) -> list[int]:
    """Returns a descriptor of the container's working directory, if it starts in it and no mount hides it."""
    if order["cwd"] != order["root"]:
        return []
    try:
        found = mounts.held(order["root"])
    except OSError:
        return []
    if not os.path.samestat(os.fstat(found), own):
        os.close(found)
        return []
    return [found]


def _enter(order: Order, begin: Sequence[int]) -> None:
    """Enters the working directory as the program's user: a directory that this user may not reach is refused."""
    if begin:
        os.fchdir(begin[0])
    else:
        os.chdir(order["cwd"])


def _take_stdio(stdio: Stdio, *, tty: bool) -> None:
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
    if tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _take_user(order: Order, keeper: int) -> None:
    kernel.leave_keyring()
    if order["groups"] is not None:
        os.setgroups(order["groups"])
    if order["gid"] is not None:
        os.setresgid(order["gid"], order["gid"], order["gid"])
    if order["uid"] is not None:
        os.setresuid(order["uid"], order["uid"], order["uid"])
    if os.geteuid() != 0:
        kernel.drop_capabilities()
    if order["no_new_privileges"]:
        kernel.no_new_privileges()
    # Changing to another user than the parent's clears this, so it comes last.
    if not kernel.ends_with_parent(signal.SIGKILL, keeper):
        os._exit(START_FAILED)


def _set_oom_score(score: int) -> None:
    # Lowering it takes a capability that only root has.
    with suppress(PermissionError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"%d" % score)
        finally:
            os.close(descriptor)


def _execute(order: Order, command: Sequence[str], *, tty: bool) -> None:
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    env = {"TERM": "xterm", **order["env"]} if tty else order["env"]
    os.execvpe(command[0], list(command), env)
