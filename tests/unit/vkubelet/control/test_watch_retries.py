"""When a watch that failed is repeated, and what is logged."""

from __future__ import annotations

import logging

import pytest

from vkubelet.control.watch_retries import WatchRetries
from vkubelet.errors import Expired, Forbidden, ServerError, TooManyRequests, Unreachable, VKubeletError

SILENT = Unreachable("watch pods", "no connection within the time limit")
REFUSED = Forbidden("list pods", "cannot list resource pods", status=403)
OVERLOADED = ServerError("list pods", "overloaded", status=503)
EXPIRED = Expired("watch pods", "too old resource version")


def waits(retries: WatchRetries, problem: VKubeletError | None, number: int = 30) -> list[float]:
    return [retries.wait_after(problem) for _ in range(number)]


@pytest.mark.parametrize(("problem", "most"), [(SILENT, 10.0), (REFUSED, 10.0), (OVERLOADED, 30.0), (None, 30.0)], ids=str)
def test_waits_become_longer_up_to_a_limit(problem: VKubeletError | None, most: float) -> None:
    found = waits(WatchRetries("pods"), problem)
    assert found[0] <= 0.2 and most / 2 <= max(found) <= most


def test_an_expired_version_does_not_wait_as_the_attempts_of_the_outage_before_it() -> None:
    retries = WatchRetries("pods")
    waits(retries, SILENT)
    assert retries.wait_after(EXPIRED) <= 0.2
    assert max(waits(retries, EXPIRED)) >= 15.0, "one that expires again and again does"


def test_a_watch_that_lasted_starts_again_with_the_first_wait() -> None:
    retries = WatchRetries("pods")
    waits(retries, OVERLOADED)
    waits(retries, EXPIRED)
    retries.settled()
    assert retries.wait_after(OVERLOADED) <= 0.2 and retries.wait_after(EXPIRED) <= 0.2


def test_what_the_server_asks_for_is_the_least_wait() -> None:
    assert WatchRetries("pods").wait_after(TooManyRequests("list pods", "busy", status=429, retry_after=7.0)) == 7.0


def test_an_outage_is_one_warning_and_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    retries = WatchRetries("pods")
    for _ in range(10):
        retries.failed(SILENT)
        retries.wait_after(SILENT)
    retries.recovered()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_single_failure_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    retries = WatchRetries("pods")
    retries.failed(SILENT)
    retries.wait_after(SILENT)
    retries.recovered()
    assert not caplog.records
