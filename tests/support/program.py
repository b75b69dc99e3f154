"""One of our programs as a child process.

Invariant: it is ended with the test that started it, by its own process id; its log stays readable for the assertion that failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.warm import PROGRAMS, Forked, die_with_parent, fork

STOP_SECONDS = 30.0
PATIENCE = float(os.environ.get("VKUBELET_PATIENCE", "45"))
"""Seconds that anything may take where no limit is to be shown. On a loaded machine the imports alone of a program take 15. The default
separates what is noticed at once from what is noticed by the sweep of every minute; where a real kubelet and its engine do the work, whose
time is not judged, `deploy/dev/tests.py` sets far more.
"""
LONG = 3 * PATIENCE
"""Seconds for what takes several such steps: a rollout, an uninstallation."""
KUBECTL_TIMEOUT = f"--timeout={LONG:g}s"
"""The flag of `kubectl wait`, `rollout status` and `delete`."""
COLD = "VKUBELET_COLD_PROGRAMS"
"""Set in the environment where the cost of a program is measured: each start is then by an interpreter of its own."""


class Program:
    """`python -m MODULE ARGS`; use as a context manager. `log` is its stderr and stdout.

    Unless it is `cold`, it is forked from an interpreter that has imported it already. `network` is the file of its network namespace,
    `python` the command of another interpreter.
    Its temporary files are in `scratch` beside the log: a killed program deletes none.
    """

    def __init__(
        self,
        module: str,
        *args: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        network: Path | None = None,
        python: Sequence[str] = (),
    ) -> None:
        self.arguments = args
        self.cold = bool(python) or COLD in os.environ or module not in PROGRAMS
        self._python = python or (sys.executable,)
        self._module = module
        self._network = network
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.log = log
        self.scratch = log.absolute().with_suffix(".tmp")
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.scratch), **(env or {})}

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        assert self._process is not None, "the program was not started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        assert not self.alive, "the program already runs"
        self.scratch.mkdir(parents=True, exist_ok=True)
        if not self.cold:
            self._process = fork(self._module, *self.arguments, log=self.log, env=self._env, network=self._network)
            return self
        inside = () if self._network is None else ("nsenter", f"--net={self._network}")
        command = (*inside, *self._python, "-m", self._module, *self.arguments)
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command, env=self._env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
            )
        return self

    def kill(self) -> None:
        """SIGKILL, as the kernel's OOM killer would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def terminate(self) -> int:
        """SIGTERM, as the kubelet would; the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.alive:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
            if error is None:
                raise AssertionError(f"the program did not stop within {STOP_SECONDS:g} s after SIGTERM:\n{self.tail()}") from None

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    def messages(self) -> list[dict[str, Any]]:
        """Its JSON log lines; of the last one only part may have been written."""
        return [json.loads(line) for line in self.text().rpartition("\n")[0].splitlines() if line.startswith("{")]


async def eventually(
    check: Callable[[], Any], what: str, *, seconds: float = PATIENCE, every: float = 0.1, by: Iterable[Program] = ()
) -> Any:
    """The first true value `check` returns; coroutines are awaited.

    AssertionError after `seconds`, naming `what`, and the last lines of the programs by which it was to come.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    last: Any = None
    while True:
        last = check()
        if asyncio.iscoroutine(last):
            last = await last
        if last:
            return last
        if loop.time() >= end:
            raise AssertionError("\n".join((f"not within {seconds:g} s: {what} (last: {last!r})", *(each.tail() for each in by))))
        await asyncio.sleep(every)


async def holds(check: Callable[[], Any], *, seconds: float = PATIENCE, every: float = 0.2) -> None:
    """Wait until `check`, which asserts something, passes; coroutines are awaited. Its last AssertionError after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        try:
            said = check()
            if asyncio.iscoroutine(said):
                await said
            return
        except AssertionError:
            if loop.time() >= end:
                raise
        await asyncio.sleep(every)
