"""Thresholds, result by result."""

from __future__ import annotations

import pytest

from vkubelet.containers.plan import ProbeKind, ProbeSpec
from vkubelet.containers.probes import Streak


@pytest.mark.parametrize(
    ("kind", "successes", "failures", "results", "verdicts"),
    [
        (ProbeKind.READINESS, 1, 3, "++", "++"),
        (ProbeKind.READINESS, 2, 3, "+++", ".++"),
        (ProbeKind.READINESS, 1, 3, "---", "..-"),
        (ProbeKind.READINESS, 1, 3, "--+---", "..+..-"),
        (ProbeKind.READINESS, 2, 2, "+-+-++--", ".....+.-"),
        (ProbeKind.LIVENESS, 1, 1, "-", "-"),
        (ProbeKind.STARTUP, 1, 30, "--+", "..+"),
    ],
)
def test_verdicts_follow_equal_results_in_a_row(kind: ProbeKind, successes: int, failures: int, results: str, verdicts: str) -> None:
    spec = ProbeSpec(kind=kind, action={}, successes=successes, failures=failures)
    streak = Streak(1)
    told = [streak.note(result == "+", spec) for result in results]
    assert "".join({True: "+", False: "-", None: "."}[verdict] for verdict in told) == verdicts


@pytest.mark.parametrize(
    ("kind", "result", "held"),
    [
        (ProbeKind.LIVENESS, False, True),
        (ProbeKind.LIVENESS, True, False),
        (ProbeKind.STARTUP, True, True),
        (ProbeKind.STARTUP, False, True),
        (ProbeKind.READINESS, False, False),
    ],
)
def test_which_verdicts_need_no_more_probing_of_this_run(kind: ProbeKind, result: bool, held: bool) -> None:
    streak = Streak(1)
    streak.note(result, ProbeSpec(kind=kind, action={}, successes=1, failures=1))
    assert streak.held is held
