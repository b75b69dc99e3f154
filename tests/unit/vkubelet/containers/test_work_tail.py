"""The last part of a log as the termination message of its container."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from vkubelet.api.objects import PodRef
from vkubelet.containers.work import log_tail, wants_log
from vkubelet.errors import NoSuchContainer
from vkubelet.provider import LogOptions, Terminated

REF = PodRef("default", "web", "uid", "node")


class Logs:
    """In chunks that do not end with lines."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.asked: list[LogOptions] = []

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        self.asked.append(options)
        for chunk in self.chunks:
            if not chunk:
                raise NoSuchContainer("gone")
            yield chunk


async def tail(provider: object) -> str:
    return await log_tail(provider, REF, "main", previous=True)


async def test_lines_lose_their_times() -> None:
    provider = Logs(b"2026-01-01T00:00:00Z one\n2026-01-01T00:0", b"0:00Z two")
    assert await tail(provider) == "one\ntwo\n"
    assert provider.asked[0].previous is True


async def test_no_more_than_80_lines_and_2_kib() -> None:
    assert await tail(Logs(b"".join(b"t %d\n" % n for n in range(100)))) == "".join(f"{n}\n" for n in range(20, 100))
    assert len(await tail(Logs(b"t " + b"x" * 5000 + b"\n"))) == 2048


async def test_long_line_is_cut_from_its_beginning_and_loses_its_time_only() -> None:
    chunks = [b"2026-01-01T00:00:00Z begin ", *[b"x" * 60_000] * 20, b" end\n2026-01-01T00:00:01Z last\n"]
    text = await tail(Logs(*chunks))
    assert text == ("x" * 2100 + " end\nlast\n")[-2048:]


class Counted(bytes):
    """Bytes that count how many of them are copied by being put together."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        Counted.copied += len(before) + len(self)
        return before + bytes(self)


async def test_reading_a_line_without_end_costs_no_more_than_its_bytes() -> None:
    chunks = [Counted(b"t " + b"x" * 10_000) for _ in range(200)]
    await tail(Logs(*chunks))
    assert Counted.copied <= 2 * sum(map(len, chunks))


async def test_no_log_is_no_message() -> None:
    assert await tail(object()) == ""
    assert await tail(Logs(b"")) == ""


@pytest.mark.parametrize(
    ("policy", "end", "wanted"),
    [
        ("FallbackToLogsOnError", Terminated(1), True),
        ("FallbackToLogsOnError", Terminated(0), False),
        ("FallbackToLogsOnError", Terminated(1, message="own"), False),
        ("File", Terminated(1), False),
    ],
)
def test_when_a_log_is_wanted(policy: str, end: Terminated, wanted: bool) -> None:
    assert wants_log({"terminationMessagePolicy": policy}, end) is wanted
