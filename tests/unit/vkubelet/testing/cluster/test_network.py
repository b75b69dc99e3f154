"""Runs side by side, and the machine's own networks, are kept apart.

Invariant: pure; no address is configured here.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from vkubelet.testing.cluster.network import FIRST_NODE, LAST_NODE, NUMBERS, PORTS, Network, is_free, ranges

INTERFACE_NAME_LIMIT = 15


@pytest.mark.parametrize(
    ("destination", "free"),
    [
        ("default", True),
        ("192.0.2.0/24", True),
        ("10.77.5.0/24", True),
        ("10.77.4.0/24", False),
        ("10.77.4.9", False),
        ("10.132.0.0/16", False),
        ("10.132.7.0/24", False),
        ("10.0.0.0/8", False),
    ],
)
def test_a_number_is_free_when_no_route_touches_its_ranges(destination: str, free: bool) -> None:
    assert is_free(4, [destination]) is free


def test_ranges_of_different_numbers_do_not_overlap() -> None:
    flat = [network for number in range(NUMBERS) for network in ranges(number)]
    assert not [pair for pair in combinations(flat, 2) if pair[0].overlaps(pair[1])]


def test_names_of_interfaces_fit_the_kernel() -> None:
    network = Network(number=NUMBERS - 1, host_address="10.77.63.1")
    assert len(network.bridge) <= INTERFACE_NAME_LIMIT
    assert len(network.host_link(LAST_NODE)) <= INTERFACE_NAME_LIMIT


def test_a_node_has_routes_to_the_pods_of_all_others_but_not_to_its_own() -> None:
    lines = Network(number=3, host_address="10.77.3.1").pod_routes(7).splitlines()
    assert "route add 10.131.8.0/24 via 10.77.3.8" in lines
    assert not [line for line in lines if "10.131.7.0" in line]
    assert len(lines) == LAST_NODE - FIRST_NODE


def test_ports_lie_below_those_that_clients_get() -> None:
    assert PORTS.stop <= 32768
