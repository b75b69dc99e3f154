"""Presets of the worker chart: which networks leased pods reach, and how much a quota allows.

Invariant: charts are rendered by helm itself; what a preset opens is judged address by address.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

import pytest

from kubeocean.model import keys
from tests.support.charts import CHARTS, WORKER, Body, ran, rendered


def network_policy(helm: str, values: Body) -> Body:
    (policy,) = [body for body in rendered(helm, WORKER, {"networkPolicy": values}) if body["kind"] == "NetworkPolicy"]
    spec: Body = policy["spec"]
    assert policy["metadata"]["namespace"] == keys.WORKER_NAMESPACE and spec["podSelector"] == {}
    assert spec["policyTypes"] == ["Ingress", "Egress"] and spec["ingress"] == [{}]
    return spec


def reached(spec: Body, address: str, port: int = 443) -> bool:
    """Whether a pod may reach an address that is no pod of its namespace."""
    target = ip_address(address)

    def included(peer: Body) -> bool:
        block = peer.get("ipBlock")
        return (
            block is not None
            and target in ip_network(block["cidr"])
            and not any(target in ip_network(each) for each in block.get("except", ()))
        )

    return any(
        port in [each["port"] for each in rule.get("ports", [{"port": port}])] and ("to" not in rule or any(map(included, rule["to"])))
        for rule in spec["egress"]
    )


METADATA = ("169.254.169.254", "fd00:ec2::254")
PRIVATE = ("10.0.0.1", "172.31.0.1", "192.168.1.1", "100.100.100.200", "168.63.129.16", "fd00::1", "fe80::1")
PUBLIC = ("198.51.100.7", "2001:db8::7")


@pytest.mark.parametrize(
    ("preset", "open_", "closed"),
    [
        ({}, PUBLIC, PRIVATE + METADATA),
        ({"preset": "namespace"}, (), PUBLIC + PRIVATE + METADATA),
        ({"preset": "open"}, PUBLIC + PRIVATE, METADATA),
    ],
    ids=["default", "namespace", "open"],
)
def test_a_preset_decides_which_networks_leased_pods_reach(helm: str, preset: Body, open_: Iterable[str], closed: Iterable[str]) -> None:
    spec = network_policy(helm, preset)
    assert [each for each in open_ if not reached(spec, each)] == [] and [each for each in closed if reached(spec, each)] == []
    if preset.get("preset") != "open":
        assert all(reached(spec, each, port=53) for each in PRIVATE) and {"to": [{"podSelector": {}}]} in spec["egress"]


def test_ranges_are_added_to_a_preset_and_a_list_of_rules_replaces_it(helm: str) -> None:
    more = network_policy(helm, {"allowedCIDRs": ["10.20.0.0/16", "fd00:20::/32"], "blockedCIDRs": ["198.51.100.7/32", "2001:db8::/32"]})
    assert reached(more, "10.20.1.1") and reached(more, "fd00:20::1") and not reached(more, "10.21.1.1")
    assert reached(more, "198.51.100.8") and not any(reached(more, each) for each in PUBLIC)
    rules = [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]
    assert network_policy(helm, {"egress": rules})["egress"] == rules
    assert network_policy(helm, {"egress": []})["egress"] == []


def quota(helm: str, values: Body) -> Body:
    (found,) = [body for body in rendered(helm, WORKER, {"quota": {"enabled": True, **values}}) if body["kind"] == "ResourceQuota"]
    hard: Body = found["spec"]["hard"]
    return hard


def test_a_quota_has_the_amounts_of_its_preset_and_those_given(helm: str) -> None:
    small = quota(helm, {"preset": "small"})
    assert small["requests.cpu"] == "10" and small["services.loadbalancers"] == small["services.nodeports"] == "0"
    assert quota(helm, {"preset": "small", "hard": {"pods": 7}}) == {**small, "pods": 7}
    assert quota(helm, {"hard": {"pods": "7"}}) == {"pods": "7"}
    done = ran(helm, "template", WORKER, str(CHARTS / WORKER), values={"quota": {"enabled": True}})
    assert done.returncode != 0 and "an empty quota limits nothing; set quota.preset or quota.hard" in done.stderr
