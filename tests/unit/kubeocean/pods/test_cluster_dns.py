"""Tests of kubeocean.pods.cluster_dns."""

from __future__ import annotations

import pytest

from kubeocean.model.crds import ApiServerAccess, DnsAccess
from kubeocean.pods.cluster_dns import api_server_environment, host_aliases, set_dns
from vkubelet.api.shapes import Json

DNS = DnsAccess(("10.0.0.2",))
HUB_DNS: Json = {
    "nameservers": ["10.0.0.2"],
    "searches": ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"],
    "options": [{"name": "ndots", "value": "5"}],
}


@pytest.mark.parametrize("policy", [{}, {"dnsPolicy": "ClusterFirst"}, {"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}])
def test_cluster_policies_become_the_hubs_dns(policy: Json) -> None:
    spec = dict(policy)
    set_dns(spec, DNS, namespace="default")
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == ("None", HUB_DNS)


@pytest.mark.parametrize(
    "spec",
    [
        {"dnsPolicy": "Default"},
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}},
        # On the host's network ClusterFirst means the host's DNS.
        {"dnsPolicy": "ClusterFirst", "hostNetwork": True},
    ],
)
def test_other_policies_are_left_as_they_are(spec: Json) -> None:
    changed = dict(spec)
    set_dns(changed, DNS, namespace="default")
    assert changed == spec


def test_without_dns_of_the_hub_the_workers_stays() -> None:
    spec: Json = {"dnsPolicy": "ClusterFirst"}
    set_dns(spec, None, namespace="default")
    assert spec == {"dnsPolicy": "ClusterFirst"}


def test_users_dns_config_is_merged() -> None:
    users: Json = {
        "nameservers": ["1.1.1.1", "10.0.0.2"],
        "searches": ["corp.example", "svc.cluster.local"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }
    spec: Json = {"dnsConfig": users}
    set_dns(spec, DnsAccess(("10.0.0.2", "10.0.0.3"), "hub.example"), namespace="team")
    assert spec["dnsConfig"] == {
        "nameservers": ["10.0.0.2", "10.0.0.3", "1.1.1.1"],
        "searches": ["team.svc.hub.example", "svc.hub.example", "hub.example", "corp.example", "svc.cluster.local"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }


def test_merged_config_keeps_the_limits_of_kubernetes() -> None:
    users = {"nameservers": ["1.1.1.1", "8.8.8.8", "9.9.9.9"], "searches": [f"{'s' * 60}.d{number}.example" for number in range(32)]}
    spec: Json = {"dnsConfig": users}
    set_dns(spec, DNS, namespace="default")
    assert spec["dnsConfig"]["nameservers"] == ["10.0.0.2", "1.1.1.1", "8.8.8.8"]
    assert len(spec["dnsConfig"]["searches"]) <= 32
    assert len(" ".join(spec["dnsConfig"]["searches"])) <= 2048
    assert spec["dnsConfig"]["searches"][0] == "default.svc.cluster.local"


def test_api_server_is_found_by_environment_and_by_its_usual_names() -> None:
    access = ApiServerAccess("10.0.0.1", 6443)
    assert api_server_environment(access) == {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    users = [{"ip": "1.2.3.4", "hostnames": ["db"]}]
    names = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "kubernetes.default.svc.cluster.local"]
    assert host_aliases(users, access, domain="cluster.local") == [*users, {"ip": "10.0.0.1", "hostnames": names}]


def test_names_lead_to_addresses_only() -> None:
    assert host_aliases([], ApiServerAccess("api.example"), domain="cluster.local") == []
    assert host_aliases([], None, domain="cluster.local") == []
    assert api_server_environment(None) == {}
