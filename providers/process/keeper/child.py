"""What happens in a new process between the fork and its program: limits, mounts, terminal, user, environment.

Invariant: either the program runs with all of that, or the keeper is told which step failed and nothing ran.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import termios
from collections.abc import Callable, Sequence
from typing import NoReturn, TypedDict

from . import mounts

START_FAILED = 128


class Order(TypedDict):
    """What a keeper is to start, as vkubelet writes it to its standard input; it is kept in memory alone."""

    directory: str
    command: list[str]
    env: dict[str, str]
    cwd: str
    uid: int | None
    gid: int | None
    groups: list[int] | None
    stdin: bool
    stdin_once: bool
    tty: bool
    no_new_privileges: bool
    hostname: str
    binds: list[mounts.Bind] | None
    """None: no mount namespace."""
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
"""Three descriptors; those of a terminal are one three times."""


def spawn(order: Order, command: Sequence[str], *, stdio: Stdio, tty: bool, main: int) -> int:
    """The number of a new process that runs `command`; with `main` it joins that process, else it is the container's own. Raises Failed."""
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
        if not mounts.ends_with_parent(signal.SIGKILL, keeper):
            os._exit(START_FAILED)
        _become(order, command, stdio=stdio, tty=tty, main=main, told=writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        trouble = file.read()
    if trouble:
        os.waitpid(pid, 0)
        raise Failed(json.loads(trouble))
    return pid


def _become(order: Order, command: Sequence[str], *, stdio: Stdio, tty: bool, main: int, told: int) -> NoReturn:
    step, keeper = "", os.getppid()

    def run(name: str, work: Callable[[], None]) -> None:
        nonlocal step
        step = name
        work()

    # Whatever vkubelet's own is: places of mounts, and what the program makes, are for the program's user.
    os.umask(0o022)
    groups: list[int] = []
    try:
        run("session", os.setsid)
        run("cgroup", lambda: groups.extend(os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in order["cgroups"]))
        run("mounts", lambda: _join_mounts(order, main) if main else _make_mounts(order))
        run("terminal", lambda: _take_stdio(stdio, tty=tty))
        run("workingDir", lambda: os.chdir(order["cwd"]))
        # Not sooner: on a busy host a pod that asks for no CPU gets so little that its mounts alone would take seconds.
        run("cgroup", lambda: _join(groups))
        run("securityContext", lambda: _take_user(order, keeper))
        run("command", lambda: _execute(order, command, tty=tty))
    except OSError as error:
        _tell(told, _sentence(step, error, order=order, command=command))
    except ValueError as error:
        _tell(told, f"{step}: {error}")
    os._exit(START_FAILED)


def _tell(told: int, text: str) -> None:
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


def _make_mounts(order: Order) -> None:
    binds = order["binds"]
    if binds is None:
        return
    tree = mounts.Tree(order["stage"])
    tree.enter()
    if order["hostname"]:
        socket.sethostname(order["hostname"])
    sources = [(one, mounts.held(one["source"])) for one in binds]
    for one, source in sorted(sources, key=lambda pair: pair[0]["target"].rstrip("/").count("/")):
        tree.bind(one, source)
        os.close(source)
    tree.place(order["cwd"], directory=True)
    tree.leave()


def _join_mounts(order: Order, main: int) -> None:
    if order["binds"] is None:
        return
    for name in ("uts", "mnt"):
        descriptor = os.open(f"/proc/{main}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(descriptor).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            mounts.join(descriptor)
        os.close(descriptor)


def _take_stdio(stdio: Stdio, *, tty: bool) -> None:
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
    if tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _take_user(order: Order, keeper: int) -> None:
    _set_oom_score(order["oom_score"])
    if order["groups"] is not None:
        os.setgroups(order["groups"])
    if order["gid"] is not None:
        os.setresgid(order["gid"], order["gid"], order["gid"])
    if order["uid"] is not None:
        os.setresuid(order["uid"], order["uid"], order["uid"])
    if order["no_new_privileges"]:
        mounts.no_new_privileges()
    # Another user than the parent's clears this, so it comes last.
    if not mounts.ends_with_parent(signal.SIGKILL, keeper):
        os._exit(START_FAILED)


def _set_oom_score(score: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except PermissionError:
        # Lowering it takes a right that only root has.
        return


def _execute(order: Order, command: Sequence[str], *, tty: bool) -> None:
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    env = {"TERM": "xterm", **order["env"]} if tty else order["env"]
    os.execvpe(command[0], list(command), env)
