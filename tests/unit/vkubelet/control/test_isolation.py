"""An error of one item ends neither the loop nor the other items."""

from __future__ import annotations

import asyncio
import logging

import pytest

from vkubelet.control.isolation import Isolation
from vkubelet.errors import Fenced, LeadershipLost, SettingsError


def errors(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("error", [ValueError("odd"), UnicodeError("odd"), KeyError("odd"), SettingsError("a", "odd"), Fenced("odd")])
def test_other_items_are_handled_after_one_that_failed(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    isolated, handled = Isolation("loop"), list[str]()
    for item in ("a", "bad", "b"):
        with isolated(item):
            if item == "bad":
                raise error
            handled.append(item)
    assert handled == ["a", "b"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_an_error_that_stays_is_logged_once_per_item_and_part(caplog: pytest.LogCaptureFixture) -> None:
    isolated = Isolation("loop")

    def fail(item: str, text: str, *, part: type | None = None) -> None:
        with isolated(item, part=part):
            raise ValueError(text)

    for _ in range(5):
        fail("a", "odd")
        fail("b", "odd")
        fail("b", "odd", part=int)
    assert errors(caplog) == 3
    fail("a", "other")
    assert errors(caplog) == 4
    with isolated("a"):
        pass
    fail("a", "other")
    assert errors(caplog) == 5, "after a success the next error is new"


@pytest.mark.parametrize("error", [LeadershipLost("other"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_ends_the_process_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), Isolation("loop")("a"):
        raise error


def test_memory_of_failed_items_is_bounded() -> None:
    isolated = Isolation("loop")
    for number in range(1010):
        with isolated(str(number)):
            raise ValueError("odd")
    assert len(isolated._failed) == 1000
