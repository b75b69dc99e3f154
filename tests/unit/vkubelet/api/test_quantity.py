"""Quantities are exact and written as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.quantity import (
    Format,
    Quantity,
    add_resources,
    format_resources,
    max_resources,
    parse_resources,
    subtract_resources,
)

QUANTITIES = st.builds(Quantity, st.integers(-(10**30), 10**30), st.sampled_from(Format))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0Ki", "0"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("0.1", "100m"),
        (".5", "500m"),
        ("5.", "5"),
        ("+3", "3"),
        ("-3k", "-3k"),
        ("3000", "3k"),
        ("3100", "3100"),
        ("12000000", "12M"),
        ("1024", "1024"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("1536Mi", "1536Mi"),
        ("0.5Mi", "512Ki"),
        ("0.5Ki", "512"),
        ("2Ei", "2Ei"),
        ("1E", "1E"),
        ("1e3", "1e3"),
        ("12e4", "120e3"),
        ("1E3", "1e3"),
        ("1e-3", "1e-3"),
        ("100e-2", "1"),
        ("1n", "1n"),
        ("1000n", "1u"),
        ("0.5n", "1n"),
        ("-0.5n", "-1n"),
        ("0.0000000001Ki", "103n"),
        ("1.0001Ki", "1024102400u"),
    ],
)
def test_text_comes_out_as_kubernetes_prints_it(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(("number", "canonical"), [(3, "3"), (4000, "4k"), (1.5, "1500m"), (0, "0"), (1e16, "10e15")])
def test_json_numbers_are_quantities_too(number: float, canonical: str) -> None:
    assert str(Quantity.parse(number)) == canonical


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1 Gi", "1KI", "1ki", "1kk", "1e", "1e1.5", "1.2.3", "--1", "abc", "1mi", "٣", "1e999999999", "9" * 200, "NaN"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        Quantity.parse(text)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="quantity"):
        Quantity.parse(value)


def test_tiny_exponents_are_rounded_away_from_zero_without_effort() -> None:
    assert str(Quantity.parse("1e-999999999")) == "1e-9"


def test_scaling_rounds_away_from_zero() -> None:
    quantity = Quantity.parse("1001m")
    assert (quantity.value(), quantity.milli(), quantity.scaled("k")) == (2, 1001, 1)
    assert Quantity.parse("-1001m").value() == -2
    assert Quantity.parse("1Gi").scaled("Mi") == 1024
    assert Quantity.parse("1").scaled("Ki") == 1


def test_floor_cuts_to_whole_units() -> None:
    assert str(Quantity.parse("2999m").floor()) == "2"
    assert str(Quantity.parse("1.2345").floor("m")) == "1234m"
    assert str(Quantity.parse("1999Ki").floor("Mi")) == "1Mi"


@pytest.mark.parametrize(
    ("text", "share", "result"), [("4", 50, "2"), ("333m", 50, "166500u"), ("8Gi", 75, "6Gi"), ("3", 0, "0"), ("1n", 50, "0")]
)
def test_percent_is_exact_to_the_billionth(text: str, share: int, result: str) -> None:
    assert str(Quantity.parse(text).percent(share)) == result


def test_sum_keeps_the_format_of_its_left_side_unless_that_is_zero() -> None:
    assert str(Quantity.parse("1Gi") + Quantity.parse("1024")) == "1048577Ki"
    assert str(Quantity() + Quantity.parse("2Gi")) == "2Gi"
    assert str(Quantity.parse("1k") - Quantity.parse("1Ki")) == "-24"


def test_equal_amounts_are_equal_however_written() -> None:
    assert Quantity.parse("1Ki") == Quantity.parse("1024")
    assert len({Quantity.parse("1"), Quantity.parse("1000m"), Quantity.parse("1e0")}) == 1
    assert Quantity.parse("1") != "1"
    assert max(Quantity.parse("1G"), Quantity.parse("1Gi")) == Quantity.parse("1Gi")


@given(QUANTITIES)
def test_canonical_text_parses_to_the_same_amount_and_text(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    # 25000 of a binary format has no suffix, and so is read as a decimal one: 25k.
    assert str(again) == str(quantity) or str(quantity).lstrip("-").isdecimal()
    assert str(Quantity.parse(str(again))) == str(again)


@given(QUANTITIES, QUANTITIES)
def test_difference_undoes_sum(a: Quantity, b: Quantity) -> None:
    assert a + b - b == a
    assert (a < b) == (b - a > Quantity())


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**12), max_value=10**12))
def test_decimals_keep_their_value(number: Decimal) -> None:
    assert Decimal(Quantity.parse(f"{number:f}").nanos) == number * 10**9


@given(QUANTITIES, st.sampled_from(["m", "1", "Ki", "G"]))
def test_floor_and_scaled_enclose_the_amount(quantity: Quantity, unit: str) -> None:
    assert quantity.floor(unit) <= quantity  # type: ignore[arg-type]
    if quantity > Quantity():
        assert quantity.floor(unit).scaled(unit) <= quantity.scaled(unit)  # type: ignore[arg-type]


def test_resource_lists_add_subtract_and_compare_by_name() -> None:
    a, b = parse_resources({"cpu": "1", "memory": "1Gi"}), parse_resources({"cpu": "500m", "pods": 3})
    assert format_resources(add_resources(a, b)) == {"cpu": "1500m", "memory": "1Gi", "pods": "3"}
    assert format_resources(subtract_resources(a, b)) == {"cpu": "500m", "memory": "1Gi"}
    assert format_resources(max_resources(a, b)) == {"cpu": "1", "memory": "1Gi", "pods": "3"}


def test_bad_resource_list_names_the_resource() -> None:
    with pytest.raises(ValueError, match="memory"):
        parse_resources({"cpu": "1", "memory": "lots"})
