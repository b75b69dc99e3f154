"""The series we publish, and that none can grow with the cluster."""

import asyncio

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from vkubelet.clock import SystemClock
from vkubelet.metrics import Metrics

EXPECTED = """
    vkubelet_nodes vkubelet_pods vkubelet_reconcile vkubelet_reconcile_seconds vkubelet_queue_depth vkubelet_queue_oldest_seconds
    vkubelet_watch_events vkubelet_watch_restarts vkubelet_api_seconds vkubelet_lease_lateness_seconds vkubelet_status_lag_seconds
    vkubelet_streams vkubelet_loop_lag_seconds vkubelet_watch_stale_seconds
    kubelet_http_requests kubelet_http_requests_duration_seconds kubelet_http_inflight_requests
    kubelet_certificate_manager_server_ttl_seconds kubelet_certificate_manager_server_rotation_seconds
    kubelet_server_expiration_renew_errors kubelet_admission_rejections
"""


def test_every_series_of_the_architecture_exists_and_no_other() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    assert {family.name for family in registry.collect()} == set(EXPECTED.split())


def test_no_label_names_a_pod_or_a_node() -> None:
    labels = [name for instrument in vars(Metrics()).values() for name in getattr(instrument, "_labelnames", ())]
    assert labels
    assert not set(labels) & {"pod", "node", "namespace", "name", "uid"}


async def test_rendering_is_prometheus_text_with_counters_ending_in_total() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.reconcile_total.labels("pods", "success").inc()
    metrics.watch_events.labels("pods", "ADDED").inc(3)
    text = (await metrics.scrape(SystemClock())).decode()
    samples = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["vkubelet_reconcile_total"] == 1
    assert samples["vkubelet_watch_events_total"] == 3


async def test_own_registry_tells_of_the_process_and_two_do_not_collide() -> None:
    Metrics()
    assert b"process_open_fds" in await Metrics().scrape(SystemClock())


def test_staleness_is_that_of_the_most_silent_watch_of_a_resource_and_ends_with_it() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)

    def told() -> float | None:
        return registry.get_sample_value("vkubelet_watch_stale_seconds", {"resource": "pods"})

    with metrics.watch_stale.watched("pods", lambda: 3.0):
        with metrics.watch_stale.watched("pods", lambda: 7.0):
            assert told() == 7
        assert told() == 3
    assert told() is None


async def test_series_of_a_provider_are_told_by_the_process_and_not_by_its_nodes() -> None:
    metrics = Metrics(CollectorRegistry())
    Gauge("mine", "Of a provider.", registry=metrics.provider).set(3)
    of_process, of_node = await metrics.scrape(SystemClock()), await metrics.scrape(SystemClock(), provider=False)
    assert b"mine 3.0" in of_process and b"mine" not in of_node
    assert of_process.startswith(of_node)


async def test_other_tasks_run_between_two_families_of_a_scrape() -> None:
    metrics, turns = Metrics(CollectorRegistry()), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await metrics.scrape(SystemClock())
    counting.cancel()
    assert turns >= len(list(metrics.registry.collect())) > 10
