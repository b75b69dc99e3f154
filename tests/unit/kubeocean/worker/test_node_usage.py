"""A virtual node uses what its pods use; its CPU time only grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.worker.exposition import Reading
from kubeocean.worker.node_usage import CpuMeter, node_series


def test_the_first_total_is_the_sum_of_the_pods() -> None:
    assert CpuMeter().add({"a": 5, "b": 7}, alive={"a", "b"}) == 12


def test_what_a_pod_used_still_counts_when_it_is_gone() -> None:
    meter = CpuMeter()
    meter.add({"a": 5, "b": 7}, alive={"a", "b"})
    assert meter.add({"b": 8}, alive={"b"}) == 13
    assert meter.add({}, alive=set()) == 13


def test_a_pod_that_is_missing_from_one_page_is_not_counted_twice() -> None:
    meter = CpuMeter()
    meter.add({"a": 5}, alive={"a"})
    meter.add({}, alive={"a"})
    assert meter.add({"a": 6}, alive={"a"}) == 6


def test_a_counter_that_went_back_began_anew() -> None:
    meter = CpuMeter()
    meter.add({"a": 5}, alive={"a"})
    assert meter.add({"a": 2}, alive={"a"}) == 7


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 100)), max_size=20))
def test_neither_total_nor_time_go_back(pages: list[dict[str, int]]) -> None:
    meter, totals, times = CpuMeter(), [0], [0]
    for page in pages:
        totals.append(meter.add(page, alive=page.keys(), at=sum(page.values())))
        times.append(meter.at)
    assert totals == sorted(totals) and times == sorted(times)


def values(text: bytes) -> dict[str, tuple[float, float | None]]:
    families = text_string_to_metric_families(text.decode())
    return {sample.name: (sample.value, sample.timestamp) for family in families for sample in family.samples}


def test_series_of_the_node_are_sums_with_the_time_of_the_meter() -> None:
    meter = CpuMeter(total=3_500_000_001, at=1633253810002)
    text = node_series([Reading(memory=100), Reading(memory=50, swap=4), Reading(cpu=1)], meter)
    assert values(text) == {
        "node_cpu_usage_seconds_total": (3.500000001, 1633253810.002),
        "node_memory_working_set_bytes": (150, 1633253810.002),
        "node_swap_usage_bytes": (4, 1633253810.002),
    }


def test_an_idle_node_says_the_least_that_is_not_taken_for_missing() -> None:
    assert values(node_series([], CpuMeter(at=1000))) == {
        "node_cpu_usage_seconds_total": (1e-9, 1.0),
        "node_memory_working_set_bytes": (1, 1.0),
    }
