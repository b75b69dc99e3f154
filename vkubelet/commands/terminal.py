"""Output and questions of a command: plain lines in a pipe, a line that counts seconds at a terminal.

Invariant: waiting users get output at least every 20 seconds, and nothing counts as confirmed that no user could have read.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Protocol, Self

from attrs import define, field, frozen

from vkubelet.clock import Clock
from vkubelet.errors import SettingsError
from vkubelet.logformat import printable

SILENCE = 15.0
_CLEAR = "\r\x1b[K"
_PLAIN_WIDTH = 100


class Screen(Protocol):
    """The part of a text stream that is needed."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


@frozen
class Terminal:
    """Destination of lines; questions are asked only where a user can answer."""

    out: Screen = field(factory=lambda: sys.stdout)
    live: bool = False

    @classmethod
    def standard(cls) -> Self:
        """Returns the terminal of the process."""
        return cls(sys.stdout, live=sys.stdout.isatty())

    @property
    def width(self) -> int:
        return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns if self.live else _PLAIN_WIDTH

    def write_line(self, text: str = "") -> None:
        """Prints a line; exits the process when the pipe has no reader any more, as with `| head`."""
        try:
            self.out.write(f"{text}\n")
            self.out.flush()
        except BrokenPipeError:
            # Otherwise Python reports the error a second time when it closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None

    @property
    def answers(self) -> bool:
        """Whether a user can read a question and answer it."""
        return self.live and sys.stdin.isatty()

    def agree(self, question: str) -> bool:
        """Asks for a yes. Raises SettingsError where no user can answer."""
        if not self.answers:
            raise SettingsError("--yes", "is required without a terminal, where no question can be asked; nothing was changed")
        self.out.write(f"{question} [y/N] ")
        self.out.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


@define
class Progress:
    """Progress of what is waited for, printed when it changes, and again after `SILENCE` seconds without output."""

    terminal: Terminal
    clock: Clock
    _begun: float = field(init=False)
    _written_at: float = field(init=False, default=0.0)
    _text: str = field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        self._begun = self.clock.monotonic()

    @property
    def seconds(self) -> float:
        return self.clock.monotonic() - self._begun

    def update(self, text: str) -> None:
        """Reports the current state; to be called repeatedly."""
        text = printable(text)
        changed, now = text != self._text, self.clock.monotonic()
        if self.terminal.live:
            self._rewrite(text, changed=changed)
        elif changed or now - self._written_at >= SILENCE:
            self.terminal.write_line(f"{self.seconds:5.0f} s  {text}")
            self._written_at = now
        self._text = text

    def end(self) -> None:
        """Keeps the last line as it is."""
        if self.terminal.live and self._text:
            self.terminal.write_line()
        self._text = ""

    def _rewrite(self, text: str, *, changed: bool) -> None:
        out = self.terminal.out
        if changed and self._text:
            out.write("\n")
        line = f"{self.seconds:5.0f} s  {text}"
        out.write(_CLEAR + line[: self.terminal.width - 1])
        out.flush()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pads cells to columns with the least width (pure)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
