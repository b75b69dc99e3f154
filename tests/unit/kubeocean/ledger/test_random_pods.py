"""The ledger of 500 random pods equals a sum that is written from the pods' own times alone, to 1 %.

Pods start, are resized, terminate and vanish while processes crash between two writes, are down, and follow one another as leaders; windows
of the policies open and close, and hours leave the last day. What a process knows is what it has observed, with the delay of a watch, and
what the one before has stored as text.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from attrs import define, field, frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeocean.leasing.policy import Terms
from kubeocean.ledger.account import Cell, Ledger, Part
from kubeocean.ledger.held import Account, held
from kubeocean.ledger.text import Texts, parse
from kubeocean.ledger.turns import Turns
from tests.unit.kubeocean.builders import at, binding, pod, policy
from vkubelet.api.objects import Pod
from vkubelet.api.quantity import Resources
from vkubelet.clock import rfc3339

PODS = 500
BEGIN = at("2026-01-05 05:10")
LASTS = timedelta(hours=30)
LONGEST_PAUSE = 120
"""Seconds between two processes."""
END = BEGIN + LASTS
TERMS = Terms.of(binding(), process_zone="UTC")
# Ordered as `matching` orders them: the best first.
POLICIES = [
    policy("day", {"timeWindows": [{"start": "08:00", "end": "19:59"}], "priority": 1}),
    policy("night", {"timeWindows": [{"start": "20:00", "end": "07:59"}]}),
]
MEBIBYTE = 1 << 20
Sums = dict[tuple[Any, ...], float]


@frozen(kw_only=True)
class Life:
    """One pod: CPU (millicores) from each moment on, when its containers terminated, and when its object was deleted."""

    uid: str
    node: str
    space: str
    memory: int
    steps: Sequence[tuple[datetime, int]]
    end: datetime
    gone: datetime
    shows_end: bool
    """Whether its status shows when its containers terminated before the object is deleted."""

    @property
    def moments(self) -> list[datetime]:
        """When the API server has news of it."""
        return sorted({*(moment for moment, _ in self.steps), *((self.end,) if self.shows_end else ()), self.gone})

    def seen(self, moment: datetime) -> Pod | None:
        """The object at a moment."""
        if not self.steps[0][0] <= moment < self.gone:
            return None
        cpu = [cpu for since, cpu in self.steps if since <= moment][-1]
        status: dict[str, Any] = {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(self.steps[0][0])}],
        }
        if self.shows_end and self.end <= moment:
            ended = {"terminated": {"exitCode": 0, "finishedAt": rfc3339(self.end)}}
            status |= {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": ended}]}
        requests = {"cpu": f"{cpu}m", "memory": f"{self.memory}Mi"}
        spec = {"nodeName": self.node, "containers": [{"name": "main", "image": "i", "resources": {"requests": requests}}]}
        return pod(spec, status=status, uid=self.uid)


def lives(rnd: random.Random) -> list[Life]:
    return [life(rnd, number) for number in range(PODS)]


def life(rnd: random.Random, number: int) -> Life:
    start = BEGIN + timedelta(seconds=rnd.randrange(int(LASTS.total_seconds()) - 600))
    seconds = min(int(rnd.lognormvariate(8.0, 1.2)) + 5, 12 * 3600)
    end = start + timedelta(seconds=seconds)
    resizes = sorted(rnd.randrange(1, seconds) for _ in range(rnd.choice((0, 0, 0, 1, 2))))
    steps = [(start, rnd.randrange(100, 4000))] + [
        (start + timedelta(seconds=at), rnd.randrange(100, 4000)) for at in dict.fromkeys(resizes)
    ]
    shows_end = rnd.random() < 0.9
    return Life(
        uid=f"uid-{number}",
        node=f"node-{rnd.randrange(5)}",
        space=f"team-{rnd.randrange(4)}",
        memory=rnd.randrange(64, 8192),
        steps=steps,
        end=end,
        gone=end + timedelta(seconds=rnd.choice((1, 30, 3600)) if shows_end else 0),
        shows_end=shows_end,
    )


def expected(all_: Sequence[Life], until: datetime) -> Sums:
    """Resource-seconds by hour, policy, node, namespace and resource, from the times of the pods alone."""
    sums: Sums = defaultdict(float)
    for one in all_:
        bounds = [*(moment for moment, _ in one.steps), one.end]
        for (start, cpu), stop in zip(one.steps, bounds[1:], strict=True):
            begun, over = start, min(stop, until)
            while begun < over:
                hour = begun.replace(minute=0, second=0, microsecond=0)
                next_ = min(over, hour + timedelta(hours=1))
                seconds = (next_ - begun).total_seconds()
                # The windows open and close on the hour.
                deciding = "day" if 8 <= hour.hour < 20 else "night"
                for name, amount in (("cpu", cpu / 1000), ("memory", one.memory * MEBIBYTE), ("pods", 1)):
                    sums[hour, deciding, one.node, one.space, name] += amount * seconds
                begun = next_
    return sums


@define
class Stored:
    """The ConfigMap: a write that is based on another version is refused."""

    data: dict[str, str] = field(factory=dict)
    version: int = 0

    def write(self, data: dict[str, str], *, based_on: int) -> bool:
        if based_on != self.version:
            return False
        self.data, self.version = data, self.version + 1
        return True


@define
class Process:
    """What one process observes between its start and its death; it has written last some time before that."""

    stored: Stored
    account: Account
    version: int

    @classmethod
    def start(cls, stored: Stored, now: datetime, everything: Sequence[Life]) -> Process:
        ledger, turns = parse(stored.data), Turns()

        def deciders(node: str, start: datetime, end: datetime) -> Sequence[Part]:
            return turns.parts(POLICIES, TERMS, start=start, end=end)

        made = cls(stored, Account(ledger or Ledger.begin(now), deciders, ledger.through if ledger else BEGIN), stored.version)
        for each in everything:
            made.observe(each, as_of=now, now=now)
        return made

    def observe(self, one: Life, *, as_of: datetime, now: datetime) -> None:
        found = one.seen(as_of)
        if found is not None:
            now_held = held(found, one.space)
            assert now_held is not None
            self.account.put(one.uid, now_held, at=now)
        elif one.gone <= as_of:
            self.account.remove(one.uid, end=now, at=now)

    def write(self, now: datetime) -> bool:
        self.account.advance(now)
        written = self.stored.write(Texts().render(self.account.ledger), based_on=self.version)
        self.version = self.stored.version if written else self.version
        return written


def run(rnd: random.Random, everything: Sequence[Life], *, crashes: int) -> Ledger:
    """Runs processes one after the other until the end; returns the last ledger."""
    stored, now = Stored(), BEGIN
    deaths = sorted(BEGIN + timedelta(seconds=rnd.uniform(60, LASTS.total_seconds() - LONGEST_PAUSE - 60)) for _ in range(crashes))
    news = sorted((moment, number) for number, one in enumerate(everything) for moment in one.moments)
    for death in [*deaths, END]:
        if death <= now:
            continue
        process = Process.start(stored, now, everything)
        # At most half a minute before it dies, and a second at least after what is not written yet.
        last_write = max(now, death - timedelta(seconds=rnd.uniform(1, 30) if death != END else 0))
        for moment, number in news:
            seen_at = moment + timedelta(seconds=rnd.uniform(0.05, 1.0))
            if now < moment and seen_at < last_write:
                process.observe(everything[number], as_of=moment, now=seen_at)
        assert process.write(last_write)
        for moment, number in news:
            if now < moment and last_write <= moment + timedelta(seconds=1.0) < death:
                process.observe(everything[number], as_of=moment, now=moment + timedelta(seconds=1.0))
        if death != END and rnd.random() < 0.5:
            # It only stood still: another leader has started meanwhile, and its own write is refused.
            follower = Process.start(stored, death, everything)
            assert follower.write(death) and not process.write(death + timedelta(seconds=20))
        now = death + timedelta(seconds=rnd.choice((2, 15, LONGEST_PAUSE)))
    ledger = parse(stored.data)
    assert ledger is not None and ledger.through == END
    return ledger


def flat(sums: dict[Cell, Resources]) -> Iterator[tuple[Cell, str, float]]:
    for cell, lent in sums.items():
        for name, amount in lent.items():
            yield cell, name, amount.nanos / 1e9


DIMENSIONS: list[tuple[str, Callable[[Cell], Any], Callable[[tuple[Any, ...]], Any]]] = [
    ("binding", lambda cell: "", lambda key: ""),
    ("policy", lambda cell: cell.policy, lambda key: key[1]),
    ("node", lambda cell: cell.node, lambda key: key[2]),
    ("namespace", lambda cell: cell.namespace, lambda key: key[3]),
]


def assert_equal(sums: dict[Cell, Resources], wanted: Sums, *, by: Callable[[Cell], Any], of: Callable[[tuple[Any, ...]], Any]) -> None:
    counted: Sums = defaultdict(float)
    for cell, name, amount in flat(sums):
        counted[by(cell), name] += amount
    reference: Sums = defaultdict(float)
    for key, amount in wanted.items():
        reference[of(key), key[4]] += amount
    assert counted.keys() == reference.keys()
    off = {key: counted[key] / reference[key] for key in reference if abs(counted[key] / reference[key] - 1) > 0.01}
    assert not off


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), crashes=st.integers(0, 12))
def test_the_ledger_equals_a_sum_of_the_times_of_500_pods(seed: int, crashes: int) -> None:
    rnd = random.Random(seed)
    everything = lives(rnd)
    ledger = run(rnd, everything, crashes=crashes)
    wanted = expected(everything, END)
    assert len(everything) == PODS and {key[1] for key in wanted} == {"day", "night"}
    first = END.replace(minute=0) - timedelta(hours=23)
    day = {key: amount for key, amount in wanted.items() if key[0] >= first}
    # The first hours have left the last day.
    assert len(day) < len(wanted)
    for _, by, of in DIMENSIONS:
        assert_equal(ledger.last_day(END), day, by=by, of=of)
    for _, by, of in DIMENSIONS[:2]:
        assert_equal(ledger.total, wanted, by=by, of=of)


def test_without_crashes_and_delays_the_ledger_is_exact() -> None:
    rnd = random.Random(7)
    everything = lives(rnd)
    # Ends that no status shows are known only as well as their deletion is seen.
    shown = [one for one in everything if one.shows_end and len(one.steps) == 1]
    ledger = run(rnd, shown, crashes=0)
    wanted = sum(amount for key, amount in expected(shown, END).items() if key[4] == "cpu")
    assert sum(amount for _, name, amount in flat(ledger.total) if name == "cpu") == pytest.approx(wanted, rel=1e-6)
