"""The numbered lines of the specification and their tests."""

from __future__ import annotations

import pytest

from tests.support.fleet_lines import LATER, LINES, SEED, TESTS, by_line, numbers, picked, untested


def test_every_line_that_has_been_built_has_a_test_of_its_name() -> None:
    found = by_line(TESTS.rglob("test_*.py"))
    assert untested(found) == [] and not {number for number in LATER if number in found}
    assert set(LATER) < set(LINES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_f_12_f_13_f_14_three_lines", {12, 13, 14}),
        ("test_f_175_to_f_180_reasons", set(range(175, 181))),
        ("test_half_12_of_something", set()),
        ("test_f_1_a_process", {1}),
    ],
)
def test_lines_are_read_from_the_name_of_a_test(name: str, expected: set[int]) -> None:
    assert numbers(name) == expected


def test_a_line_without_a_test_is_reported() -> None:
    assert 113 in untested({}) and not set(LATER) & set(untested({}))


def test_twelve_lines_have_a_mutant_that_one_of_their_tests_finds() -> None:
    found = by_line(TESTS.rglob("test_*.py"))
    for number in picked(found, SEED):
        patch = (TESTS / "mutants" / f"fleet-f-{number}.patch").read_text()
        assert any(f"Caught-by: tests/{each.path}::{each.name}\n" in patch for each in found[number]), f"F-{number}"
