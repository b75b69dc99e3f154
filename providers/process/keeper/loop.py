"""Main loop of a keeper: starts one container's process, forwards its streams, stops it, reaps it, and records its state.

Invariant: a keeper exits only after everything below its process has exited, and after the last line is in the log.
"""

import fcntl
import json
import os
import selectors
import signal
import socket
import stat
import termios
import time
from collections.abc import Callable

from . import frames, kernel, procfs
from .child import Birth, Failed, Order, fork, spawn
from .clients import Client, Input
from .logfile import LogFiles

_CHUNK = 65536
_SWEEP_SECONDS = 0.02
_LOOK_SECONDS = 1.0
_DRAIN_SECONDS = 5.0
_DRAIN_READS = 64
_STATE_BYTES = 512
"""More than a state ever has, so that each fits into the space of another."""


def write_state(directory: str, state: dict[str, object]) -> None:
    """Writes the state atomically; on a full disk, into the space of the previous state. Raises OSError."""
    path = os.path.join(directory, frames.STATE)
    text = json.dumps(state).ljust(_STATE_BYTES).encode()
    try:
        with open(path + ".new", "wb") as file:
            file.write(text)
        os.replace(path + ".new", path)
    except OSError:
        if not os.path.exists(path):
            raise
        with open(path, "r+b", buffering=0) as file:
            file.write(text)


class Keeper:
    """Keeper of one order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._selector = selectors.DefaultSelector()
        self._log = LogFiles(order["log_directory"], largest=order["log_size"], most=order["log_files"])
        self._outputs: dict[int, bytes] = {}
        self._paused = False
        self._input: Input | None = None
        self._terminal = -1
        self._clients: list[Client] = []
        self._execs: dict[int, Client] = {}
        self._births: dict[int, tuple[Birth, Client]] = {}
        """Commands that do not run yet, by the numbers of their processes."""
        self._state: dict[str, object] = {}
        self._main = 0
        self._ended = 0.0
        self._empty = False
        self._kill_at = 0.0
        self._wake()
        self._listen()

    # --- start ---

    def start(self) -> dict[str, object]:
        """Starts the process; returns the content of `state.json`. Raises Failed."""
        order = self._order
        stdio = self._open_terminal() if order["tty"] else self._open_pipes()
        try:
            self._main = spawn(order, order["command"], stdio=stdio, tty=order["tty"])
        finally:
            for descriptor in set(stdio):
                os.close(descriptor)
        for descriptor in self._outputs:
            self._selector.register(descriptor, selectors.EVENT_READ, self._read_output)
        self._state = {
            "pid": self._main,
            "start": procfs.started(self._main),
            "keeper": os.getpid(),
            "boot": procfs.boot_id(),
            "started": time.time_ns(),
        }
        write_state(order["directory"], self._state)
        return self._state

    def _open_pipes(self) -> list[int]:
        stdio = []
        if self._order["stdin"]:
            reading, writing = os.pipe()
            self._input = Input(writing, tty=False)
            stdio.append(reading)
        else:
            stdio.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for stream in (b"stdout", b"stderr"):
            reading, writing = os.pipe()
            self._outputs[reading] = stream
            stdio.append(writing)
            self._belongs_to_user(writing)
        return stdio

    def _open_terminal(self) -> list[int]:
        self._terminal, slave = os.openpty()
        self._outputs[self._terminal] = b"stdout"
        self._belongs_to_user(slave)
        if self._order["stdin"]:
            self._input = Input(self._terminal, tty=True)
        return [slave] * 3

    def _belongs_to_user(self, descriptor: int) -> None:
        """Gives the stream to the user, so that the program may reopen `/dev/stdout`. A device of the host, such as `/dev/null`, stays
        the host's."""
        own = stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor)
        if own and self._order["uid"] is not None:
            os.fchown(descriptor, self._order["uid"], -1)

    def _wake(self) -> None:
        """Sets up a pipe through which a child that exits wakes the loop."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(reading, selectors.EVENT_READ, lambda descriptor: os.read(descriptor, _CHUNK))

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self._order["directory"], os.O_RDONLY | os.O_CLOEXEC)
        # The name of a socket must be short, whatever the directory is called.
        self._listener.bind(f"/proc/self/fd/{directory}/{frames.SOCKET}")
        os.close(directory)
        os.chmod(os.path.join(self._order["directory"], frames.SOCKET), 0o600)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, lambda descriptor: self._accept())

    # --- the loop ---

    def run(self) -> None:
        """Runs until everything has exited."""
        while not self._over():
            for key, _ in self._selector.select(self._patience()):
                handler: Callable[[int], object] = key.data
                handler(key.fd)
            self._reap()
            for pid in list(self._births):
                self._settle(pid)
            if self._kill_at and time.monotonic_ns() / 1e9 >= self._kill_at:
                self._kill_main()
            if self._ended and not self._empty:
                self._sweep()
            self._tend_clients()
        self._finish()

    def _patience(self) -> float | None:
        if self._ended:
            return _SWEEP_SECONDS
        if self._births:
            return _LOOK_SECONDS
        if self._kill_at:
            return max(0.0, self._kill_at - time.monotonic_ns() / 1e9)
        return _LOOK_SECONDS if any(client.has_more for client in self._clients) else None

    def _over(self) -> bool:
        if not self._ended or not self._empty:
            return False
        late = time.monotonic_ns() / 1e9 - self._ended > _DRAIN_SECONDS
        return late or (not self._outputs and not any(client.has_more for client in self._clients))

    def _reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
                if pid in self._births:
                    self._settle(pid)
                if pid == self._main:
                    self._ended = time.monotonic_ns() / 1e9
                    self._kill_at = 0.0
                    ended = {"finished": time.time_ns(), "exit_code": code if code >= 0 else 128 - code, "signal": max(0, -code)}
                    self._state.update(ended)
                elif (client := self._execs.pop(pid, None)) is not None:
                    client.answer(exit=code)
        except ChildProcessError:
            self._empty = True

    def _sweep(self) -> None:
        """Kills everything that the container started, because its main process has exited."""
        for pid in procfs.descendants(os.getpid()):
            _kill(pid, signal.SIGKILL)

    def _kill_main(self) -> None:
        self._kill_at = 0.0
        if not self._ended:
            _kill(self._main, signal.SIGKILL)

    def _finish(self) -> None:
        # Data still in a pipe that another process has open is read as well.
        for descriptor in list(self._outputs):
            os.set_blocking(descriptor, False)
            for _ in range(_DRAIN_READS):
                if descriptor in self._outputs and not self._read_output(descriptor):
                    break
        self._log.end(nanos=time.time_ns())
        for client in self._clients:
            client.close()
        self._listener.close()
        self._state["oom"] = _oom_kills(self._order["oom_files"])
        write_state(self._order["directory"], self._state)
        os.unlink(os.path.join(self._order["directory"], frames.SOCKET))

    # --- output ---

    def _read_output(self, descriptor: int) -> bool:
        """Reads output; returns whether there was any."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            # A closed terminal reports this error.
            data = b""
        stream = self._outputs[descriptor]
        if not data:
            if not self._paused:
                self._selector.unregister(descriptor)
            del self._outputs[descriptor]
            if descriptor != self._terminal:
                os.close(descriptor)
            return False
        self._log.write(stream, data, nanos=time.time_ns())
        for client in self._clients:
            if client.role == "attach":
                client.send(frames.STDOUT if stream == b"stdout" else frames.STDERR, data)
        return True

    def _pause(self, pause: bool) -> None:
        """Pauses output: an attached program writes no faster than the client reads, as at a terminal."""
        if pause != self._paused:
            self._paused = pause
            for descriptor in self._outputs:
                if pause:
                    self._selector.unregister(descriptor)
                else:
                    self._selector.register(descriptor, selectors.EVENT_READ, self._read_output)

    # --- clients ---

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        client = Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, self._serving(client))

    def _tend_clients(self) -> None:
        """Sends each client what it can accept, and checks the awaited ones again."""
        self._tend_input()
        for client in list(self._clients):
            client.flush()
            if client.is_late:
                self._leave(client)
                continue
            taken = not (client.gives_input and self._input is not None and self._input.is_full)
            events = (selectors.EVENT_READ if taken else 0) | (selectors.EVENT_WRITE if client.has_more else 0)
            self._watch(client.connection.fileno(), events, self._serving(client))
        self._pause(any(client.role == "attach" and client.is_full for client in self._clients))

    def _tend_input(self) -> None:
        given = self._input
        if given is None or not given.open:
            return
        if given.has_more:
            given.flush()
        if given.descriptor != self._terminal:
            self._watch(given.descriptor, selectors.EVENT_WRITE if given.has_more else 0, lambda descriptor: None)
        if given.is_done:
            given.close()

    def _serving(self, client: Client) -> Callable[[int], None]:
        return lambda descriptor: self._serve(client)

    def _watch(self, descriptor: int, events: int, handler: Callable[[int], object]) -> None:
        known = self._selector.get_map().get(descriptor)
        if known is not None and known.events == events:
            return
        if known is not None:
            self._selector.unregister(descriptor)
        if events:
            self._selector.register(descriptor, events, handler)

    def _serve(self, client: Client) -> None:
        try:
            for kind, data in client.receive():
                self._take(client, kind, data)
        except (EOFError, ValueError, AttributeError, OSError):
            self._leave(client)

    def _take(self, client: Client, kind: bytes, data: bytes) -> None:
        """Handles a frame. Raises an error for an invalid one."""
        if kind == frames.ASK:
            self._answer(client, json.loads(data))
        elif kind == frames.STDIN and client.gives_input and self._input is not None:
            self._input.put(data)
        elif kind == frames.STDIN_END and client.gives_input and self._input is not None:
            if self._order["stdin_once"]:
                self._input.end()
        elif kind == frames.SIZE and self._terminal >= 0 and not self._ended:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, frames.for_terminal(data))

    def _answer(self, client: Client, asked: dict[str, object]) -> None:
        client.role = str(asked.get("do"))
        if client.role == "attach":
            client.gives_input = bool(asked.get("stdin")) and self._input is not None
            client.answer(attached=True)
        elif client.role == "exec":
            self._execute(client, [str(word) for word in _list(asked.get("command"))], tty=bool(asked.get("tty")))
        elif client.role == "stop":
            self._stop(float(str(asked.get("grace"))))
            client.answer(stopping=True)
        else:
            raise EOFError

    def _execute(self, client: Client, command: list[str], *, tty: bool) -> None:
        if self._ended or len(client.descriptors) != 3 or not command:
            client.answer(failed="the container is not running")
            return
        try:
            for descriptor in client.descriptors:
                self._belongs_to_user(descriptor)
            birth = fork(self._order, command, stdio=client.descriptors, tty=tty, main=self._main)
        finally:
            client.drop_descriptors()
        self._births[birth.pid] = (birth, client)
        self._selector.register(birth.reading, selectors.EVENT_READ, lambda descriptor: None)

    def _settle(self, pid: int) -> None:
        """Responds to the client that waits for a command, once it runs or has failed."""
        birth, client = self._births[pid]
        try:
            if not birth.is_over():
                return
        except Failed as error:
            client.answer(failed=str(error))
        else:
            self._execs[pid] = client
            client.answer(started=pid)
        del self._births[pid]
        self._selector.unregister(birth.reading)

    def _stop(self, grace: float) -> None:
        first, now = not self._kill_at, time.monotonic_ns() / 1e9
        if self._ended:
            return
        if first and grace > 0:
            _kill(self._main, self._order["stop_signal"])
        self._kill_at = min(self._kill_at or float("inf"), now + max(0.0, grace))

    def _leave(self, client: Client) -> None:
        """Removes a client that has disconnected, and kills what it has started."""
        if client.connection in self._selector.get_map():
            self._selector.unregister(client.connection)
        self._clients.remove(client)
        client.close()
        for pid in [pid for pid, (_, owner) in self._births.items() if owner is client]:
            _kill(pid, signal.SIGKILL)
        for pid in [pid for pid, owner in self._execs.items() if owner is client]:
            for each in (*procfs.descendants(pid), pid):
                _kill(each, signal.SIGKILL)
            del self._execs[pid]
        if client.gives_input and self._order["stdin_once"] and self._input is not None:
            self._input.end()


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        # A keeper that is not root cannot signal a program that changed to another user; it waits for its exit.
        return


def _oom_kills(paths: list[str]) -> int:
    """Returns how many processes of the container the kernel has killed because of memory limits."""
    found = 0
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                found += sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except OSError:
            continue
    return found


def keep(order: Order, tell: Callable[[dict[str, object]], None]) -> None:
    """Runs a keeper; `tell` is called once, with the state or with what failed."""
    try:
        kernel.adopt_orphans()
        keeper = Keeper(order)
        state = keeper.start()
    except Failed as error:
        tell({"failed": str(error)})
        return
    except OSError as error:
        tell({"failed": f"{error.strerror}: {error.filename or order['directory']}"})
        return
    try:
        tell(state)
    except OSError:
        # The caller has disconnected, and will find the state on the disk.
        pass
    keeper.run()
