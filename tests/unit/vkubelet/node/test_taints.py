"""The taint list is shared; only our keys move."""

from vkubelet.node.taints import with_added, without_dropped
from vkubelet.provider import Taint

FOREIGN = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
OURS = Taint("kubeocean.io/vnode", "NoSchedule")


def test_missing_taint_is_added_after_foreign_ones() -> None:
    assert with_added([FOREIGN], [OURS]) == [FOREIGN, {"key": "kubeocean.io/vnode", "effect": "NoSchedule"}]


def test_a_new_one_comes_before_the_next_of_ours() -> None:
    live = [{"key": "last", "effect": "NoSchedule"}, {"key": "foreign", "effect": "NoExecute"}]
    wanted = [Taint(key=key, effect="NoSchedule") for key in ("first", "middle", "last", "after", "end")]
    assert [taint["key"] for taint in with_added(live, wanted)] == ["first", "middle", "last", "foreign", "after", "end"]


def test_adding_never_removes_what_is_not_wanted_any_more() -> None:
    old = {"key": "kubeocean.io/old", "effect": "NoSchedule"}
    assert old in with_added([old], [OURS])


def test_changed_value_is_corrected_and_keeps_the_time_of_the_first_addition() -> None:
    live = [{"key": "w", "value": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]
    assert with_added(live, [Taint("w", "NoExecute", "b", time_added="2026-02-02T00:00:00Z")]) == [
        {"key": "w", "value": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    ]


def test_dropped_key_of_ours_goes_and_foreign_keys_stay() -> None:
    live = [FOREIGN, {"key": "kubeocean.io/old", "effect": "NoSchedule"}]
    assert without_dropped(live, [OURS], owned=["kubeocean.io/old"]) == [FOREIGN]


def test_key_we_never_set_is_not_removed_even_if_unwanted() -> None:
    live = [{"key": "kubeocean.io/old", "effect": "NoSchedule"}]
    assert without_dropped(live, [OURS], owned=[]) == live


def test_changed_effect_removes_the_old_entry_of_our_key() -> None:
    live = [{"key": "w", "effect": "NoSchedule"}, {"key": "w", "effect": "NoExecute"}]
    assert without_dropped(live, [Taint("w", "NoExecute")], owned=["w"]) == [{"key": "w", "effect": "NoExecute"}]
