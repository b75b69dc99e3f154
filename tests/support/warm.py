"""Our programs, and modules of a copied tree, without the second of CPU that their imports take.

Invariant: each start is a process of its own, forked from an interpreter that has imported the programs, or what a copied tree needs of
others, and done nothing else.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PROGRAMS = ("vkubelet", "kubeocean", "fleet")
_LATER = (
    *("uvloop", "kubeocean.dashboard.command", "fleet.processes.agent", "fleet.processes.hub"),
    *("vkubelet_providers.minimal", "vkubelet_providers.mock", "vkubelet_providers.process"),
)
"""What a program imports when it knows its settings or its command."""
_LIBRARIES = (
    *("_pytest.config", "_pytest.python", "_pytest.terminal", "hypothesis", "uvloop"),
    *("aiohttp.web", "attrs", "jinja2", "msgspec", "prometheus_client", "pydantic", "typer.main", "yaml"),
    *("cryptography.x509", "cryptography.hazmat.primitives.asymmetric.rsa", "kubernetes.client"),
)
"""What modules of any tree import that is none of ours."""

_MODULE = "module "
"""Before the name of one, where a program is named."""
_EVERY = 0.02
_PR_SET_PDEATHSIG = 1
_NEWNET = 0x40000000


def die_with_parent() -> None:
    """For a child between its fork and its program."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Interpreter:
    """It forks as often as it is asked to, and ends with the process that has started it, as do those it has forked."""

    def __init__(self, what: str = "programs", **environment: str) -> None:
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        # It is not ended by the death of its parent, which would be that of a thread, but by the end of its input.
        self._stderr = os.memfd_create("interpreter")
        command = (sys.executable, "-m", __name__, what)
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=self._stderr, text=True)
        self._lock = threading.Lock()
        atexit.register(self._end)

    def ask(self, *question: Any) -> Any:
        """Raises RuntimeError when it cannot do it, or is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            try:
                print(json.dumps(question), file=self._process.stdin, flush=True)
                done, answer = json.loads(self._process.stdout.readline())
            except (BrokenPipeError, ValueError):
                raise RuntimeError(f"the interpreter ended with {self._process.wait(10)}: {self._complaints()}") from None
        if not done:
            raise RuntimeError(answer)
        return answer

    def _complaints(self) -> str:
        return os.pread(self._stderr, 1 << 16, 0).decode(errors="replace")

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        os.close(self._stderr)


class Forked:
    """A process that an interpreter has forked, as far as a `Program` uses one."""

    def __init__(self, interpreter: Interpreter, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._interpreter = interpreter

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._interpreter.ask("poll", self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(_EVERY)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        # Until it is asked for its end its pid is nobody else's.
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(program: str, *args: str, log: Path, env: Mapping[str, str], errors: Path | None = None, network: Path | None = None) -> Forked:
    """`python -m PROGRAM ARGS` with this environment, in that network namespace; `log` gets what it writes, except its stderr where
    `errors` is for that."""
    interpreter = _interpreter()
    logs = [str(log), str(errors or log)]
    return Forked(interpreter, interpreter.ask("fork", program, args, logs, os.getcwd(), dict(env), str(network or "")))


def run_in_tree(module: str, *args: str, tree: Path, seconds: float) -> tuple[int, str]:
    """`python -m MODULE ARGS` in a copied tree, whose modules come before all others, with a fixed hash seed: its exit code and its output.

    Raises subprocess.TimeoutExpired.
    """
    interpreter = _interpreter("libraries", PYTHONHASHSEED="0")
    with tempfile.NamedTemporaryFile() as log:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        where = [str(tree), str(tree / ".editable")]
        pid = interpreter.ask("fork", f"{_MODULE}{module}", [*where, "--", *args], [log.name, log.name], str(tree), environment, "")
        ended = Forked(interpreter, pid)
        try:
            return ended.wait(seconds), Path(log.name).read_text(errors="replace")
        finally:
            ended.kill()


@cache
def _interpreter(what: str = "programs", **environment: str) -> Interpreter:
    return Interpreter(what, **environment)


# --- Inside of the interpreter ---------------------------------------------------------------------------------------------------------


def _serve(what: str) -> None:
    # Ctrl-C is for the tests, which end what they have started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    programs = {name: importlib.import_module(f"{name}.cli").main for name in PROGRAMS} if what == "programs" else {}
    for name in _LATER if programs else _LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    codes: dict[int, int] = {}
    for line in sys.stdin:
        what, *rest = json.loads(line)
        try:
            answer = True, _fork(codes, programs.get(rest[0]) or _module(rest[0]), *rest[1:]) if what == "fork" else _poll(codes, *rest)
        except OSError as error:
            answer = False, f"{what}: {error}"
        print(json.dumps(answer), flush=True)


def _poll(codes: dict[int, int], pid: int) -> int | None:
    """Its exit code; who asks again, as two threads may at once, gets it again."""
    if pid not in codes:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def _fork(codes: dict[int, int], main: Callable[[list[str]], None], *rest: Any) -> int:
    pid = os.fork()
    if pid == 0:
        _become(main, *rest)
    codes.pop(pid, None)
    return pid


def _module(name: str) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        end = arguments.index("--")
        # Those of the tree are other modules.
        for each in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
            del sys.modules[each]
        sys.path[:0] = arguments[:end]
        sys.argv = [name, *arguments[end + 1 :]]
        runpy.run_module(name.removeprefix(_MODULE), run_name="__main__", alter_sys=True)

    return run


def _enter(network: str) -> None:
    with open(network, "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")


def _become(
    main: Callable[[list[str]], None],
    arguments: list[str],
    logs: list[str],
    directory: str,
    environment: Mapping[str, str],
    network: str,
) -> None:
    """Never returns: what follows in the caller is for the interpreter only."""
    code = 1
    try:
        _prepare(logs, directory, environment, network)
        main(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _prepare(logs: list[str], directory: str, environment: Mapping[str, str], network: str) -> None:
    die_with_parent()
    if network:
        _enter(network)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    # TMPDIR decides it again.
    tempfile.tempdir = None
    out, errors = (Path(log) for log in logs)
    with out.open("ab") as written, errors.open("ab") as complained, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(written.fileno(), 1)
        os.dup2(complained.fileno(), 2)


if __name__ == "__main__":
    _serve(sys.argv[1])
