"""Tests of kubeocean.model.limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.limits import ResourceLimit, leased, left_over
from vkubelet.api.quantity import ZERO, Quantity, format_resources, parse_resources


def quantity(text: str) -> Quantity:
    return Quantity.parse(text)


@pytest.mark.parametrize(
    ("allocatable", "used", "limits", "expected"),
    [
        # The reference figures of spec/kubeocean.md 3.5.
        (
            {"cpu": "4", "memory": "8Gi"},
            {"cpu": "500m", "memory": "1Gi"},
            [ResourceLimit("cpu", quantity("2")), ResourceLimit("memory", quantity("4Gi"))],
            {"cpu": "2", "memory": "4Gi"},
        ),
        (
            {"cpu": "4", "memory": "8Gi"},
            {"cpu": "1", "memory": "2Gi"},
            [ResourceLimit("cpu", quantity("3"), 50), ResourceLimit("memory", quantity("2Gi"), 75)],
            {"cpu": "1500m", "memory": "2Gi"},
        ),
        ({"cpu": "4", "memory": "8Gi"}, {"cpu": "1", "memory": "1Gi"}, [], {"cpu": "3", "memory": "7Gi"}),
        # Zero can be said, in both ways.
        ({"cpu": "4", "memory": "8Gi"}, {}, [ResourceLimit("cpu", percent=0)], {"cpu": "0", "memory": "8Gi"}),
        ({"cpu": "4"}, {}, [ResourceLimit("cpu", quantity("0"))], {"cpu": "0"}),
        # Whole units only, but for thousandths of a CPU.
        ({"nvidia.com/gpu": "3", "pods": "110"}, {}, [ResourceLimit("nvidia.com/gpu", percent=50), ResourceLimit("pods", percent=33)],
         {"nvidia.com/gpu": "1", "pods": "36"}),
        ({"cpu": "1001m"}, {}, [ResourceLimit("cpu", percent=50)], {"cpu": "500m"}),
        ({"memory": "1001"}, {}, [ResourceLimit("memory", percent=50)], {"memory": "500"}),
        # Each limit acts on what those before it left; unknown resources are passed over.
        ({"cpu": "4"}, {}, [ResourceLimit("cpu", percent=50), ResourceLimit("cpu", percent=50), ResourceLimit("x", percent=1)],
         {"cpu": "1"}),
        ({"cpu": "1"}, {"cpu": "3"}, [], {"cpu": "0"}),
    ],
)  # fmt: skip
def test_leased_amounts(allocatable: dict[str, str], used: dict[str, str], limits: list[ResourceLimit], expected: dict[str, str]) -> None:
    amounts = leased(left_over(parse_resources(allocatable), parse_resources(used)), limits)
    assert format_resources(amounts) == expected


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.one_of(st.none(), st.integers(0, 100)),
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]),
)
def test_amount_is_between_zero_and_what_is_left(have: int, used: int, most: int | None, percent: int | None, name: str) -> None:
    milli = Quantity.parse(f"{have}m")
    left = left_over({name: milli}, {name: Quantity.parse(f"{used}m")})
    limit = ResourceLimit(name, None if most is None else Quantity.parse(f"{most}m"), percent)
    amount = leased(left, [limit])[name]
    assert ZERO <= amount <= left[name] <= milli
    assert amount == amount.floor("m" if name == "cpu" else "1")


def test_limit_reads_as_in_policy_details() -> None:
    assert str(ResourceLimit("cpu", quantity("4"), 80)) == "cpu=4/80%"
    assert str(ResourceLimit("memory", percent=90)) == "memory=90%"
    assert str(ResourceLimit("memory", quantity("2Gi"))) == "memory=2Gi"
