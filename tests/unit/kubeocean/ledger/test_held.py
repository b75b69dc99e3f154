"""What a pod holds, by its own times; and that no observation is counted twice, in whatever order and however late it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from kubeocean.ledger.account import Ledger, Part
from kubeocean.ledger.held import Account, Held, held
from tests.unit.kubeocean.builders import at, pod
from vkubelet.api.objects import Pod
from vkubelet.clock import rfc3339

START, EVER = at("2026-01-05 10:00"), at("2026-01-01 00:00")


def worker_pod(
    phase: str = "Running", *, cpu: str = "1", bound: datetime | None = START, ended: datetime | None = None, **more: Any
) -> Pod:
    """A pod as the worker has it."""
    status: dict[str, Any] = {"phase": phase}
    if bound is not None:
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(bound)}]
    if ended is not None:
        status["containerStatuses"] = [{"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": rfc3339(ended)}}}]
    spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
    return pod(spec, status={**status, **more}, creationTimestamp="2026-01-05T09:59:00Z")


def of(found: Pod) -> Held:
    made = held(found, "team-a")
    assert made is not None
    return made


def account(*, counted: datetime = EVER) -> Account:
    def deciders(node: str, start: datetime, end: datetime) -> Sequence[Part]:
        return [Part("p", start, end)]

    return Account(Ledger.begin(EVER), deciders, counted)


def lent(of: Account, resource: str = "cpu") -> float:
    return sum(amounts[resource].nanos / 1e9 for amounts in of.ledger.total.values())


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_pod_holds_its_requests_from_binding_until_the_last_container_terminated() -> None:
    running = of(worker_pod())
    assert (running.start, running.end) == (START, None)
    assert {name: str(amount) for name, amount in running.amounts.items()} == {"cpu": "1", "pods": "1"}
    assert of(worker_pod("Succeeded", ended=after(90))).end == after(90)


def test_a_pod_that_is_not_bound_holds_nothing() -> None:
    assert held(pod({"nodeName": ""}, status={"phase": "Pending"}), "team-a") is None


def test_without_a_condition_a_pod_is_bound_when_it_started_or_was_created() -> None:
    assert of(worker_pod(bound=None, startTime=rfc3339(after(3)))).start == after(3)
    assert of(worker_pod(bound=None)).start == at("2026-01-05 09:59")


def test_a_refused_pod_holds_until_its_conditions_changed() -> None:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(START)},
        {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(after(2))},
    ]
    assert of(worker_pod("Failed", conditions=conditions)).end == after(2)


@pytest.mark.parametrize("text", ["", "yesterday", None, 7])
def test_times_that_cannot_be_read_count_for_nothing(text: object) -> None:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": text}]
    assert of(worker_pod(conditions=conditions)).start == at("2026-01-05 09:59")


def test_a_pod_counts_from_its_own_start_until_its_own_end_whenever_both_are_seen() -> None:
    made = account()
    assert made.put("u", of(worker_pod()), at=after(7))
    made.advance(after(60))
    assert lent(made) == 60
    assert made.put("u", of(worker_pod("Succeeded", ended=after(90))), at=after(101))
    made.advance(after(500))
    assert (lent(made), lent(made, "pods")) == (90, 90)
    assert not made.is_lending


def test_an_end_that_is_reported_late_takes_back_what_was_counted_since() -> None:
    made = account()
    made.put("u", of(worker_pod()), at=START)
    made.advance(after(600))
    made.put("u", of(worker_pod("Failed", ended=after(100))), at=after(700))
    made.advance(after(700))
    assert lent(made) == 100


def test_equal_observations_and_the_deletion_of_a_terminated_pod_change_nothing() -> None:
    made = account()
    made.put("u", of(worker_pod("Succeeded", ended=after(90))), at=after(95))
    assert not made.put("u", of(worker_pod("Succeeded", ended=after(90))), at=after(99))
    assert not made.remove("u", end=after(120), at=after(120))
    made.advance(after(500))
    assert lent(made) == 90


def test_a_pod_that_vanishes_counts_until_its_deletion_was_seen() -> None:
    made = account()
    made.put("u", of(worker_pod()), at=START)
    assert made.remove("u", end=after(40), at=after(40))
    made.advance(after(100))
    assert lent(made) == 40 and "u" not in made


def test_a_pod_that_is_missing_after_an_outage_counts_until_the_last_contact() -> None:
    made = account()
    made.put("u", of(worker_pod()), at=START)
    made.remove("u", end=after(40), at=after(1000))
    made.advance(after(1000))
    assert lent(made) == 40


def test_a_resize_changes_the_rate_from_when_it_is_seen() -> None:
    made = account()
    made.put("u", of(worker_pod(cpu="1")), at=START)
    assert made.put("u", of(worker_pod(cpu="3")), at=after(10))
    made.advance(after(20))
    assert lent(made) == 40


def test_what_an_earlier_process_has_counted_is_not_counted_again() -> None:
    made = account(counted=after(50))
    made.put("runs", of(worker_pod()), at=after(200))
    made.put("was counted", of(worker_pod("Succeeded", ended=after(30))), at=after(200))
    made.put("ended meanwhile", of(worker_pod("Succeeded", ended=after(120))), at=after(200))
    made.advance(after(200))
    assert lent(made) == 150 + 0 + 70


def test_a_pod_whose_cluster_is_ahead_counts_once_our_clock_has_reached_its_start() -> None:
    made = account()
    assert not made.put("u", of(worker_pod(bound=after(30))), at=START)
    made.advance(after(10))
    assert lent_or_nothing(made) == 0
    made.advance(after(35))
    assert lent(made) == 5
    made.put("u", of(worker_pod("Succeeded", bound=after(30), ended=after(90))), at=after(60))
    made.advance(after(60))
    assert lent(made) == 60


def lent_or_nothing(of: Account) -> float:
    return lent(of) if of.ledger.total else 0.0
