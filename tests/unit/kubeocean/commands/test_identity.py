"""The kubeconfig of the narrow identity."""

from __future__ import annotations

import base64

import pytest

from kubeocean.commands.identity import Credentials, Identity, connection_from_here, is_local, kubeconfig_of, text_of, title, why_kept
from vkubelet.api.objects import ObjectMeta
from vkubelet.client.connection import Connection, connection_from_kubeconfig
from vkubelet.client.tls import Pem, Tls, TlsSource
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.pki import Authority

_OWNER = Authority.create("owner", SystemClock())
OWNER_CA = _OWNER.pair.certificate
CLUSTER_CA = Authority.create("cluster", SystemClock()).pair.certificate
MADE = Credentials("the-token", CLUSTER_CA)
OWNERS = Pem("owner", OWNER_CA)


def admin(source: TlsSource, *, server_name: str = "", proxy: str = "") -> Connection:
    return Connection("https://10.0.0.1:6443", tls=Tls(source), server_name=server_name, proxy=proxy)


def cluster(connection: Connection, **more: str) -> dict[str, str]:
    out: dict[str, str] = kubeconfig_of(connection, MADE, namespace="mnt", **more)["clusters"][0]["cluster"]
    return out


def authority(made: dict[str, str]) -> bytes:
    return base64.b64decode(made["certificate-authority-data"])


def test_the_ca_is_the_owners_and_else_the_clusters_own() -> None:
    assert authority(cluster(admin(TlsSource(OWNERS)))) == OWNER_CA
    assert authority(cluster(admin(TlsSource(insecure=True)))) == CLUSTER_CA


def test_it_verifies_always_and_holds_nothing_of_the_owner() -> None:
    owner = _OWNER.client("owner", [])
    source = TlsSource(OWNERS, certificate=Pem("certificate", owner.certificate), key=Pem("key", owner.key), insecure=True)
    connection = admin(source, proxy="http://proxy:1")
    text = text_of(kubeconfig_of(connection, MADE, namespace="mnt"))
    assert "insecure" not in text and "proxy" not in text and base64.b64encode(owner.key).decode() not in text
    assert "the-token" in text


def test_the_server_is_the_owners_unless_another_way_is_named() -> None:
    connection = admin(TlsSource(OWNERS), server_name="api.example.org")
    assert cluster(connection)["server"] == "https://10.0.0.1:6443" and cluster(connection)["tls-server-name"] == "api.example.org"
    elsewhere = cluster(connection, server="https://worker.example.org")
    assert elsewhere["server"] == "https://worker.example.org" and "tls-server-name" not in elsewhere


def test_it_is_a_kubeconfig_that_kubeocean_itself_accepts() -> None:
    connection = connection_from_kubeconfig(text_of(kubeconfig_of(admin(TlsSource(OWNERS)), MADE, namespace="mnt")).encode())
    assert connection.url == "https://10.0.0.1:6443" and connection.namespace == "mnt" and not connection.insecure


def test_from_here_it_goes_the_way_of_the_owner() -> None:
    connection = connection_from_here(admin(TlsSource(OWNERS), proxy="http://proxy:1"), MADE, namespace="mnt")
    assert connection.proxy == "http://proxy:1" and connection.url == "https://10.0.0.1:6443"


def test_a_token_is_not_in_what_python_prints() -> None:
    assert "the-token" not in repr(MADE)


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://[::1]:6443", True),
        ("https://localhost", True),
        ("https://10.0.0.1", False),
        ("https://api", False),
    ],
)
def test_an_address_that_leads_nowhere_from_elsewhere_is_known(server: str, local: bool) -> None:
    assert is_local(server) is local


def test_objects_are_marked_as_ours_and_named_as_people_name_them() -> None:
    objects = Identity(mount_namespace="mnt").objects
    assert all(body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kubeocean-bind" for body in objects)
    assert [title(body) for body in objects][:2] == ["Namespace mnt", "ServiceAccount mnt/kubeocean-syncer"]


OURS = {"kubeocean.io/managed-by": "kubeocean"}
BOUND = ObjectMeta(name="leased", annotations={"kubeocean.io/mount-owner": "u_other"})


@pytest.mark.parametrize(
    ("labels", "namespaces", "pods", "why"),
    [
        (OURS, [], [], ""),
        (OURS, [ObjectMeta(name="default")], [], ""),
        (OURS, [ObjectMeta(name="default"), BOUND], [], "it is shared with the binding of namespace leased"),
        (OURS, [], [ObjectMeta(name="p", namespace="mnt")], "pod mnt/p uses it"),
        ({**OURS, "app.kubernetes.io/managed-by": "Helm"}, [], [], "Helm created it"),
        ({}, [], [], "another client created it"),
    ],
)
def test_the_class_of_all_bindings_goes_only_with_the_last_and_where_we_made_it(
    labels: dict[str, str], namespaces: list[ObjectMeta], pods: list[ObjectMeta], why: str
) -> None:
    assert why_kept(ObjectMeta(name="kubeocean-default", labels=labels), namespaces, pods) == why
