"""Tests of fleet.agent.identity."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from fleet.agent.agent_settings import AgentSettings, ClientConfig
from fleet.agent.identity import Bootstrap, IssuedCertificate, agent_name, certificate_request, flaw, record
from vkubelet.control.certificates import Name, entries_of, self_signed
from vkubelet.errors import SettingsError
from vkubelet.testing.clock import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
USER = "system:open-cluster-management:w1:a7"
CA = self_signed(Name("ca"), ["ca.example"], now=NOW).certificate


def kubeconfig(*, context: str = "hub", token: str = "t0k3n", **cluster: Any) -> bytes:
    server = {"server": "https://hub.example:6443", "certificate-authority-data": base64.b64encode(CA).decode(), **cluster}
    body = {
        "current-context": context,
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
    }
    return yaml.safe_dump(body).encode()


def bootstrap(**changes: Any) -> Bootstrap:
    return Bootstrap.parse("bootstrap-hub-kubeconfig", kubeconfig(**changes))


def stored(*, user: str = USER, **changes: bytes) -> dict[str, bytes]:
    """The entries of the Secret after a certificate was issued."""
    pair = self_signed(Name(user), ["w1.example"], now=NOW)
    entries = {**entries_of(pair), "cluster-name": b"w1", "agent-name": b"a7", "kubeconfig": bootstrap().issued_kubeconfig("w1")}
    return {**entries, **changes}


def test_f_105_a_stored_certificate_of_the_same_hub_is_used() -> None:
    assert flaw(stored(), bootstrap(), "w1", now=NOW) == ""


def test_f_105_another_token_of_the_same_hub_changes_nothing() -> None:
    assert flaw(stored(), bootstrap(token="other"), "w1", now=NOW) == "" and bootstrap(token="other").leads_to(bootstrap())


@pytest.mark.parametrize(
    "change",
    [
        {"server": "https://other.example:6443"},
        {"proxy-url": "http://proxy.example:3128"},
        {"certificate-authority-data": base64.b64encode(self_signed(Name("b"), ["b"], now=NOW).certificate).decode()},
        {"context": "other"},
    ],
)
def test_f_105_another_server_proxy_ca_or_context_is_another_hub(change: dict[str, str]) -> None:
    assert "names another hub" in flaw(stored(), bootstrap(**change), "w1", now=NOW) and not bootstrap(**change).leads_to(bootstrap())


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "no certificate"),
        (stored(**{"tls.key": b"garbage"}), "no certificate"),
        (stored(user="system:open-cluster-management:w2:a7"), "another cluster"),
        (stored(user="system:open-cluster-management:w1:b8"), "another cluster"),
        (stored(kubeconfig=b"\x00"), "another hub"),
        (stored(kubeconfig=b"[]"), "another hub"),
    ],
)
def test_f_105_a_stored_identity_that_is_not_that_of_the_agent_is_not_used(entries: dict[str, bytes], words: str) -> None:
    assert words in flaw(entries, bootstrap(), "w1", now=NOW)


def test_f_105_an_expired_certificate_is_not_used() -> None:
    assert "expired" in flaw(stored(), bootstrap(), "w1", now=NOW + timedelta(days=366))


def test_f_105_a_clock_that_is_behind_does_not_discard_a_certificate() -> None:
    assert flaw(stored(), bootstrap(), "w1", now=NOW - timedelta(hours=1)) == ""


def test_f_105_the_stored_kubeconfig_names_the_files_of_its_secret() -> None:
    body = yaml.safe_load(bootstrap().issued_kubeconfig("w1"))
    assert body["users"][0]["user"] == {"client-certificate": "tls.crt", "client-key": "tls.key"}
    assert body["clusters"][0]["cluster"]["server"] == "https://hub.example:6443" and "t0k3n" not in str(body)


def test_f_101_a_bootstrap_kubeconfig_is_refused_by_its_secret_without_a_value_of_it() -> None:
    for data in (b"{", b"[]", kubeconfig(server="secret-server"), kubeconfig().replace(b"current-context: hub", b"")):
        with pytest.raises(SettingsError) as refused:
            Bootstrap.parse("bootstrap-hub-kubeconfig", data)
        assert "Secret bootstrap-hub-kubeconfig, key kubeconfig" in str(refused.value) and "secret-server" not in str(refused.value)


async def test_f_102_the_hub_is_reached_by_the_certificate_and_without_the_token() -> None:
    issued = IssuedCertificate(self_signed(Name(USER), ["w1"], now=NOW))
    connection = bootstrap().connection_with(issued)
    security = await connection.security(ManualClock())
    assert security.authorization == "" and connection.url == "https://hub.example:6443" and not connection.insecure
    issued.pair = self_signed(Name(USER), ["w1"], now=NOW)
    assert (await connection.security(ManualClock())).context is not security.context


def test_f_103_the_subject_is_that_of_the_agent_and_its_cluster() -> None:
    request = certificate_request(AgentSettings(cluster="w1"), "a7")
    assert request.name == Name(USER, ("system:open-cluster-management:w1",))
    assert request.prefix == "w1-" and request.labels == {"open-cluster-management.io/cluster-name": "w1"} and request.seconds is None
    more = certificate_request(AgentSettings(cluster="w1", managed_clusters_group=True, client_cert_expiration=7200), "a7")
    assert more.name.organizations == ("system:open-cluster-management:w1", "system:open-cluster-management:managed-clusters")
    assert more.seconds == 7200


def test_f_103_the_name_of_the_agent_is_random_and_made_once() -> None:
    assert agent_name({}) != agent_name({}) and agent_name({"agent-name": b"a7"}) == "a7" and ":" not in agent_name({"agent-name": b"a:b"})


def test_f_101_the_record_has_labels_annotations_and_addresses_of_the_settings() -> None:
    assert record(AgentSettings(cluster="w1")) == {"metadata": {"name": "w1"}, "spec": {}}
    annotations = {"agent.open-cluster-management.io/site": "lab"}
    configs = [ClientConfig(url="https://w1.example", ca_bundle="QQ==")]
    assert record(AgentSettings(cluster="w1", labels={"env": "edge"}, annotations=annotations, client_configs=configs)) == {
        "metadata": {"name": "w1", "labels": {"env": "edge"}, "annotations": annotations},
        "spec": {"managedClusterClientConfigs": [{"url": "https://w1.example", "caBundle": "QQ=="}]},
    }
