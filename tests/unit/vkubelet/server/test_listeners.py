"""Which ports are tried for a node, and in which order."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from vkubelet.server.listeners import ports_for


@given(st.text(min_size=1), st.integers(1, 100), st.integers(0, 30))
def test_every_port_of_the_range_is_tried_once(node: str, first: int, more: int) -> None:
    ports = list(ports_for(node, first=first, last=first + more))
    assert sorted(ports) == list(range(first, first + more + 1))


@given(st.text(min_size=1), st.integers(20000, 20050))
def test_the_published_port_comes_first_and_only_once(node: str, preferred: int) -> None:
    ports = list(ports_for(node, preferred, first=20000, last=20050))
    assert ports[0] == preferred
    assert sorted(ports) == list(range(20000, 20051))


@given(st.text(min_size=1), st.one_of(st.integers(1, 19999), st.integers(20051, 65535)))
def test_a_published_port_outside_the_range_is_not_tried(node: str, preferred: int) -> None:
    assert sorted(ports_for(node, preferred, first=20000, last=20050)) == list(range(20000, 20051))


def test_the_first_choice_is_the_same_in_every_process() -> None:
    assert list(islice(ports_for("vnode-a", first=15000, last=29999), 2)) == [26839, 26840]


def test_names_spread_over_the_range() -> None:
    chosen = {next(ports_for(f"vnode-{number}", first=15000, last=29999)) for number in range(1000)}
    assert len(chosen) > 900


def test_probing_wraps_around() -> None:
    ports = list(ports_for("wrap", first=10, last=13))
    steps = {(after - before) % 4 for before, after in zip(ports, ports[1:], strict=False)}
    assert steps == {1}
