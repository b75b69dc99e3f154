"""Tests of kubeocean.nodes.hostports; the reconciler is driven in tests/integration/kubeocean/test_host_ports.py."""

from __future__ import annotations

from kubeocean.nodes.hostports import HostPort, host_ports, merged, placeholder, placeholder_status
from kubeocean.worker.cluster import cost_of
from tests.unit.kubeocean.builders import node, pod
from vkubelet.api.objects import Json
from vkubelet.pods.dispatch import is_mirror

NOW = "2026-01-01T00:00:00Z"


def spec(*ports: Json, **more: object) -> Json:
    return {"containers": [{"name": "main", "image": "i", "ports": list(ports)}], **more}


def test_defaults_are_all_addresses_and_tcp() -> None:
    assert host_ports(spec({"containerPort": 80, "hostPort": 8080}, {"containerPort": 81})) == [HostPort("0.0.0.0", "TCP", 8080, 80)]


def test_init_containers_count_and_so_does_what_is_kept_of_a_foreign_pod() -> None:
    init = {"name": "init", "image": "i", "ports": [{"containerPort": 1, "hostPort": 2, "hostIP": "10.0.0.1", "protocol": "UDP"}]}
    body = spec({"containerPort": 80, "hostPort": 8080}, initContainers=[init])
    wanted = [HostPort("10.0.0.1", "UDP", 2, 1), HostPort("0.0.0.0", "TCP", 8080, 80)]
    assert host_ports(body) == wanted
    assert host_ports(cost_of(pod(body)).spec) == wanted


def test_ports_are_in_order_of_address_protocol_and_number_and_each_is_there_once() -> None:
    ports = [
        HostPort("10.0.0.2", "TCP", 1),
        HostPort("0.0.0.0", "UDP", 1),
        HostPort("0.0.0.0", "TCP", 9, 7),
        HostPort("0.0.0.0", "TCP", 9, 8),
        HostPort("0.0.0.0", "TCP", 2),
    ]
    assert merged(ports) == [ports[4], ports[2], ports[1], ports[0]]


def test_placeholder_is_made_once_for_the_same_ports_of_the_same_node() -> None:
    ports = [HostPort("0.0.0.0", "TCP", 8080, 80)]
    made = placeholder(node(), ports)
    assert placeholder(node(), ports) == made
    names = {placeholder(node(uid="other"), ports)["metadata"]["name"], placeholder(node(), ports * 2)["metadata"]["name"]}
    assert made["metadata"]["name"] not in names and len(names) == 2
    (container,) = made["spec"]["containers"]
    assert container["ports"] == [{"name": "port-0", "hostIP": "0.0.0.0", "protocol": "TCP", "hostPort": 8080, "containerPort": 80}]


def test_placeholder_is_a_mirror_pod_of_its_node() -> None:
    made = placeholder(node(), [HostPort("0.0.0.0", "TCP", 8080, 80)])
    assert is_mirror(pod(made["spec"], **made["metadata"]))


def test_status_is_written_once() -> None:
    fresh = pod()
    change = placeholder_status(fresh, now=NOW)
    assert change is not None
    assert change["status"]["conditions"] == [{"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW}]
    assert placeholder_status(pod(status=change["status"]), now=NOW) is None
