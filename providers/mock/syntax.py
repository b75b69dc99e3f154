"""Parser of the mock shell: arguments, quotes, variables, pipes, redirections, and the operators between commands.

Invariant: pure; text outside this small grammar raises ShellSyntaxError, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from attrs import field, frozen

Connector = Literal[";", "&&", "||"]
_OPERATORS: Final = ("&&", "||", "2>&1", "1>&2", ">&2", "2>", "1>", ">>", ">", "<", "|", ";", "\n")
_REDIRECTS: Final = {"2>&1", "1>&2", ">&2", "2>", "1>", ">>", ">", "<"}
_TO_NOWHERE: Final = {"2>&1", "1>&2", ">&2"}
_ENDS_WORD: Final = " \t\r\n;&|<>"
_PLAIN: Final = re.compile(r"[^ \t\r\n;&|<>'\"\\]+")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+|[?$]))")


class ShellSyntaxError(Exception):
    """The text contains an unexpected token, which the message names."""


@frozen
class Word:
    """Pieces that are joined; each with whether variables in it are replaced."""

    pieces: Sequence[tuple[str, bool]]

    def expand(self, variables: Mapping[str, str]) -> str:
        return "".join(_expand(text, variables) if open_ else text for text, open_ in self.pieces)


@frozen
class Redirect:
    """`operator` such as `>`, and the file, which `>&2` and `2>&1` do not have."""

    operator: str
    target: Word | None = None


@frozen
class Command:
    """One program with its arguments."""

    words: Sequence[Word] = ()
    redirects: Sequence[Redirect] = ()


@frozen
class Step:
    """A pipeline, and its condition on the previous step."""

    connector: Connector
    pipeline: Sequence[Command] = field(factory=tuple)


def _expand(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def parse(text: str) -> Sequence[Step]:
    """Parses a script. Raises ShellSyntaxError."""
    steps: list[Step] = []
    connector: Connector = ";"
    pipeline: list[Command] = []
    words: list[Word] = []
    redirects: list[Redirect] = []
    tokens = list(_tokens(text))
    for token in (*tokens, ";"):
        if isinstance(token, Word):
            if redirects and redirects[-1].target is None and redirects[-1].operator not in _TO_NOWHERE:
                redirects[-1] = Redirect(redirects[-1].operator, token)
            else:
                words.append(token)
            continue
        _refuse_open(redirects, token)
        if token in _REDIRECTS:
            redirects.append(Redirect(token))
            continue
        if words or redirects:
            pipeline.append(Command(tuple(words), tuple(redirects)))
            words, redirects = [], []
        elif pipeline or token not in (";", "\n") or connector != ";":
            raise ShellSyntaxError(f'syntax error: unexpected "{_shown(token)}"')
        if token != "|":
            if pipeline:
                steps.append(Step(connector, tuple(pipeline)))
            pipeline, connector = [], "&&" if token == "&&" else "||" if token == "||" else ";"
    return steps


def _refuse_open(redirects: Sequence[Redirect], token: str) -> None:
    if redirects and redirects[-1].target is None and redirects[-1].operator not in _TO_NOWHERE:
        raise ShellSyntaxError(f'syntax error: unexpected "{_shown(token)}" where a file was expected')


def _shown(token: str) -> str:
    return "newline" if token == "\n" else token


def _tokens(text: str) -> Iterator[Word | str]:
    """Yields tokens, and operators as plain text."""
    position = 0
    while position < len(text):
        if text[position] in " \t\r":
            position += 1
            continue
        operator = next((one for one in _OPERATORS if text.startswith(one, position)), None)
        if operator is not None:
            yield operator
            position += len(operator)
        elif text[position] == "&":
            raise ShellSyntaxError("syntax error: nothing runs in the background here")
        else:
            pieces: list[tuple[str, bool]] = []
            position = _word(text, position, pieces)
            yield Word(tuple(pieces))


def _word(text: str, position: int, pieces: list[tuple[str, bool]]) -> int:
    """Parses one token into `pieces`; returns the position after it."""
    while position < len(text) and text[position] not in _ENDS_WORD:
        if text[position] in "'\"":
            end = _quoted_end(text, position)
            inner = text[position + 1 : end]
            if text[position] == '"':
                pieces.extend(_double(inner))
            else:
                pieces.append((inner, False))
            position = end + 1
        elif text[position] == "\\":
            pieces.append((text[position + 1 : position + 2], False))
            position += 2
        else:
            match = _PLAIN.match(text, position)
            assert match is not None
            pieces.append((match[0], True))
            position = match.end()
    return position


def _quoted_end(text: str, start: int) -> int:
    """Returns where the quote that opens at `start` is closed."""
    position = start + 1
    while position < len(text) and text[position] != text[start]:
        position += 2 if text[start] == '"' and text[position] == "\\" else 1
    if position >= len(text):
        raise ShellSyntaxError("syntax error: unterminated quoted string")
    return position


def _double(inner: str) -> Iterator[tuple[str, bool]]:
    """Yields the pieces between double quotes, where a backslash keeps its meaning before few characters only."""
    yield ("", False)
    for part in re.split(r"(\\[\\\"$`\n])", inner):
        escaped = len(part) == 2 and part[0] == "\\" and part[1] in '\\"$`\n'
        if part:
            yield (part[1].strip("\n"), False) if escaped else (part, True)
