"""Which evictions budgets forbid is what kube-apiserver answers, as the model of its eviction subresource does."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.explain.budgets import Budgets, Disruptions
from tests.faults.model.budgets import spent
from tests.faults.model.refusals import Refusal
from tests.unit.kubeocean.builders import at, pod, unknown
from vkubelet.api.objects import Pod

NOW = at("2026-01-05 09:00")
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
UNREADY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
WEB = {"matchLabels": {"app": "web"}}


def budget(allowed: int = 0, *, name: str = "web", namespace: str = "default", healthy: int = 1, **spec: Any) -> dict[str, Any]:
    status = {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 2}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace, "generation": 1},
        "spec": {"selector": WEB, **spec},
        "status": status,
    }


def web(status: dict[str, Any] = READY, *, uid: str = "u", **labels: str) -> Pod:
    return pod(uid=uid, status=status, labels={"app": "web", **labels})


def blocked(of: Pod, *budgets: dict[str, Any]) -> str:
    return Disruptions(Budgets.of([unknown(each) for each in budgets], [of])).blocking(of.metadata.uid)


def refused(of: Pod, *budgets: dict[str, Any]) -> bool:
    meta = of.metadata
    body = {"metadata": {"name": meta.name, "labels": meta.labels, "deletionTimestamp": meta.deletion_timestamp}, "status": of.status}
    try:
        spent(body, [each for each in budgets if each["metadata"]["namespace"] == meta.namespace], now=NOW)
    except Refusal:
        return True
    return False


STALE = budget(5)
STALE["metadata"]["generation"] = 2
WITHOUT_STATUS = {key: value for key, value in budget().items() if key != "status"}


@pytest.mark.parametrize(
    ("of", "budgets", "by"),
    [
        (web(), [budget()], "default/web"),
        (web(), [budget(1)], ""),
        (web(), [], ""),
        (web(), [budget(namespace="other")], ""),
        (web(), [budget(selector={"matchLabels": {"app": "db"}})], ""),
        (web(), [budget(selector={})], "default/web"),
        (web(), [budget(selector=None)], ""),
        (web(), [budget(selector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]})], "default/web"),
        (web(canary="yes"), [budget(selector={**WEB, "matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}]})], ""),
        (web(), [budget(3), budget(3, name="all", selector={})], "default/all, default/web"),
        (web(), [STALE], "default/web"),
        (web(), [WITHOUT_STATUS], "default/web"),
        (web({"phase": "Pending"}), [budget()], ""),
        (web({"phase": "Failed"}), [budget()], ""),
        (web(UNREADY), [budget()], "default/web"),
        (web(UNREADY), [budget(healthy=2)], ""),
        (web(READY), [budget(healthy=2)], "default/web"),
        (web(UNREADY), [budget(unhealthyPodEvictionPolicy="AlwaysAllow")], ""),
        (web({"phase": "Running"}), [budget(healthy=2)], ""),
    ],
)
def test_an_eviction_is_blocked_where_the_api_server_refuses_it(of: Pod, budgets: list[dict[str, Any]], by: str) -> None:
    assert blocked(of, *budgets) == by
    assert refused(of, *budgets) is bool(by)


def test_a_budget_grants_as_many_evictions_at_a_time_as_it_allows() -> None:
    pods = [web(uid=f"u{number}") for number in range(3)]
    budgets = Budgets.of([unknown(budget(2))], pods)
    for _ in range(2):
        at_once = Disruptions(budgets)
        assert [at_once.blocking(each.metadata.uid) for each in pods] == ["", "", "default/web"]
        assert not at_once.keeps("default/web") and budgets.forbidding("u2") == ""
    assert Disruptions(Budgets.of([unknown(budget())], pods)).keeps("default/web")
    assert Budgets.of([unknown(budget())], pods).forbidding("u2") == "default/web"
