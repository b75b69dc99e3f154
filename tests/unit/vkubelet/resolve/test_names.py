"""A pod's own name, and how it resolves others."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.resolve.names import Names, hostname, hosts, resolv_conf

HOST = "# of the host\nnameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch old.example\nsearch corp.example. .\noptions timeout:1\n"
CLUSTER = Names(cluster_dns=["10.0.0.10"], hosts="127.0.0.1\tlocalhost\n", resolv_conf=HOST)
ALONE = Names(resolv_conf=HOST)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({}, "web"),
        ({"hostname": "own"}, "own"),
        ({"subdomain": "sub"}, "web"),
        ({"subdomain": "sub", "setHostnameAsFQDN": True}, "web.sub.ours.svc.cluster.local"),
        ({"setHostnameAsFQDN": True}, "web"),
        ({"hostNetwork": True, "hostname": "own"}, ""),
    ],
)
def test_hostname_follows_the_spec(spec: dict[str, Any], name: str) -> None:
    assert hostname("web", "ours", spec=spec, cluster_domain="cluster.local") == name


def test_long_names_are_cut_to_a_label_that_ends_well() -> None:
    assert hostname("a" * 62 + "-bcd", "ours", spec={}, cluster_domain="x") == "a" * 62
    assert len(hostname("a" * 80, "ours", spec={}, cluster_domain="x")) == 63


def test_a_name_that_the_kernel_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match=r"failed to construct FQDN .*\(64 characters is the max, 70 characters requested"):
        hostname("a" * 43, "ours", spec={"subdomain": "sub", "setHostnameAsFQDN": True}, cluster_domain="cluster.local")


def test_hosts_name_the_pod_by_all_its_addresses() -> None:
    text = hosts("web", "ours", spec={}, ips=["10.1.0.5", "fd00::5"], names=CLUSTER)
    assert text.splitlines()[0] == "# Kubernetes-managed hosts file."
    assert text.endswith("fe00::2\tip6-allrouters\n10.1.0.5\tweb\nfd00::5\tweb\n")


def test_hosts_know_the_whole_name_and_the_aliases() -> None:
    spec = {"subdomain": "sub", "hostAliases": [{"ip": "10.9.9.9", "hostnames": ["a", "b"]}, {"ip": "10.9.9.8", "hostnames": ["c"]}]}
    text = hosts("web", "ours", spec=spec, ips=["10.1.0.5"], names=CLUSTER)
    assert text.endswith("10.1.0.5\tweb.sub.ours.svc.cluster.local\tweb\n\n# Entries added by HostAliases.\n10.9.9.9\ta\tb\n10.9.9.8\tc\n")


def test_hosts_on_the_hosts_network_are_those_of_the_host() -> None:
    text = hosts("web", "ours", spec={"hostNetwork": True}, ips=["192.0.2.1"], names=CLUSTER)
    assert text == "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n"


OF_THE_CLUSTER = "search ours.svc.cluster.local svc.cluster.local cluster.local corp.example\nnameserver 10.0.0.10\noptions ndots:5\n"
OF_THE_HOST = "search corp.example\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions timeout:1\n"


@pytest.mark.parametrize(
    ("names", "spec", "text"),
    [
        pytest.param(CLUSTER, {}, OF_THE_CLUSTER, id="ClusterFirst by default"),
        pytest.param(CLUSTER, {"dnsPolicy": "ClusterFirst", "hostNetwork": True}, OF_THE_HOST, id="ClusterFirst on the host's network"),
        pytest.param(CLUSTER, {"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, OF_THE_CLUSTER, id="ClusterFirstWithHostNet"),
        pytest.param(CLUSTER, {"dnsPolicy": "Default"}, OF_THE_HOST, id="Default"),
        pytest.param(ALONE, {}, OF_THE_HOST, id="no DNS of the cluster"),
        pytest.param(CLUSTER, {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"]}}, "nameserver 9.9.9.9\n", id="None"),
        pytest.param(
            CLUSTER,
            {
                "dnsConfig": {
                    "nameservers": ["10.0.0.10", "1.1.1.1"],
                    "searches": ["cluster.local", "more.example"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
                }
            },
            "search ours.svc.cluster.local svc.cluster.local cluster.local corp.example more.example\n"
            "nameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:2 edns0\n",
            id="dnsConfig is put behind, its options win",
        ),
        pytest.param(
            CLUSTER,
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"], "searches": ["x" * 254, "a"]}},
            "search a\nnameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\n",
            id="no more than resolvers take",
        ),
    ],
)
def test_resolv_conf_follows_policy_and_config(names: Names, spec: dict[str, Any], text: str) -> None:
    assert resolv_conf("ours", spec, names=names) == text


def test_search_domains_are_at_most_32_and_2048_letters() -> None:
    many = resolv_conf("ours", {"dnsPolicy": "None", "dnsConfig": {"searches": [f"d{at}" for at in range(40)]}}, names=CLUSTER)
    assert len(many.split()) == 1 + 32
    long = resolv_conf("ours", {"dnsPolicy": "None", "dnsConfig": {"searches": [f"{at}" + "x" * 199 for at in range(30)]}}, names=CLUSTER)
    assert len(long.split()) == 1 + 10
