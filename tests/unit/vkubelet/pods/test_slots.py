"""Who syncs, who waits, and who is next; a pod that waits holds no worker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkubelet.control.workqueue import Priority
from vkubelet.pods.slots import Slots

HIGH, LOW = Priority.HIGH, Priority.LOW


def scene(limit: int) -> tuple[Slots, list[str]]:
    woken = list[str]()
    return Slots(limit, wake=lambda uid, priority: woken.append(uid)), woken


def test_pods_are_woken_by_priority_and_then_in_order() -> None:
    slots, woken = scene(1)
    assert slots.take("a", LOW)
    assert not any(slots.take(uid, LOW) for uid in ("b", "c", "b"))
    assert not slots.take("d", HIGH)
    for expected in ("d", "b", "c"):
        slots.free({"d": "a", "b": "d", "c": "b"}[expected])
        assert woken[-1] == expected
        assert slots.take(expected, LOW)


def test_a_waiting_pod_moves_up_when_it_becomes_urgent() -> None:
    slots, woken = scene(1)
    assert slots.take("a", LOW)
    assert not any(slots.take(uid, LOW) for uid in ("b", "c"))
    assert not slots.take("c", HIGH)
    assert not slots.take("c", LOW)
    slots.free("a")
    assert woken == ["c"]


def test_a_granted_slot_is_kept_for_its_pod_until_it_is_dropped() -> None:
    slots, woken = scene(1)
    assert slots.take("a", LOW)
    assert not any(slots.take(uid, LOW) for uid in ("b", "c"))
    slots.free("a")
    assert not slots.take("late", HIGH)
    slots.drop("b")
    assert woken == ["b", "late"]
    assert slots.take("late", HIGH)
    slots.drop("c")
    slots.free("late")
    assert woken == ["b", "late"]
    assert not len(slots)


@given(st.lists(st.tuples(st.sampled_from(["take", "free", "drop"]), st.integers(0, 5), st.sampled_from(Priority)), max_size=60))
def test_no_slot_is_lost_and_none_is_given_twice(steps: list[tuple[str, int, Priority]]) -> None:
    slots, _ = scene(2)
    used = set[str]()
    for step, number, priority in steps:
        uid = str(number)
        if step == "take" and uid not in used and slots.take(uid, priority):
            used.add(uid)
        elif step == "free" and uid in used:
            used.discard(uid)
            slots.free(uid)
        elif step == "drop" and uid not in used:
            slots.drop(uid)
        assert len(used) <= 2
        assert len(slots) == 0 or len(used) + len(slots._granted) == 2
