"""When a silent worker is given up, and which pods leave."""

from __future__ import annotations

import pytest

from kubeocean.bottomup.fail_over import is_due, leaving
from kubeocean.worker import Reach
from tests.unit.kubeocean.builders import binding, pod
from vkubelet.api.shapes import Json
from vkubelet.testing.clock import ManualClock

FAIL_OVER = {"onUnreachable": {"mode": "FailOver", "afterSeconds": 60}}
UNREACHABLE = "node.kubernetes.io/unreachable"


def silent(clock: ManualClock, *, error: str = "no route") -> Reach:
    """A worker that was lost and has not answered for a minute."""
    reach = Reach(clock, lost_after=40)
    if error:
        reach.failed(error)
    reach.lost = True
    return reach


async def test_a_worker_is_given_up_after_the_time_that_the_binding_names() -> None:
    clock = ManualClock()
    reach = silent(clock)
    await clock.advance(59)
    assert not is_due(binding(FAIL_OVER), reach)
    await clock.advance(1)
    assert is_due(binding(FAIL_OVER), reach)
    assert not is_due(binding({"onUnreachable": {"mode": "Hold"}}), reach)
    reach.answered()
    assert not is_due(binding(FAIL_OVER), reach)


async def test_a_worker_that_nobody_asked_is_not_given_up() -> None:
    clock = ManualClock()
    reach = silent(clock, error="")
    await clock.advance(600)
    assert not is_due(binding(FAIL_OVER), reach)


async def test_a_process_that_starts_amid_an_outage_counts_anew() -> None:
    """While none ran nobody asked the worker: what an earlier one saw may have passed."""
    clock = ManualClock()
    earlier = silent(clock)
    await clock.advance(60)
    later = silent(clock)
    assert is_due(binding(FAIL_OVER), earlier) and not is_due(binding(FAIL_OVER), later)
    await clock.advance(60)
    assert is_due(binding(FAIL_OVER), later)


@pytest.mark.parametrize(
    ("toleration", "leaves"),
    [
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, True),
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": UNREACHABLE, "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "kubeocean.io/vnode", "operator": "Exists"}, True),
    ],
)
def test_only_what_tolerates_an_unreachable_node_for_ever_stays(toleration: Json, leaves: bool) -> None:
    one = pod({"tolerations": [toleration]})
    assert leaving([one]) == ([one] if leaves else [])


def test_what_has_ended_or_ends_is_left_alone() -> None:
    ended = pod(status={"phase": "Succeeded"})
    ends = pod(deletionTimestamp="2026-01-05T09:00:00Z")
    assert leaving([ended, ends]) == []
