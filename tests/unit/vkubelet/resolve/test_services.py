"""Variables of Services, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.resolve.services import service_variables


def service(name: str, namespace: str, ip: str, *ports: dict[str, Any]) -> dict[str, Any]:
    spec = {"clusterIP": ip, "ports": list(ports) or [{"port": 80, "protocol": "TCP"}]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


KUBERNETES = service("kubernetes", "default", "10.0.0.1", {"name": "https", "port": 443, "protocol": "TCP"})
WEB = service(
    "my-web", "ours", "10.0.0.9", {"name": "main-port", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}
)


def test_every_port_of_a_service_has_its_seven_kinds_of_names() -> None:
    assert service_variables([WEB], namespace="ours", links=True) == {
        "MY_WEB_SERVICE_HOST": "10.0.0.9",
        "MY_WEB_SERVICE_PORT": "80",
        "MY_WEB_SERVICE_PORT_MAIN_PORT": "80",
        "MY_WEB_SERVICE_PORT_DNS": "53",
        "MY_WEB_PORT": "tcp://10.0.0.9:80",
        "MY_WEB_PORT_80_TCP": "tcp://10.0.0.9:80",
        "MY_WEB_PORT_80_TCP_PROTO": "tcp",
        "MY_WEB_PORT_80_TCP_PORT": "80",
        "MY_WEB_PORT_80_TCP_ADDR": "10.0.0.9",
        "MY_WEB_PORT_53_UDP": "udp://10.0.0.9:53",
        "MY_WEB_PORT_53_UDP_PROTO": "udp",
        "MY_WEB_PORT_53_UDP_PORT": "53",
        "MY_WEB_PORT_53_UDP_ADDR": "10.0.0.9",
    }


def test_addresses_of_version_six_are_bracketed_in_urls_only() -> None:
    found = service_variables([service("six", "ours", "fd00::1")], namespace="ours", links=True)
    assert (found["SIX_PORT"], found["SIX_SERVICE_HOST"], found["SIX_PORT_80_TCP_ADDR"]) == ("tcp://[fd00::1]:80", "fd00::1", "fd00::1")


@pytest.mark.parametrize("ip", ["", "None"])
def test_headless_and_external_services_are_not_told_of(ip: str) -> None:
    assert service_variables([service("web", "ours", ip)], namespace="ours", links=True) == {}


def test_without_links_only_the_api_server_is_told_of() -> None:
    found = service_variables([KUBERNETES, WEB], namespace="ours", links=False)
    assert {name.split("_")[0] for name in found} == {"KUBERNETES"}
    assert found["KUBERNETES_SERVICE_PORT_HTTPS"] == "443"


def test_services_of_other_namespaces_are_not_told_of() -> None:
    found = service_variables([KUBERNETES, service("web", "default", "10.0.0.2")], namespace="ours", links=True)
    assert {name.split("_")[0] for name in found} == {"KUBERNETES"}


@pytest.mark.parametrize("turned", [False, True])
def test_a_service_of_the_namespace_named_kubernetes_goes_before(turned: bool) -> None:
    services = [KUBERNETES, service("kubernetes", "ours", "10.0.0.7")]
    found = service_variables(reversed(services) if turned else services, namespace="ours", links=True)
    assert found["KUBERNETES_SERVICE_HOST"] == "10.0.0.7"
    assert "KUBERNETES_SERVICE_PORT_HTTPS" not in found


def test_a_service_without_ports_has_an_address() -> None:
    body = {"metadata": {"name": "bare", "namespace": "ours"}, "spec": {"clusterIP": "10.0.0.3"}}
    assert service_variables([body], namespace="ours", links=True) == {"BARE_SERVICE_HOST": "10.0.0.3"}
