"""Tests of the words between vkubelet and its keepers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet_providers.process.keeper import frames

KINDS = st.sampled_from([frames.ASK, frames.STDIN, frames.STDOUT, frames.STDIN_END])


@given(st.lists(st.tuples(KINDS, st.binary(max_size=50))), st.integers(1, 30))
def test_frames_come_whole_whatever_the_blocks(said: list[tuple[bytes, bytes]], size: int) -> None:
    data = b"".join(frames.frame(kind, body) for kind, body in said)
    cut = frames.Frames()
    assert [each for i in range(0, len(data), size) for each in cut.feed(data[i : i + size])] == said


def test_a_length_that_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="4294967295 bytes"):
        list(frames.Frames().feed(b"i" + b"\xff" * 4))


def test_a_size_arrives_as_the_kernel_wants_it() -> None:
    assert struct.unpack("HHHH", frames.for_terminal(frames.window(width=80, height=24))) == (24, 80, 0, 0)
    with pytest.raises(ValueError):
        frames.for_terminal(b"123")
