"""Programs of a mock container, small and strict: an unsupported option is an error.

Invariant: every program forwards data in chunks and waits for its reader, so a slow client blocks only itself; a program that buffers its
input (`tar x`, `>`) is limited by the limit on files.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from vkubelet_providers.mock.files import Files, pack, unpack
from vkubelet_providers.mock.machine import Failed, Machine, Std
from vkubelet_providers.mock.reading import CHUNK, collect, number, options, source

Program = Callable[[Machine, Sequence[str], Std], Awaitable[int]]

# --- text ------------------------------------------------------------------------------------------------------------------------------


async def echo(machine: Machine, args: Sequence[str], std: Std) -> int:
    newline = list(args[:1]) != ["-n"]
    await std.say(" ".join(args if newline else args[1:]) + ("\n" if newline else ""))
    return 0


async def printf(machine: Machine, args: Sequence[str], std: Std) -> int:
    if not args:
        raise Failed("usage: printf FORMAT [ARG]...")
    values = iter(args[1:])
    known = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "%%": "%"}
    await std.say(re.sub(r"\\[nt\\]|%[%sd]", lambda match: known.get(match[0]) or next(values, ""), args[0]))
    return 0


async def cat(machine: Machine, args: Sequence[str], std: Std) -> int:
    async for data in source(machine, args, std.stdin):
        await std.out(data)
    return 0


async def yes(machine: Machine, args: Sequence[str], std: Std) -> int:
    line = f"{' '.join(args) or 'y'}\n".encode()
    block = line * (CHUNK // len(line) + 1)
    while True:
        await machine.clock.sleep(0)
        await std.out(block)


async def seq(machine: Machine, args: Sequence[str], std: Std) -> int:
    bounds = [number(word) for word in args]
    if not bounds or len(bounds) > 2:
        raise Failed("usage: seq [FIRST] LAST")
    first, last = bounds if len(bounds) == 2 else (1, bounds[0])
    for start in range(first, last + 1, 1000):
        await machine.clock.sleep(0)
        await std.say("".join(f"{value}\n" for value in range(start, min(start + 1000, last + 1))))
    return 0


async def head(machine: Machine, args: Sequence[str], std: Std) -> int:
    told, names = options(args, "c:n:")
    left, lines = number(told.get("c") or told.get("n") or "10"), "c" not in told
    async for data in source(machine, names, std.stdin):
        while data and left > 0:
            cut = data.find(b"\n") + 1 or len(data) if lines else min(left, len(data))
            await std.out(data[:cut])
            left -= data[:cut].count(b"\n") if lines else cut
            data = data[cut:]
        if left <= 0:
            break
    return 0


async def tail(machine: Machine, args: Sequence[str], std: Std) -> int:
    told, names = options(args, "c:n:")
    if told.get("c", "").startswith("+"):
        skip = max(0, number(told["c"][1:]) - 1)
        async for data in source(machine, names, std.stdin):
            await std.out(data[skip:]) if skip < len(data) else None
            skip = max(0, skip - len(data))
        return 0
    data = await collect(source(machine, names, std.stdin))
    count = number(told.get("c") or told.get("n") or "10")
    await std.out(data[max(0, len(data) - count) :] if "c" in told else b"".join(data.splitlines(keepends=True)[-count or len(data) :]))
    return 0


async def wc(machine: Machine, args: Sequence[str], std: Std) -> int:
    told, names = options(args, "cl")
    lines = size = 0
    async for data in source(machine, names, std.stdin):
        lines, size = lines + data.count(b"\n"), size + len(data)
    shown = [str(value) for letter, value in (("l", lines), ("c", size)) if letter in told or not told]
    await std.say(" ".join([*shown, *names]) + "\n")
    return 0


def _sum(kind: str) -> Program:
    async def program(machine: Machine, args: Sequence[str], std: Std) -> int:
        for name in args or ["-"]:
            digest = hashlib.new(kind, usedforsecurity=False)
            async for data in source(machine, [name], std.stdin):
                digest.update(data)
            await std.say(f"{digest.hexdigest()}  {name}\n")
        return 0

    return program


# --- files -----------------------------------------------------------------------------------------------------------------------------


async def ls(machine: Machine, args: Sequence[str], std: Std) -> int:
    _, names = options(args, "la1")
    for name in names or ["."]:
        path = Files.path(machine.directory, name)
        try:
            await std.say("".join(f"{one}\n" for one in machine.files.names(path)))
        except OSError as error:
            raise Failed(f"{name}: {error.strerror}") from error
    return 0


async def mkdir(machine: Machine, args: Sequence[str], std: Std) -> int:
    _, names = options(args, "p")
    for name in names:
        try:
            machine.files.make_directory(Files.path(machine.directory, name))
        except OSError as error:
            raise Failed(f"can't create directory '{name}': {error.strerror}") from error
    return 0


async def rm(machine: Machine, args: Sequence[str], std: Std) -> int:
    told, names = options(args, "rf")
    for name in names:
        try:
            machine.files.remove(Files.path(machine.directory, name), recursive="r" in told)
        except OSError as error:
            if "f" not in told or not isinstance(error, FileNotFoundError):
                raise Failed(f"can't remove '{name}': {error.strerror}") from error
    return 0


async def test(machine: Machine, args: Sequence[str], std: Std) -> int:
    words = list(args)
    path = Files.path(machine.directory, words[-1]) if words else "/"
    files = machine.files
    match words:
        case ["-d", _]:
            return int(not files.is_directory(path))
        case ["-f", _]:
            return int(not files.is_file(path))
        case ["-e", _]:
            return int(not files.is_file(path) and not files.is_directory(path))
        case [left, "=", right]:
            return int(left != right)
        case [left, "!=", right]:
            return int(left == right)
        case [word]:
            return int(not word)
        case _:
            return 1


async def tar(machine: Machine, args: Sequence[str], std: Std) -> int:
    """Creates, extracts or lists an archive, which is always a stream: `tar cf - PATH...`, `tar xf - [-C DIRECTORY]`, `tar tf -`."""
    words = [word for word in args if not word.startswith("--")]
    if words and not words[0].startswith("-"):
        words[0] = "-" + words[0]
    told, names = options(words, "cxtvmpohf:C:")
    directory = Files.path(machine.directory, told.get("C", "."))
    if told.get("f", "-") != "-":
        raise Failed("only the archive `-` is there")
    try:
        if "c" in told:
            paths = [Files.path(directory, name) for name in names]
            for data in pack(machine.files, paths, mtime=machine.clock.now().timestamp()):
                await std.out(data)
            return 0
        archive = await collect(source(machine, [], std.stdin))
        target = machine.files if "x" in told else Files()
        listed = unpack(target, archive, directory=directory)
    except (OSError, tarfile.TarError) as error:
        raise Failed(getattr(error, "strerror", None) or str(error)) from error
    if "t" in told:
        await std.say("".join(f"{name}\n" for name in listed))
    return 0


# --- the machine -----------------------------------------------------------------------------------------------------------------------


async def sleep(machine: Machine, args: Sequence[str], std: Std) -> int:
    if len(args) != 1 or not re.fullmatch(r"[0-9]+(\.[0-9]+)?|inf(inity)?", args[0]):
        raise Failed("usage: sleep SECONDS")
    if args[0].startswith("inf"):
        while True:
            await machine.clock.sleep(3600.0)
    await machine.clock.sleep(float(args[0]))
    return 0


async def stty(machine: Machine, args: Sequence[str], std: Std) -> int:
    """Prints `stty size`: rows and columns, as last reported by the client."""
    if machine.size is None:
        raise Failed("standard input: Inappropriate ioctl for device")
    if list(args) != ["size"]:
        raise Failed("only `stty size` is there")
    size = await machine.size()
    await std.say(f"{size.height} {size.width}\n")
    return 0


async def tty(machine: Machine, args: Sequence[str], std: Std) -> int:
    await std.say("not a tty\n" if machine.size is None else "/dev/pts/0\n")
    return int(machine.size is None)


async def hostname(machine: Machine, args: Sequence[str], std: Std) -> int:
    await std.say(f"{machine.hostname}\n")
    return 0


async def env(machine: Machine, args: Sequence[str], std: Std) -> int:
    await std.say("".join(f"{name}={value}\n" for name, value in machine.environment.items()))
    return 0


async def date(machine: Machine, args: Sequence[str], std: Std) -> int:
    await std.say(f"{machine.clock.now():%a %b %e %H:%M:%S UTC %Y}\n")
    return 0


async def pwd(machine: Machine, args: Sequence[str], std: Std) -> int:
    await std.say(f"{machine.directory}\n")
    return 0


async def true(machine: Machine, args: Sequence[str], std: Std) -> int:
    return 0


async def false(machine: Machine, args: Sequence[str], std: Std) -> int:
    return 1


PROGRAMS: Final[Mapping[str, Program]] = {
    "cat": cat,
    "date": date,
    "echo": echo,
    "env": env,
    "false": false,
    "head": head,
    "hostname": hostname,
    "ls": ls,
    "md5sum": _sum("md5"),
    "mkdir": mkdir,
    "printf": printf,
    "pwd": pwd,
    "rm": rm,
    "seq": seq,
    "sha256sum": _sum("sha256"),
    "sleep": sleep,
    "stty": stty,
    "tail": tail,
    "tar": tar,
    "test": test,
    "true": true,
    "tty": tty,
    "wc": wc,
    "yes": yes,
}
