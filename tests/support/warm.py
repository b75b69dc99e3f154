"""Our programs without the seconds that their imports take, for tests that start one again and again.

Invariant: each start is a process of its own, forked from an interpreter that has imported the program and done nothing else.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from tests.support.program import STOP_SECONDS, Program, _die_with_parent

_EVERY = 0.02


class Interpreter:
    """Use as a context manager. It forks `MODULE.main(ARGS)` as often as it is asked to."""

    def __init__(self, module: str) -> None:
        self._command = (sys.executable, "-m", __name__, module)

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=pipe,
            stdout=pipe,
            preexec_fn=_die_with_parent,
            text=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=STOP_SECONDS)

    def ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


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
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(_EVERY)
        return code

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        # Until it is asked for its end its pid is nobody else's.
        if self.poll() is None:
            os.kill(self.pid, number)


class WarmProgram(Program):
    """A program that is started by an interpreter; arguments and log are those of another one, which is not started itself."""

    def __init__(self, like: Program, interpreter: Interpreter) -> None:
        super().__init__("", *like.arguments, log=like.log)
        self._interpreter = interpreter

    def start(self) -> Self:
        assert not self.alive, "the program already runs"
        pid = self._interpreter.ask("fork", str(self.log), self.arguments)
        self._process = cast("subprocess.Popen[bytes]", Forked(self._interpreter, pid))
        return self


def _serve(main: Callable[[list[str]], None]) -> None:
    for line in sys.stdin:
        what, *rest = json.loads(line)
        print(json.dumps(_fork(main, *rest) if what == "fork" else _poll(*rest)), flush=True)


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(main: Callable[[list[str]], None], log: str, arguments: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(main, Path(log), arguments)
    return pid


def _become(main: Callable[[list[str]], None], log: Path, arguments: list[str]) -> None:
    _die_with_parent()
    random.seed()
    with log.open("ab") as out, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    code = 1
    try:
        main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]).main)
