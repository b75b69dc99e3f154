"""Input of the programs of a mock container, and their arguments.

Invariant: data comes in chunks; buffered input is limited by the limit on files.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from vkubelet_providers.mock.files import LIMIT, Files
from vkubelet_providers.mock.machine import Failed, Input, Machine

CHUNK: Final = 1 << 16
_UNITS: Final = {"": 1, "b": 512, "k": 1 << 10, "K": 1 << 10, "m": 1 << 20, "M": 1 << 20, "G": 1 << 30}


async def source(machine: Machine, names: Sequence[str], stdin: Input) -> AsyncIterator[bytes]:
    """Yields the contents of these files one after another, or standard input. Raises Failed."""
    for name in names or ["-"]:
        if name == "-":
            async for data in stdin:
                yield data
        elif name == "/dev/zero":
            zeros = bytes(CHUNK)
            while True:
                await machine.clock.sleep(0)
                yield zeros
        elif name != "/dev/null":
            data = _read(machine, name)
            for start in range(0, len(data), CHUNK):
                yield data[start : start + CHUNK]


def _read(machine: Machine, name: str) -> bytes:
    try:
        return machine.files.read(Files.path(machine.directory, name))
    except OSError as error:
        raise Failed(f"{name}: {error.strerror}") from error


async def collect(stream: AsyncIterator[bytes]) -> bytes:
    """Collects all of it. Raises Failed when it is more than any file may have."""
    parts, size = list[bytes](), 0
    async for data in stream:
        size += len(data)
        if size > LIMIT:
            raise Failed("No space left on device")
        parts.append(data)
    return b"".join(parts)


def number(text: str) -> int:
    """Parses `200`, `64K`, `200M`. Raises Failed."""
    match = re.fullmatch(r"([0-9]+)([bkKmMG]?)", text)
    if match is None:
        raise Failed(f"invalid number '{text}'")
    return int(match[1]) * _UNITS[match[2]]


def options(args: Sequence[str], letters: str) -> tuple[Mapping[str, str], list[str]]:
    """Parses options to a mapping, and the other arguments; a letter followed by `:` takes a value. Raises Failed for others."""
    found: dict[str, str] = {}
    rest = list(args)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)[1:]
        if word == "-":
            break
        while word:
            letter, word = word[0], word[1:]
            if letter not in letters:
                raise Failed(f"unrecognized option: {letter}")
            if letters[letters.index(letter) + 1 :][:1] == ":":
                if not word and not rest:
                    raise Failed(f"option requires an argument -- {letter}")
                found[letter], word = word or rest.pop(0), ""
            else:
                found[letter] = ""
    return found, rest
