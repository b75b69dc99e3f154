"""What a command shows while it waits."""

from __future__ import annotations

import io

import pytest

from vkubelet.commands.terminal import Progress, Terminal, table
from vkubelet.errors import SettingsError
from vkubelet.testing.clock import ManualClock


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_without_a_terminal_a_line_comes_on_a_change_and_at_least_every_20_seconds() -> None:
    out, clock = io.StringIO(), ManualClock()
    progress = Progress(Terminal(out), clock)
    said_at: list[float] = []
    for _ in range(60):
        before = out.getvalue()
        progress.update("waiting" if progress.seconds < 30 else "nearly there")
        if out.getvalue() != before:
            said_at.append(progress.seconds)
        await clock.advance(1.0)
    progress.end()
    assert said_at[0] == 0.0 and 30.0 in said_at
    assert max(b - a for a, b in zip(said_at, said_at[1:], strict=False)) < 20.0
    assert len(said_at) == 4 and out.getvalue().splitlines()[0] == "    0 s  waiting"


async def test_at_a_terminal_one_line_counts_and_a_change_begins_another() -> None:
    out, clock = Tty(), ManualClock()
    progress = Progress(Terminal(out, live=True), clock)
    for text in ("waiting", "waiting", "nearly there"):
        progress.update(text)
        await clock.advance(1.0)
    progress.end()
    lines = out.getvalue().split("\n")
    assert [line.rpartition("\x1b[K")[2] for line in lines] == ["    1 s  waiting", "    2 s  nearly there", ""]


def test_where_nobody_can_be_asked_nothing_is_agreed_to() -> None:
    with pytest.raises(SettingsError, match="--yes"):
        Terminal(io.StringIO()).agree("Apply this?")


@pytest.mark.parametrize(("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("no\n", False), ("", False)])
def test_only_a_yes_is_a_yes(answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Tty(answer))
    out = Tty()
    assert Terminal(out, live=True).agree("Apply this?") is agreed
    assert out.getvalue() == "Apply this? [y/N] "


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert table([("NAME", "X"), ("a", "long"), ("longer", "")]) == ["NAME    X", "a       long", "longer"]


async def test_a_state_cannot_command_the_terminal() -> None:
    for out, live in ((io.StringIO(), False), (Tty(), True)):
        Progress(Terminal(out, live=live), ManualClock()).update("waits: \x1b[2Jgone")
        assert "waits: \\x1b[2Jgone" in out.getvalue()
