"""The configuration of a real node keeps to the node.

Invariant: pure; whether kubelet and containerd accept it is asked in the integration tests.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from attrs import evolve

from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import nodeconfig
from vkubelet.testing.cluster.images import PAUSE
from vkubelet.testing.cluster.nodeconfig import SYSCTLS, NodePlan


@pytest.fixture
def plan() -> NodePlan:
    return NodePlan(
        directory=Path("/somewhere/nodes/node-1"),
        name="node-1",
        address="10.77.0.2",
        gateway="10.77.0.1",
        pod_cidr="10.128.2.0/24",
        cgroup="vkubelet-0-2",
    )


def test_kubelet_asks_its_cluster_who_may_call(plan: NodePlan) -> None:
    config = decode_yaml(nodeconfig.kubelet(plan))
    assert config["authentication"]["anonymous"]["enabled"] is False
    assert config["authentication"]["webhook"]["enabled"] is True
    assert config["authorization"]["mode"] == "Webhook"


def test_kubelet_has_a_cgroup_and_an_address_of_its_own(plan: NodePlan) -> None:
    config = decode_yaml(nodeconfig.kubelet(plan))
    assert config["cgroupRoot"] == "/vkubelet-0-2"
    assert config["address"] == "10.77.0.2"


def test_every_setting_the_kubelet_would_make_for_the_whole_machine_is_covered(plan: NodePlan) -> None:
    script = nodeconfig.namespace_script(plan)
    for name in SYSCTLS:
        assert f"mount --bind /somewhere/nodes/node-1/sysctl/{name} /proc/sys/{name}\n" in script


def test_containerd_takes_the_local_sandbox_image(plan: NodePlan) -> None:
    config = tomllib.loads(nodeconfig.containerd(plan, Path("/usr/lib/cni")))
    plugin = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert plugin["sandbox_image"] == PAUSE
    assert plugin["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": "/somewhere/nodes/node-1/cni"}


def test_pods_get_addresses_from_the_range_of_the_node(plan: NodePlan) -> None:
    bridge = json.loads(nodeconfig.cni(plan))["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.128.2.0/24"}]]


def test_labels_are_given_at_registration(plan: NodePlan) -> None:
    assert "--node-labels=zone=a,kind=small" in nodeconfig.kubelet_flags(plan, {"zone": "a", "kind": "small"})
    assert not [flag for flag in nodeconfig.kubelet_flags(plan, {}) if "labels" in flag]


def test_pods_ask_the_dns_of_the_cluster_where_it_has_one(plan: NodePlan) -> None:
    assert "clusterDNS" not in decode_yaml(nodeconfig.kubelet(plan))
    config = decode_yaml(nodeconfig.kubelet(evolve(plan, dns="10.97.0.10")))
    assert (config["clusterDNS"], config["clusterDomain"]) == (["10.97.0.10"], "cluster.local")


def test_proxy_leaves_the_limits_of_the_machine_alone(plan: NodePlan) -> None:
    flags = nodeconfig.proxy_flags(plan)
    assert "--proxy-mode=nftables" in flags and "--hostname-override=node-1" in flags
    assert "--conntrack-max-per-core=0" in flags
