"""Tests of fleet.commands.get."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.commands.get import problem
from fleet.core.view import Door, Health, View

GOOD = {"name": "w1", "door": Door.OCM, "accepted": True, "joined": True, "health": Health("True")}


@pytest.mark.parametrize(
    ("changes", "pending", "words"),
    [
        ({}, False, ""),
        ({"accepted": False, "joined": False}, True, "a request waits for approval; on the hub run: fleet accept w1"),
        ({"accepted": False}, False, "not accepted; on the hub run: fleet accept w1"),
        ({"joined": False}, True, "fleet accept w1"),
        ({"joined": False}, False, "in the worker run: fleet join"),
        ({}, True, "the renewal of its certificate, or another cluster of its name"),
        ({"leaving": True}, False, "fleet leave w1"),
        ({"health": Health("Unknown", cause="ManagedClusterLeaseUpdateStopped")}, False, "ManagedClusterLeaseUpdateStopped; in the worker"),
    ],
)
def test_f_15_a_table_shows_what_is_wrong_and_what_to_do(changes: dict[str, Any], pending: bool, words: str) -> None:
    found = problem(View(**{**GOOD, **changes}), {"w1"} if pending else set())
    assert words in found and bool(words) == bool(found)
