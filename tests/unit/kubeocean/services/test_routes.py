"""Tests of kubeocean.services.routes. Connections are made in `integration/kubeocean/test_routes.py`."""

from __future__ import annotations

import pytest

from kubeocean.services.routes import is_probed, port_of, unreachable
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import Json


@pytest.mark.parametrize(
    ("spec", "status", "probed"),
    [
        ({}, {"phase": "Running", "podIP": "10.1.0.1"}, True),
        ({}, {"phase": "Pending", "podIP": "10.1.0.1"}, False),
        ({}, {"phase": "Running"}, False),
        ({"hostNetwork": True}, {"phase": "Running", "podIP": "10.1.0.1"}, False),
    ],
)
def test_only_running_pods_of_the_pod_network_are_probed(spec: Json, status: Json, probed: bool) -> None:
    assert is_probed(pod(spec, status=status)) is probed


def test_a_declared_tcp_port_is_probed() -> None:
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 8080}]
    assert port_of(pod({"containers": [{"name": "main", "image": "i", "ports": ports}]})) == 8080
    assert port_of(pod()) > 0


def test_message_names_pods_and_the_remedy() -> None:
    text = unreachable([pod(status={"podIP": "10.1.0.1"})])
    assert "default/web at 10.1.0.1" in text and "route the pod networks" in text
