"""Tests of kubeocean.pods.placement."""

from __future__ import annotations

import pytest

from kubeocean.model.keys import Owner
from kubeocean.pods.placement import Placement, ServiceLinks, addresses_of
from tests.unit.kubeocean.builders import OWNER, binding, pod, unknown, worker_scope
from vkubelet.api.objects import Json, Unknown
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.errors import Unavailable
from vkubelet.provider import NodeDescription
from vkubelet.testing.host import RecordingHost

SETTLED: Json = {"apiServerAccess": {"host": "10.0.0.1"}, "dns": {"servers": ["10.0.0.2"]}}
"""Nothing is asked of the hub."""


def placement() -> Placement:
    host = RecordingHost(client=Client(Connection("https://192.0.2.1")))
    scope = worker_scope(host)
    scope.virtual.declare(NodeDescription("vnode-demo-node-1", {"cpu": "4"}), physical_name="node-1", physical_uid="u")
    made = Placement(scope=scope)
    made.services.informer.ever_synced = True
    return made


async def test_pod_goes_to_the_physical_node_of_its_virtual_one_with_the_bindings_fields() -> None:
    target = await placement().target(pod(), binding({**SETTLED, "extraImagePullSecrets": ["mirror"]}))
    assert (target.node, target.namespace, target.overrides.pull_secrets) == ("node-1", "mnt", ("mirror",))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"podPatch": {"spec": {"nodeName": "other"}}}, "spec.podPatch.spec.nodeName"),
        ({"podPatch": {"metadata": {"uid": "x"}}}, "spec.podPatch.metadata.uid"),
        ({"imageRewrites": "docker.io/"}, "spec.imageRewrites"),
    ],
)
async def test_no_pod_is_made_while_the_binding_asks_for_what_must_not_be(spec: Json, path: str) -> None:
    """An older definition lets it in; half of what is asked for would be worse than waiting."""
    with pytest.raises(Unavailable, match=f"ClusterBinding demo is not valid: {path}") as refused:
        await placement().target(pod(), binding({**SETTLED, **spec}))
    assert refused.value.retry_after == 10.0


async def test_a_pod_of_a_node_that_is_not_declared_waits() -> None:
    with pytest.raises(Unavailable, match="node vnode-demo-other is not declared"):
        await placement().target(pod({"nodeName": "vnode-demo-other"}), binding(SETTLED))


def service(name: str, namespace: str, address: str) -> Unknown:
    spec: Json = {"clusterIP": address, "ports": [{"port": 5432, "name": "sql"}], "selector": {"app": name}}
    return unknown({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}, "spec": spec})


@pytest.fixture
def links() -> ServiceLinks:
    host = RecordingHost(client=Client(Connection("https://192.0.2.1")))
    found = ServiceLinks(host, worker_scope(host).worker)
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


def mirror(links: ServiceLinks, *, address: str, owner: Owner = OWNER) -> None:
    """The worker's cache shows a Service under the name of the mirror of ml/db."""
    meta = {"name": "db--ml", "namespace": "mnt", "uid": "m", "resourceVersion": "1", "labels": owner.labels}
    links._worker.services.adopt(unknown({"metadata": {**meta, "annotations": owner.annotations}, "spec": {"clusterIP": address}}))


def test_variables_contain_the_address_of_the_mirror(links: ServiceLinks) -> None:
    mirror(links, address="10.97.0.9")
    found = links.known(pod(namespace="ml"))
    assert (found["DB_SERVICE_HOST"], found["DB_PORT"]) == ("10.97.0.9", "tcp://10.97.0.9:5432")


def test_service_of_another_owner_with_the_name_of_a_mirror_is_not_given(links: ServiceLinks) -> None:
    mirror(links, address="10.97.0.9", owner=Owner("another-hub", "demo"))
    assert links.known(pod(namespace="ml"))["DB_SERVICE_HOST"] == "10.1.1.1"


class Counted(ServiceLinks):
    """Counts the Services that are decoded."""

    decoded = 0

    def _reachable(self, service: Unknown) -> Json:
        self.decoded += 1
        return super()._reachable(service)


def test_services_are_decoded_once_for_all_pods_until_one_or_its_mirror_changes() -> None:
    host = RecordingHost(client=Client(Connection("https://192.0.2.1")))
    links = Counted(host, worker_scope(host).worker)
    for number in range(100):
        links.informer.adopt(service(f"s{number}", "ml", f"10.1.1.{number}"))
    links.informer.adopt(service("db", "ml", "10.1.2.1"))
    caller = pod(namespace="ml")

    def address(decoded: int) -> str:
        links.decoded = 0
        found = {links.known(caller)["DB_SERVICE_HOST"] for _ in range(3)}
        assert links.decoded == decoded
        return found.pop()

    assert (address(101), address(0)) == ("10.1.2.1", "10.1.2.1")
    links.informer.adopt(service("db", "other", "10.1.2.9"))
    assert address(0) == "10.1.2.1"
    mirror(links, address="10.97.0.9")
    assert address(101) == "10.97.0.9"
    links._worker.services._remove(unknown({"metadata": {"name": "db--ml", "namespace": "mnt", "uid": "m", "resourceVersion": "9"}}))
    assert address(101) == "10.1.2.1"
    links.informer._remove(service("db", "ml", "10.1.2.1"))
    assert "DB_SERVICE_HOST" not in links.known(caller)


def test_nothing_is_kept_of_a_namespace_without_services(links: ServiceLinks) -> None:
    assert links.known(pod(namespace="empty")) == {} and links.known(pod(namespace="ml"))
    for name in ("db", "headless"):
        links.informer._remove(service(name, "ml", ""))
    assert not (links._variables or links._mirrored)


def test_pod_without_service_links_gets_none(links: ServiceLinks) -> None:
    assert links.known(pod({"enableServiceLinks": False}, namespace="ml")) == {}


def test_address_of_the_api_server_is_not_given_as_a_service(links: ServiceLinks) -> None:
    assert links.known(pod(namespace="default")) == {}


def test_of_a_service_only_addresses_are_kept() -> None:
    kept = addresses_of(service("db", "ml", "10.1.1.1"))
    assert kept.body["spec"] == {"clusterIP": "10.1.1.1", "ports": [{"port": 5432, "name": "sql"}]}
