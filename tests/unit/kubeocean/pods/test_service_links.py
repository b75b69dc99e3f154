"""Tests of kubeocean.pods.service_links."""

from __future__ import annotations

import pytest

from kubeocean.pods.service_links import ServiceLinks, addresses_of
from tests.unit.kubeocean.builders import pod, unknown
from vkubelet.api.objects import Unknown
from vkubelet.api.shapes import Json
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.testing.host import RecordingHost


def service(name: str, namespace: str, address: str) -> Unknown:
    spec: Json = {"clusterIP": address, "ports": [{"port": 5432, "name": "sql"}], "selector": {"app": name}}
    return unknown({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}, "spec": spec})


@pytest.fixture
def links() -> ServiceLinks:
    found = ServiceLinks(RecordingHost(client=Client(Connection("https://192.0.2.1"))))
    for each in (service("db", "ml", "10.1.1.1"), service("other", "web", "10.1.1.2"), service("headless", "ml", "None")):
        found.informer.adopt(each)
    found.informer.adopt(service("kubernetes", "default", "10.1.0.1"))
    found.informer.ever_synced = True
    return found


async def test_services_of_the_pods_own_namespace_are_given(links: ServiceLinks) -> None:
    assert await links.find(pod(namespace="ml")) == {
        "DB_SERVICE_HOST": "10.1.1.1",
        "DB_SERVICE_PORT": "5432",
        "DB_SERVICE_PORT_SQL": "5432",
        "DB_PORT": "tcp://10.1.1.1:5432",
        "DB_PORT_5432_TCP": "tcp://10.1.1.1:5432",
        "DB_PORT_5432_TCP_PROTO": "tcp",
        "DB_PORT_5432_TCP_PORT": "5432",
        "DB_PORT_5432_TCP_ADDR": "10.1.1.1",
    }


def test_pod_without_service_links_gets_none(links: ServiceLinks) -> None:
    assert links.known(pod({"enableServiceLinks": False}, namespace="ml")) == {}


def test_address_of_the_api_server_is_not_given_as_a_service(links: ServiceLinks) -> None:
    assert links.known(pod(namespace="default")) == {}


def test_of_a_service_only_addresses_are_kept() -> None:
    kept = addresses_of(service("db", "ml", "10.1.1.1"))
    assert kept.body["spec"] == {"clusterIP": "10.1.1.1", "ports": [{"port": 5432, "name": "sql"}]}
