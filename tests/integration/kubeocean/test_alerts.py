"""Each alert rule of the chart names series that a real process tells, says exactly when it fires, and fires in a real Prometheus.

Invariant: what makes an alert fire is done to the process and its clusters. Where that would take minutes, the figure in the rule is made
smaller and nothing else; that the figures are what they say is judged by promtool.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import closed_now, patch_policy
from tests.integration.kubeocean.test_events import say
from tests.support.bound import Body, apply, delete, get
from tests.support.program import PATIENCE, eventually, holds
from tests.support.prometheus import ALERTS, Prometheus, dashboard_queries, metrics_of, promtool, rules
from tests.support.stage import Stage
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.cluster.pki import LIFETIME, Authority, KeyFiles, write_kubeconfig

DAYS_LEFT = timedelta(days=5)
SOONER = {"> 180": "> 5", "> 60": "> 1", "> 300": "> 1"}
"""Figures that would take minutes to reach."""
CHATTER = 300
"""Fifty are written at once, and then 25 per second."""
OF_THE_MANAGER = {"KubeoceanBindingFailed", "KubeoceanManagerAbsent", "KubeoceanSyncerAbsent"}
"""About series of the manager; the first one is shown firing in tests/integration/manager."""


def ending_soon(plane: ControlPlane) -> Authority:
    """The authority of a cluster as it was when certificates were issued that have some days left."""
    files = KeyFiles(certificate=plane.ca, key=plane.ca.with_suffix(".key"))
    return Authority.load(files, ManualClock(datetime.now(UTC) - LIFETIME + DAYS_LEFT))


def short_lived(plane: ControlPlane, user: str) -> Path:
    path = plane.directory / "clients" / f"{user}-ends-soon.kubeconfig"
    return write_kubeconfig(path, plane.name, server=plane.url, ca=plane.ca.read_bytes(), client=ending_soon(plane).client(user))


def settings(hub: ControlPlane, port: int, directory: Path) -> Body:
    files = ending_soon(hub).server("node", [hub.host_address], organizations=["system:nodes"]).write(directory, "serving")
    served = {"certificate": "files", "certificate_file": str(files.certificate), "key_file": str(files.key)}
    return {
        "server": {"node_address": hub.host_address, "main_port": 0, **served},
        "health": {"health_address": "127.0.0.1:0", "metrics_address": f"127.0.0.1:{port}"},
    }


@pytest.fixture
def port(hub: ControlPlane) -> int:
    return hub.site.free_port()


@contextmanager
def sooner(directory: Path, jobs: list[Body]) -> Iterator[Prometheus]:
    """A Prometheus with the rules of the chart, which fire at once."""
    changed = []
    for rule in rules():
        expression = rule["expr"]
        for figure, smaller in SOONER.items():
            expression = expression.replace(figure, smaller)
        changed.append({**rule, "expr": expression, "for": "0s"})
    with Prometheus(directory / "prometheus", jobs, changed) as made:
        yield made


async def fires(prometheus: Prometheus, alert: str, *, seconds: float = 60.0, **labels: str) -> Body:
    def found() -> Body | None:
        return next((each for each in prometheus.all_firing(alert) if labels.items() <= each["labels"].items()), None)

    out: Body = await eventually(found, f"{alert} {labels} fires", seconds=seconds, every=0.5)
    notes = out["annotations"]
    assert set(notes) == {"summary", "description", "action"}
    assert not any("<no value>" in text or "error" in text for text in notes.values()), notes
    print(f"{alert}: {notes['summary']}")
    return out


async def test_every_alert_is_shown_firing_on_what_a_real_process_tells(
    hub: ControlPlane, scene: MakeScene, port: int, tmp_path: Path
) -> None:
    """Line 13, and 74 and 180 of kubeocean-behaviour.md: Prometheus scrapes a virtual node's own port with a token as well."""
    made = await scene(settings=settings(hub, port, tmp_path), way=short_lived, shows_usage=True)
    stage = await Stage.of(made.bound, made.nodes)
    await stage.create("held", script={"stop-delay": "600"})
    await stage.running("held")
    jobs = [{"job_name": "kubeocean", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}, *await of_the_node(made, tmp_path)]
    with sooner(tmp_path, jobs) as prometheus:
        await eventually(lambda: prometheus.query("kubeocean_binding_ready == 1"), "it is scraped", seconds=60)
        await holds(lambda: all_series_are_told(prometheus))
        await scraped_by_itself(prometheus, stage)
        assert "KubeoceanBindingNotReady" not in prometheus.firing()
        assert "KubeoceanReclaimOverdue" not in prometheus.firing()
        assert "KubeoceanLeaseLate" not in prometheus.firing()

        for certificate in ("KubeoceanKubeconfigExpires", "KubeoceanServingCertificateExpires"):
            left = float((await fires(prometheus, certificate))["value"])
            assert DAYS_LEFT.total_seconds() - 7200 < left <= DAYS_LEFT.total_seconds()
        await fires(prometheus, "KubeoceanWatchStale", seconds=90)
        await much_is_said(made, stage)
        await fires(prometheus, "KubeoceanQueueOld", queue="events")
        force = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 0}
        await patch_policy(made, f"all-of-{made.bound.name}", **closed_now(), **force)
        await fires(prometheus, "KubeoceanReclaimOverdue")
        await interrupted(made)
        await fires(prometheus, "KubeoceanLeaseLate")
        await apply(made.bound.hub, made.bound.kubeconfig_secret("no: kubeconfig"))
        await fires(prometheus, "KubeoceanBindingNotReady", clusterbinding=made.bound.name)
    await delete(made.bound.worker, "pods", "--all", "-n", made.bound.mount, "--force", "--grace-period=0", "--wait=false")


def all_series_are_told(prometheus: Prometheus) -> None:
    told = {series["metric"]["__name__"] for series in prometheus.query('{job="kubeocean"}')}
    for rule in rules():
        assert rule["alert"] in OF_THE_MANAGER or metrics_of(rule["expr"]) <= told, rule["alert"]


async def of_the_node(made: Scene, directory: Path) -> list[Body]:
    """Jobs for the two usage pages of the virtual node, with the token of a ServiceAccount that may read `nodes/metrics`."""
    hub, name = made.bound.hub, f"scraper-{made.bound.name}"
    namespace = await hub.namespace("scraper")
    role = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    named = {"metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": "scraper", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await apply(
        hub,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "scraper", "namespace": namespace}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", **named, "rules": [role]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **named, "roleRef": reference, "subjects": [subject]},
    )
    token = directory / "token"
    token.write_text((await hub.kubectl("create", "token", "scraper", "-n", namespace)).strip())
    named_url = f"node {made.vnodes[0]} -o jsonpath={{.metadata.annotations.kubeocean\\.io/prometheus-url}}"
    await eventually(lambda: hub.kubectl("get", *named_url.split()), "the node says where it is scraped")
    node = await get(hub, "node", made.vnodes[0])
    (address,) = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
    target = f"{address}:{node['status']['daemonEndpoints']['kubeletEndpoint']['Port']}"
    assert node["metadata"]["annotations"]["kubeocean.io/prometheus-url"] == f"https://{target}/metrics/cadvisor"
    common = {"scheme": "https", "tls_config": {"ca_file": str(hub.ca)}, "static_configs": [{"targets": [target]}]}
    common |= {"scrape_interval": "2s", "scrape_timeout": "2s"}
    return [
        {"job_name": page, "metrics_path": f"/metrics/{page}", "authorization": {"credentials_file": str(token)}, **common}
        for page in ("cadvisor", "resource")
    ] + [{"job_name": "without-token", "metrics_path": "/metrics/cadvisor", **common}]


async def scraped_by_itself(prometheus: Prometheus, stage: Stage) -> None:
    """By the virtual names; without the token nothing."""
    own = f'namespace="{stage.namespace}",pod="held"'
    for query in (
        f'container_cpu_usage_seconds_total{{job="cadvisor",node="{stage.vnode}",{own}}}',
        f'container_memory_working_set_bytes{{job="resource",{own}}}',
    ):
        await eventually(lambda query=query: prometheus.query(query), f"{query} ({prometheus.problems()})", seconds=60)
    await eventually(lambda: any("401" in problem for problem in prometheus.problems()), "without the token it is sent away")
    await eventually(lambda: prometheus.query('up{job="without-token"} == 0'), "and counts as down")


async def much_is_said(made: Scene, stage: Stage) -> None:
    """More Events at once than may be written at home in ten seconds: all of them are there before the process sees the first."""
    physical = await stage.physical("held")
    assert physical is not None
    with standing_still(made):
        async with asyncio.TaskGroup() as group:
            for number in range(CHATTER):
                group.create_task(say(stage, physical, f"Chatter{number}", "one of many"))


@contextmanager
def standing_still(made: Scene) -> Iterator[None]:
    """The process gets no CPU."""
    made.program.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        made.program.process.send_signal(signal.SIGCONT)


async def interrupted(made: Scene) -> None:
    """For longer than a lease may wait."""
    with standing_still(made):
        began = datetime.now(UTC)
        await eventually(lambda: datetime.now(UTC) - began > timedelta(seconds=23), "it stood still", seconds=23 + PATIENCE, every=1)


BINDING = '{clusterbinding="b"}'
HALF = 'vkubelet_lease_lateness_seconds_bucket{job="j",instance="i",le='
CASES: dict[str, tuple[list[tuple[str, str]], int, dict[str, str]]] = {
    "KubeoceanBindingNotReady": ([(f"kubeocean_binding_ready{BINDING}", "1x9 0x30")], 10 + 5, {"clusterbinding": "b"}),
    "KubeoceanBindingFailed": ([('kubeocean_clusterbindings_total{status="Failed"}', "0x9 1x30")], 10 + 5, {}),
    "KubeoceanWatchStale": (
        [('kubeocean_watch_stale_seconds{clusterbinding="b",resource="r"}', "180x9 181x30")],
        10 + 1,
        {"clusterbinding": "b", "resource": "r"},
    ),
    "KubeoceanQueueOld": ([('vkubelet_queue_oldest_seconds{queue="q"}', "60x9 61x30")], 10 + 5, {"queue": "q"}),
    "KubeoceanReclaimOverdue": ([(f"kubeocean_reclaim_overdue_seconds{BINDING}", "300x9 301x30")], 10 + 1, {"clusterbinding": "b"}),
    "KubeoceanKubeconfigExpires": ([(f"kubeocean_credentials_ttl_seconds{BINDING}", "1209600x9 1209599x30")], 10, {"clusterbinding": "b"}),
    "KubeoceanServingCertificateExpires": ([("kubelet_certificate_manager_server_ttl_seconds", "1209600x9 1209599x30")], 10, {}),
    "KubeoceanManagerAbsent": ([("kubeocean_clusterbindings_total", "0x9 _x30")], 10 + 5 + 10, {}),
    "KubeoceanSyncerAbsent": (
        [('kubeocean_clusterbindings_total{status="Ready"}', "1x60"), (f"kubeocean_binding_ready{BINDING}", "1x9 stale")],
        10 + 10,
        {},
    ),
    "KubeoceanNodesNotReady": ([(f"kubeocean_vnodes_not_ready{BINDING}", "0x9 1x40")], 10 + 10, {"clusterbinding": "b"}),
    "KubeoceanPodsPending": (
        [('kubeocean_syncer_virtual_pod_total{clusterbinding="b",phase="Pending"}', "0x9 1x40")],
        10 + 15 + 5,
        {"clusterbinding": "b"},
    ),
    "KubeoceanPodsRefused": ([(f"kubeocean_syncer_pod_created_failed_total{BINDING}", "0x9 0+10x40")], 11 + 5, {"clusterbinding": "b"}),
    "KubeoceanLeaseLate": (
        [(f'{HALF}"10.0"}}', "0+6x9 54x30"), (f'{HALF}"20.0"}}', "0+6x9 60+6x30"), (f'{HALF}"+Inf"}}', "0+6x9 60+6x30")],
        10 + 2,
        {"job": "j", "instance": "i"},
    ),
}
"""By alert: series by minute that are well until the ninth and not from the tenth on, the minute at which it fires, its labels."""


def test_every_rule_fires_exactly_at_the_figures_it_names(tmp_path: Path) -> None:
    bare = [{key: value for key, value in rule.items() if key != "annotations"} for rule in rules()]
    assert {rule["alert"] for rule in bare} == CASES.keys()
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": bare}]}))
    tests = [judged(rule) for rule in bare]
    (tmp_path / "tests.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    assert f"SUCCESS: {len(bare)} rules found" in promtool("check", "rules", str(ALERTS), cwd=tmp_path)
    print(promtool("test", "rules", "tests.yaml", cwd=tmp_path))


def test_expressions_of_the_grafana_dashboard_are_valid_queries(tmp_path: Path) -> None:
    queries = [query.replace("$clusterbinding", ".*") for query in dashboard_queries()]
    recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": recorded}]}))
    assert f"SUCCESS: {len(queries)} rules found" in promtool("check", "rules", "panels.yaml", cwd=tmp_path)


def judged(rule: Body) -> dict[str, Any]:
    series, minute, labels = CASES[rule["alert"]]
    fired = [{"exp_labels": {**labels, **rule["labels"]}}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "alert_rule_test": [
            {"eval_time": f"{minute - 1}m", "alertname": rule["alert"], "exp_alerts": []},
            {"eval_time": f"{minute}m", "alertname": rule["alert"], "exp_alerts": fired},
        ],
    }
