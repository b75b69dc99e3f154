"""Tests of kubeocean.services.routes, with connections on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from kubeocean.services.routes import is_probed, is_reached, port_of, unreachable
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import Json


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that answers no connection: its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        port = int(listener.getsockname()[1])
        for _ in range(4):
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


async def test_open_and_closed_ports_answer() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert await is_reached("127.0.0.1", port)
    assert await is_reached("127.0.0.1", port)


async def test_silence_is_no_route() -> None:
    with silent_port() as port:
        assert not await is_reached("127.0.0.1", port, timeout=0.3)


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
