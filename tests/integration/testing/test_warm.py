"""Programs that are forked from the interpreter of the tests, which outlives whatever becomes of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.program import STOP_SECONDS
from tests.support.warm import Forked, Interpreter, fork


def version(directory: Path) -> Forked:
    return fork("vkubelet", "version", log=directory / "log", env=os.environ)


def test_its_end_is_told_to_each_who_asks(tmp_path: Path) -> None:
    program = version(tmp_path)
    others = [Forked(program._interpreter, program.pid) for _ in range(4)]
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(lambda each: each.wait(STOP_SECONDS), (program, *others))) == [0] * 5


def test_the_interpreter_serves_on_after_what_it_could_not_do(tmp_path: Path) -> None:
    program = version(tmp_path)
    with pytest.raises(RuntimeError, match="poll: .*No child processes"):
        Forked(program._interpreter, os.getpid()).poll()
    assert program.wait(STOP_SECONDS) == 0
    missing = fork("vkubelet", "version", log=tmp_path / "missing" / "log", env=os.environ)
    assert missing.wait(STOP_SECONDS) == 1, "it has no log"
    assert version(tmp_path).wait(STOP_SECONDS) == 0


def test_an_interpreter_that_has_ended_states_how() -> None:
    interpreter = Interpreter()
    interpreter._process.kill()
    with pytest.raises(RuntimeError, match="the interpreter ended with -9"):
        interpreter.ask("poll", 1)
