"""Alerts and the Grafana dashboard name series and labels that the code exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from kubeocean.metrics import Gauges, ManagerMetrics, SyncerMetrics
from tests.support.bound import ROOT
from tests.support.prometheus import GRAFANA, dashboard_queries, metrics_of, rules
from vkubelet.metrics import Counts, Metrics, Staleness, Timings

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def exported() -> dict[str, set[str]]:
    """The labels of each series, by its name."""
    registry, found = CollectorRegistry(), dict[str, set[str]]()
    every: Iterable[Mapping[str, object]] = (
        vars(Metrics()),
        vars(SyncerMetrics(registry, binding="b")),
        vars(ManagerMetrics(registry)),
    )
    for value in (value for values in every for value in values.values()):
        if isinstance(value, Gauges | Staleness | Counts | Timings):
            families = [(family, family._labelnames) for family in value.describe()]
        elif isinstance(value, MetricWrapperBase) and not value._labelvalues:
            families = [(family, value._labelnames) for family in value.describe()]
        else:
            continue
        for family, labels in families:
            for suffix in _SUFFIXES[family.type]:
                extra = {"le"} if suffix == "_bucket" else set()
                found[family.name + suffix] = {*labels, "instance", "job"} | extra
    return found


def unknown(expression: str, known: Mapping[str, set[str]]) -> list[str]:
    """What an expression names that is not exported: series, and labels of selectors and groups."""
    names = metrics_of(expression)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    labels |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    have = set[str]().union(*(known.get(name, set()) for name in names))
    return sorted(names - known.keys()) + sorted(labels - have)


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in rules()), *dashboard_queries()])
def test_every_expression_names_series_and_labels_that_are_exported(expression: str) -> None:
    assert metrics_of(expression) and unknown(expression, exported()) == []


def test_a_wrong_name_and_a_wrong_label_are_found() -> None:
    known = exported()
    assert unknown("kubeocean_absent", known) == ["kubeocean_absent"]
    assert unknown('sum by (binding) (kubeocean_binding_ready{phase="x"})', known) == ["binding", "phase"]


def test_panels_have_a_place_of_their_own_and_legends_name_labels_of_the_query() -> None:
    places = set[tuple[int, int]]()
    for panel in json.loads(GRAFANA.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & places and max(x for x, _ in cells) < 24, panel["title"]
        places |= cells
        for target in panel.get("targets", ()):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")}
            assert named <= grouped, target


def test_each_alert_has_its_heading_in_the_runbook() -> None:
    page = (ROOT / "docs" / "operate" / "monitor.md").read_text()
    assert [rule["alert"] for rule in rules()] == re.findall(r"^### (Kubeocean\w+)$", page, re.MULTILINE)
