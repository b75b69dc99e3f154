"""Tests of fleet.core.taints."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.api.clusters import Taint
from fleet.core.taints import Effect, as_managed_taints, as_member_taints, effect_of, with_health_taint

NOW = datetime(2026, 1, 1, tzinfo=UTC)
THEN = "2025-12-31T00:00:00Z"
PREFIX = "cluster.open-cluster-management.io/"
OTHERS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b"]), "effect": st.sampled_from(["NoSelect", "PreferNoSelect", "NoSelectIfNew"])},
        optional={"value": st.just("v"), "timeAdded": st.just(THEN), "foreign": st.just(1)},
    ),
    max_size=3,
)
OURS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from([f"{PREFIX}unavailable", f"{PREFIX}unreachable"]),
            "effect": st.sampled_from(["NoSelect", "NoSelectIfNew"]),
            "timeAdded": st.just(THEN),
        }
    ),
    max_size=3,
)


@pytest.mark.parametrize(
    ("effect", "meaning"),
    [
        ("NoSelect", Effect.BLOCK),
        ("NoSelectIfNew", Effect.BLOCK_NEW),
        ("NoSchedule", Effect.BLOCK_NEW),
        ("PreferNoSelect", Effect.PREFER_NOT),
    ],
)
def test_f_23_each_effect_has_one_meaning(effect: str, meaning: Effect) -> None:
    assert effect_of(Taint("a", effect)) is meaning


def test_f_27_taints_are_mirrored_as_far_as_kubefleet_has_their_effect() -> None:
    taints = [Taint("a", "NoSelect", "x"), Taint("a", "NoSelectIfNew", "x"), Taint("b", "NoSelectIfNew"), Taint("c", "PreferNoSelect")]
    assert as_member_taints(taints) == [{"key": "a", "value": "x", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]


def test_f_27_taints_of_a_member_are_mirrored_so_that_decisions_remain() -> None:
    assert as_managed_taints([Taint("a", "NoSchedule", "x"), Taint("b", "NoSchedule")]) == [
        {"key": "a", "value": "x", "effect": "NoSelectIfNew"},
        {"key": "b", "effect": "NoSelectIfNew"},
    ]


@given(OTHERS, OURS, st.sampled_from(["True", "False", "Unknown", ""]))
def test_f_142_one_taint_at_most_tells_the_health_and_others_stay(
    others: list[dict[str, object]], ours: list[dict[str, object]], available: str
) -> None:
    found = with_health_taint([*others[:1], *ours, *others[1:]], available, now=NOW)
    assert [each for each in found if not str(each["key"]).startswith(PREFIX)] == others
    expected = {"True": [], "False": ["unavailable"], "Unknown": ["unreachable"], "": ["unreachable"]}[available]
    mine = [each for each in found if str(each["key"]).startswith(PREFIX)]
    assert [str(each["key"]).removeprefix(PREFIX) for each in mine] == expected
    assert all(each["effect"] == "NoSelect" and each["timeAdded"] for each in mine)
    assert with_health_taint(found, available, now=NOW) == found


def test_f_142_a_taint_that_is_set_keeps_its_time_and_a_new_one_has_its_own() -> None:
    old = {"key": f"{PREFIX}unreachable", "effect": "NoSelect", "timeAdded": THEN}
    assert with_health_taint([old], "Unknown", now=NOW) == [old]
    assert with_health_taint([old], "False", now=NOW) == [
        {"key": f"{PREFIX}unavailable", "effect": "NoSelect", "timeAdded": "2026-01-01T00:00:00Z"}
    ]
