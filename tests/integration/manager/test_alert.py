"""The alert rule of the manager names a series that it tells, and fires in a real Prometheus."""

from __future__ import annotations

from pathlib import Path

from tests.integration.manager.conftest import Computing, MakeBinding
from tests.support.program import eventually
from tests.support.prometheus import Prometheus, metrics_of, rules

ALERT = "KubeoceanBindingFailed"


async def test_a_binding_that_can_not_be_served_fires_the_alert_until_it_is_gone(
    computing: Computing, bind: MakeBinding, tmp_path: Path
) -> None:
    """Line 13 of kubeocean-behaviour.md."""
    (rule,) = [{**rule, "for": "0s"} for rule in rules() if rule["alert"] == ALERT]
    jobs = [{"job_name": "manager", "static_configs": [{"targets": [f"127.0.0.1:{computing.metrics_port}"]}]}]
    (series,) = metrics_of(rule["expr"])
    with Prometheus(tmp_path, jobs, [rule]) as prometheus:
        await eventually(lambda: prometheus.query(f'{series}{{status="Failed"}} == 0'), f"{series} is told", seconds=60)
        # One that a test before has left is forgotten with the next evaluation.
        await eventually(lambda: ALERT not in prometheus.firing(), f"{ALERT} does not fire")
        binding = bind(secret=False)
        alert = await eventually(lambda: prometheus.firing().get(ALERT), f"{ALERT} fires", seconds=60)
        assert float(alert["value"]) == 1
        print(alert["annotations"]["summary"])
        binding.delete()
        await eventually(lambda: ALERT not in prometheus.firing(), f"{ALERT} ends", seconds=60)
