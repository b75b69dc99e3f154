"""Capacity over time and the ledger stay bounded and count only what was observed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from attrs import evolve

from kubeocean.dashboard.fleet import Fleet, NodeState, PodState
from kubeocean.dashboard.history import LONGEST_GAP, MOST_ACCOUNTS, MOST_SAMPLES, OTHERS, History, Ledger, sample_of
from kubeocean.model.node_state import CLOSED, OPEN
from kubeocean.settings import LONGEST_READING
from tests.unit.kubeocean.builders import at
from vkubelet.api.quantity import parse_resources
from vkubelet.testing.clock import ManualClock

START = at("2026-01-05 09:00")
CLOCK = ManualClock(START)
AMOUNTS = parse_resources({"cpu": "4", "memory": "8Gi"})


def node(name: str = "v", *, state: str = OPEN) -> NodeState:
    return NodeState(name=name, binding="demo", physical="p", state=state, why="", policy="", offered=AMOUNTS, requested=AMOUNTS, pods=1)


def pod(namespace: str = "team", *, phase: str = "Running", node: str = "v", leased: bool = True) -> PodState:
    return PodState(
        namespace=namespace, name="p", uid=namespace, node=node, phase=phase, waits="", created=START, requests=AMOUNTS, leased=leased
    )


def fleet(*pods: PodState, minutes: float = 0, nodes: tuple[NodeState, ...] = (node(),)) -> Fleet:
    return Fleet(at=START + timedelta(minutes=minutes), nodes=nodes, pods=pods)


def test_only_open_nodes_offer_capacity() -> None:
    made = sample_of(fleet(nodes=(node(), node("w", state=CLOSED))))
    assert (made.cpu, made.memory, made.open, made.nodes, made.requested_cpu) == (4.0, 8.0, 1, 2, 8.0)
    assert sample_of(Fleet(at=START, nodes=[node()])).requested_cpu is None, "unknown is not zero"


def test_samples_are_bounded_and_cover_the_whole_time() -> None:
    history, first = History(), sample_of(fleet())
    for number in range(20_000):
        history.add(evolve(first, at=START + timedelta(seconds=10 * number)))
    assert MOST_SAMPLES / 2 <= len(history.samples) <= MOST_SAMPLES and history.samples[0].at == START
    gaps = [after.at - before.at for before, after in zip(history.samples, history.samples[1:], strict=False)]
    assert max(gaps) <= 3 * min(gaps) and history.samples[-1].at > START + timedelta(seconds=190_000)


async def test_requests_count_from_one_reading_to_the_next() -> None:
    ledger = Ledger()
    for number in range(31):
        pods = (pod(), pod("done", phase="Succeeded"), pod("elsewhere", node="real"), pod("kube-system", leased=False))
        await ledger.add(fleet(*pods, minutes=number), CLOCK)
    (account,) = ledger.accounts()
    assert (account.namespace, account.binding) == ("team", "demo") and ledger.observed == timedelta(minutes=30)
    assert (account.cpu_hours, account.memory_gib_hours, account.pod_hours) == pytest.approx((2.0, 4.0, 0.5))


async def test_a_gap_in_the_readings_is_not_counted() -> None:
    ledger = Ledger()
    for minutes in (0, 1, 1 + LONGEST_GAP.total_seconds() / 60 + 1):
        await ledger.add(fleet(pod(), minutes=minutes), CLOCK)
    await ledger.add(Fleet(at=START + timedelta(hours=1), nodes=[node()]), CLOCK)
    assert ledger.observed == timedelta(minutes=1) and ledger.accounts()[0].pod_hours == pytest.approx(1 / 60)


async def test_accounts_are_bounded_and_the_rest_is_named() -> None:
    ledger = Ledger()
    many = [pod(f"n{number}") for number in range(MOST_ACCOUNTS + 50)]
    await ledger.add(fleet(*many), CLOCK)
    await ledger.add(fleet(*many, minutes=1), CLOCK)
    found = {each.namespace: each for each in ledger.accounts()}
    assert len(found) == MOST_ACCOUNTS + 1 and found[OTHERS].pod_hours == pytest.approx(50 / 60)


async def test_the_longest_interval_between_readings_is_no_gap() -> None:
    ledger = Ledger()
    for number in range(4):
        await ledger.add(fleet(pod(), minutes=number * 1.5 * LONGEST_READING / 60), CLOCK)
    assert ledger.observed == timedelta(seconds=3 * 1.5 * LONGEST_READING)
