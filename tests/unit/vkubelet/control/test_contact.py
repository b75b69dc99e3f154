"""Tests of vkubelet.control.contact: what attempts to reach the worker prove."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.control.contact import Attempt, Contact, Outcome, outcome_of
from vkubelet.errors import Forbidden, NotFound, ServerError, TooManyRequests, Unauthorized, Unreachable, VKubeletError

SERVED, UNSERVED, SILENT = Outcome.SERVED, Outcome.UNSERVED, Outcome.SILENT
EVERY = 10.0
TAKES = 5.0
GAP = 2 * EVERY + 5.0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, SERVED),
        (Forbidden("get /readyz", "no right", status=403), SERVED),
        (NotFound("get /readyz", "no such path", status=404), SERVED),
        (TooManyRequests("get /readyz", "slow down", status=429), SERVED),
        (Unauthorized("get /readyz", "Unauthorized", status=401), UNSERVED),
        (ServerError("get /readyz", "readyz check failed", status=500), UNSERVED),
        (ServerError("get /readyz", "bad gateway", status=502), UNSERVED),
        (Unreachable("get /readyz", "no response within the time limit"), UNSERVED),
        (VKubeletError("anything else"), UNSERVED),
        (Unreachable("get /readyz", "connection refused", silent=True), SILENT),
    ],
    ids=lambda value: str(getattr(value, "status", "") or value),
)
def test_only_a_connection_that_never_came_about_is_silence(error: VKubeletError | None, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def told(outcomes: Sequence[Outcome]) -> tuple[Contact, list[Attempt]]:
    attempts = [Attempt(at * (EVERY + TAKES), at * (EVERY + TAKES) + TAKES, outcome) for at, outcome in enumerate(outcomes)]
    contact = Contact(0.0, GAP)
    for attempt in attempts:
        contact = contact.after(attempt)
    return contact, attempts


def test_silence_is_the_last_unbroken_series_for_every_sequence_of_answers() -> None:
    for length in range(1, 9):
        for outcomes in product(Outcome, repeat=length):
            contact, attempts = told(outcomes)
            series: list[Attempt] = []
            for attempt in reversed(attempts):
                if attempt.outcome is not SILENT:
                    break
                series.append(attempt)
            expected = series[0].ended - series[-1].began if len(series) > 1 else 0.0
            assert contact.silence == expected, outcomes


steps = st.lists(st.tuples(st.sampled_from(["served", "unserved", "silent", "wait", "still"]), st.integers(0, 90)), max_size=30)


def unbroken(attempts: Sequence[Attempt], broken_at: float) -> list[Attempt]:
    """The latest silent attempts since then without a gap between them, counted from the end."""
    series: list[Attempt] = []
    for attempt in reversed(attempts):
        if attempt.began < broken_at or series and series[0].began - attempt.ended > GAP:
            break
        series.insert(0, attempt)
    return series


@given(steps)
def test_silence_holds_no_answer_no_standstill_and_no_time_without_attempts(history: list[tuple[str, int]]) -> None:
    contact, now, broken_at, served = Contact(0.0, GAP), 0.0, 0.0, 0.0
    asked: list[Attempt] = []
    for what, seconds in history:
        start, now = now, now + seconds
        if what == "still":
            contact, broken_at, served = contact.suspended(start, now), now, served + seconds
        elif what != "wait":
            attempt = Attempt(start, now, Outcome(what))
            contact = contact.after(attempt)
            asked, broken_at = ([*asked, attempt], broken_at) if what == "silent" else ([], broken_at)
            served = now if what == "served" else served
    series = unbroken(asked, broken_at)
    assert contact.served_at == served
    assert contact.silence == (series[-1].ended - series[0].began if len(series) > 1 else 0.0)


def test_an_attempt_that_a_standstill_interrupted_proves_nothing() -> None:
    contact, _ = told([SILENT, SILENT])
    frozen = contact.suspended(22.0, 300.0)
    assert frozen.after(Attempt(21.0, 301.0, SILENT)).silence == 0.0
    assert frozen.after(Attempt(21.0, 301.0, SILENT)).after(Attempt(310.0, 315.0, SILENT)).silence == 0.0
