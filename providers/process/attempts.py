"""One start of a container on the disk, and the state that its keeper has written, in terms of the contract.

Invariant: an uncertain result is reported as ContainerStatusUnknown, never as a success.
"""

import fcntl
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from attrs import frozen

from vkubelet.beneath import Directory
from vkubelet.provider import Running, Terminated, Unavailable
from vkubelet_providers.process.keeper import frames, procfs
from vkubelet_providers.process.keeper.loop import write_state

KILLED: Final = 137
UNKNOWN_REASON: Final = "ContainerStatusUnknown"
MESSAGE_FILE: Final = "termination-log"
_ABOUT: Final = "container.json"
_LONGEST_MESSAGE: Final = 4096


@frozen(kw_only=True)
class About:
    """Parts of a container's spec that are stored for a restart of vkubelet."""

    image: str = ""
    memory_limit: int | None = None


@frozen(kw_only=True)
class State:
    """State that a keeper has written so far; `finished` 0: not terminated. Times in nanoseconds of Unix time."""

    pid: int
    start: int
    keeper: int
    boot: str = ""
    started: int = 0
    finished: int = 0
    exit_code: int = 0
    signal: int = 0
    oom: int = 0
    unknown: bool = False


def parse_state(text: str) -> State | None:
    """Parses a state; None for an invalid one, such as half a file after a power failure."""
    try:
        values = json.loads(text)
        known = {name: values[name] for name in State.__annotations__ if name in values}
        state = State(**known)
    except (ValueError, TypeError):
        return None
    return state if all(isinstance(getattr(state, name), int) for name in ("pid", "start", "keeper", "started", "finished")) else None


def moment(nanos: int) -> datetime:
    return datetime.fromtimestamp(nanos / 1e9, UTC)


def as_terminated(state: State, message: str = "") -> Terminated:
    """Returns the termination state as a kubelet reports it."""
    if state.unknown:
        reason = UNKNOWN_REASON
    elif state.oom:
        reason = "OOMKilled"
    else:
        reason = "Completed" if state.exit_code == 0 else "Error"
    return Terminated(
        state.exit_code, reason, message, started_at=moment(state.started) if state.started else None, finished_at=moment(state.finished)
    )


@frozen
class Attempt:
    """The `number`-th start after the first; all its files are in `directory`."""

    directory: Path
    container: str
    number: int

    @property
    def logs(self) -> Path:
        return self.directory / "log"

    @property
    def root(self) -> Path:
        """Working directory of the process, unless the pod names another one; deleted with the attempt."""
        return self.directory / "root"

    @property
    def stage(self) -> Path:
        return self.directory / "stage"

    @property
    def message_file(self) -> Path:
        return self.directory / MESSAGE_FILE

    def make(self, about: About, *, uid: int | None) -> None:
        """Creates the directory, inaccessible to other users whatever the umask; `give` follows when all files exist. Raises OSError."""
        for above in (self.directory.parents[1], self.directory.parent, self.directory):
            with Directory.at(above, make=0o711) as made:
                made.change(mode=0o711)
        with Directory.at(self.directory) as place:
            for path, mode in {self.logs: 0o700, self.root: 0o700, self.stage: 0o700}.items():
                place.make(path.name, mode).close()
                place.change(path.name, mode=mode)
            # A program of root may change to another user, and write then.
            place.store(MESSAGE_FILE, b"", mode=0o600 if uid != 0 else 0o666)
            if uid is not None:
                place.change(MESSAGE_FILE, user=uid)
            values = {"image": about.image, "memory_limit": about.memory_limit}
            place.store(_ABOUT, json.dumps(values).encode(), mode=0o600)

    def give(self, *, uid: int | None) -> None:
        """Gives the working directory to its user, whose programs change it from then on. Raises OSError."""
        if uid is not None:
            with Directory.at(self.directory) as place:
                place.change(self.root.name, user=uid)

    def about(self) -> About:
        try:
            with Directory.at(self.directory) as place:
                return About(**json.loads(place.read(_ABOUT)))
        except (OSError, ValueError, TypeError):
            return About()

    def state(self) -> State | None:
        """Returns the state; None: it never ran."""
        try:
            with Directory.at(self.directory) as place:
                text, written = place.read(frames.STATE).decode(errors="replace"), place.status(frames.STATE).st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"container {self.container}: cannot read its state file ({error.strerror})") from error
        # It ran, but after a disk error or a power failure nothing of its state is left.
        return parse_state(text) or State(pid=0, start=0, keeper=0, finished=written, exit_code=KILLED, unknown=True)

    def is_kept(self) -> bool:
        """Checks whether its keeper runs, or is just being started."""
        try:
            with Directory.at(self.directory) as place:
                descriptor = place.file(frames.LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def kill_keeper(self) -> None:
        """Kills a keeper that no longer responds; the caller kills what it has started."""
        state = self.state()
        if state is None or not state.keeper:
            return
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(state.keeper)
            try:
                # As long as the keeper has the lock, the number is the keeper's.
                if self.is_kept():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    def lock(self) -> int:
        """Returns a locked descriptor for the keeper. Raises BlockingIOError when there is one."""
        with Directory.at(self.directory) as place:
            descriptor = place.file(frames.LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def give_up(self, state: State, *, finished: int) -> State:
        """Records that its exit status is unknown: its keeper exited without recording it. Its remaining processes must have been
        killed."""
        values: Mapping[str, object] = {
            "pid": state.pid,
            "start": state.start,
            "keeper": state.keeper,
            "boot": state.boot,
            "started": state.started,
            "finished": finished,
            "exit_code": KILLED,
            "unknown": True,
        }
        with suppress(OSError):
            # On a disk that accepts no writes it is found out again after the next start.
            write_state(str(self.directory), dict(values))
        return State(**values)  # type: ignore[arg-type]

    def terminated(self, state: State) -> Terminated:
        message = "The container's keeper has gone: how it ended is not known" if state.unknown else self._message()
        return as_terminated(state, message)

    def _message(self) -> str:
        try:
            with Directory.at(self.directory) as place:
                text = place.read(MESSAGE_FILE, _LONGEST_MESSAGE)
        except OSError:
            text = b""
        return text.decode(errors="replace")


def as_running(state: State) -> Running:
    return Running(moment(state.started) if state.started else None)


def session_of(state: State, *, just_now: bool) -> list[int]:
    """Returns the processes in its session.

    Its number is unique as long as the session has a process; when its process may have exited long ago, none is returned.
    """
    if not state.pid or state.boot != procfs.boot_id():
        return []
    leader = procfs.stat_of(state.pid)
    if (leader is None and not just_now) or (leader is not None and leader.start != state.start):
        return []
    everyone = (found for pid in procfs.everyone() if (found := procfs.stat_of(pid)) is not None)
    return [each.pid for each in everyone if each.session == state.pid and each.start >= state.start]
