"""What is remembered of specs, and what is not."""

import pytest

from vkubelet.api.memo import LONGEST, REMEMBERED, by_spec


class Reader:
    def __init__(self) -> None:
        self.read = list[tuple[bytes, str]]()
        self.recall = by_spec(self._length)

    def _length(self, spec: bytes, text: str) -> int:
        self.read.append((spec, text))
        if not spec:
            raise ValueError("empty")
        return len(spec)


def test_an_equal_spec_is_read_once_for_each_text() -> None:
    reader = Reader()
    assert [reader.recall(b"{}", text) for text in "aab"] == [2, 2, 2]
    assert reader.read == [(b"{}", "a"), (b"{}", "b")]


def test_a_long_spec_is_read_each_time() -> None:
    reader = Reader()
    longest, longer = b"x" * LONGEST, b"x" * (LONGEST + 1)
    assert [len(reader.read) for spec in (longest, longest, longer, longer) if reader.recall(spec, "")] == [1, 1, 2, 3]


def test_the_specs_of_the_last_pods_are_remembered() -> None:
    reader = Reader()
    for number in range(REMEMBERED + 1):
        reader.recall(b"%d" % number, "")
    before = len(reader.read)
    reader.recall(b"%d" % REMEMBERED, "")
    assert len(reader.read) == before
    reader.recall(b"0", "")
    assert len(reader.read) == before + 1


def test_an_error_is_raised_each_time() -> None:
    reader = Reader()
    for _ in range(2):
        with pytest.raises(ValueError, match="empty"):
            reader.recall(b"", "")
    assert len(reader.read) == 2
