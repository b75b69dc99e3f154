"""A hundred thousand clients that send nonsense: the SPDY session answers with frames, ends or goes on, and holds no more than it may.

Invariant: every case is made from what hypothesis drew, so that a failure is shrunk and found again.
"""

from __future__ import annotations

import asyncio
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.server.sessions import echo_stream
from tests.support.memory_transport import MemoryTransport
from tests.support.program import PATIENCE
from tests.support.spdy_client import data_frame, syn_stream
from vkubelet.clock import SystemClock
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.spdy import SESSION_BUFFER, SessionClosed, SpdySession

CASES, EXAMPLES = 100_000, 1000
"""Each example gives as many cases as it takes: the same frames, broken in other ways."""

pytestmark = pytest.mark.timeout(1500)
"""It is work and waits for nothing: a minute of a processor, of which a busy machine gives it a small part. What hangs, hangs for good."""

Frame = Callable[[spdy.HeaderCompressor], bytes]

numbers = st.one_of(st.integers(0, 12), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]))
headers = st.dictionaries(st.sampled_from(["streamtype", "port", "requestid", ""]), st.text(max_size=20), max_size=3)
flags = st.integers(0, 3)


def opening(number: int, pairs: dict[str, str], bits: int) -> Frame:
    return lambda compressor: syn_stream(number, compressor.compress(pairs), flags=bits)


def later(kind: int, number: int, pairs: dict[str, str]) -> Frame:
    return lambda compressor: spdy.control_frame(kind, struct.pack(">I", number) + compressor.compress(pairs))


def fixed(data: bytes) -> Frame:
    return lambda compressor: data


frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(opening, numbers, headers, flags),
    st.builds(
        lambda number, data, fin: fixed(data_frame(number & 0x7FFFFFFF, data, fin=fin)), numbers, st.binary(max_size=300), st.booleans()
    ),
    st.builds(lambda number, status: fixed(spdy.rst_stream(number, status)), numbers, numbers),
    st.builds(lambda number: fixed(spdy.ping(number)), numbers),
    st.builds(lambda number: fixed(spdy.goaway(number)), numbers),
    st.builds(later, st.sampled_from([spdy.SYN_REPLY, spdy.HEADERS]), numbers, headers),
    st.builds(lambda kind, data: fixed(spdy.control_frame(kind, data)), st.integers(0, 20), st.binary(max_size=100)),
    st.builds(fixed, st.binary(max_size=60)),
)


def broken(data: bytes, random: Random) -> bytes:
    """Bytes changed, cut out, doubled or put in; or left alone."""
    mutable = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 8))):
        at = random.randrange(len(mutable) + 1)
        match random.randrange(5):
            case 0:
                mutable[at:at] = random.randbytes(random.randrange(1, 20))
            case 1:
                del mutable[at : at + random.randrange(1, 20)]
            case 2:
                mutable[at:at] = mutable[at : at + 40]
            case 3 if at < len(mutable):
                mutable[at] ^= 1 << random.randrange(8)
            case _:
                mutable[at : at + 4] = struct.pack(">I", random.choice((0, 1, 2**24 - 1, 2**31, 0x80030001, 2**32 - 1)))
    return bytes(mutable)


def parts(data: bytes, random: Random) -> Iterator[bytes]:
    longest = random.choice((1, 3, 9, 50, 100_000))
    at = 0
    while at < len(data):
        size = random.randint(1, longest)
        yield data[at : at + size]
        at += size


@contextmanager
def session() -> Iterator[tuple[SpdySession, MemoryTransport]]:
    transport = MemoryTransport()
    made = SpdySession(transport, SystemClock())
    transport.protocol = made
    try:
        yield made, transport
    finally:
        transport.lose()


async def serve(served: SpdySession) -> None:
    """Echo all streams; one that is taken is not waited for."""
    async with asyncio.TaskGroup() as group:
        try:
            while True:
                group.create_task(echo_stream(await served.accept()))
        except SessionClosed:
            return


async def one_case(data: bytes, random: Random) -> None:
    with session() as (served, transport):
        transport.stuck = random.random() < 0.2
        serving = asyncio.create_task(serve(served)) if random.random() < 0.1 else None
        for part in parts(data, random):
            # A real one may hand over what it has read before it was closed.
            if not transport.reading:
                break
            served.data_received(part)
            assert served.cost <= SESSION_BUFFER + len(part) + spdy.MAX_CONTROL
            if serving is not None:
                await asyncio.sleep(0)
        # Whatever came, what goes out is well-formed.
        answers = spdy.FrameParser()
        assert not [frame for frame in answers.feed(bytes(transport.sent)) if isinstance(frame, spdy.SynStream | spdy.LaterHeaders)]
        assert answers.buffered == 0
    if serving is not None:
        await asyncio.wait_for(serving, PATIENCE)


def memory() -> int:
    """The most this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_nonsense_neither_breaks_nor_fills_a_session() -> None:
    done = 0
    with asyncio.Runner() as runner:

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(drawn=st.lists(frames, max_size=12), seed=st.integers(0, 2**64))
        def campaign(drawn: list[Frame], seed: int) -> None:
            nonlocal done
            random, compressor = Random(seed), spdy.HeaderCompressor()
            good = b"".join(frame(compressor) for frame in drawn)

            async def cases() -> None:
                for number in range(CASES // EXAMPLES):
                    await one_case(random.randbytes(random.randrange(400)) if number % 10 == 0 else broken(good, random), random)

            runner.run(cases())
            done += CASES // EXAMPLES

        before = memory()
        campaign()
    assert done >= CASES
    assert memory() - before < 200 * 1024 * 1024
