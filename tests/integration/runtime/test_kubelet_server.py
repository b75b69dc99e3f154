"""The kubelet server of the real program: its certificate, its metrics, and both families of addresses."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.runtime.fleet import Fleet, port
from tests.integration.server.backend import call
from tests.support.program import eventually
from vkubelet.server import Endpoint

ADDRESSED = Path(__file__).with_name("addressed.py")
WORKED = "kubelet_pod_worker_duration_seconds_count"
CSR = {"main_port": 0, "certificate": "csr", "approve_own_csr": True}


async def requests_of(fleet: Fleet) -> list[tuple[dict[str, Any], x509.CertificateSigningRequest]]:
    """The certificate requests of this fleet's process."""
    items = json.loads(await fleet.plane.kubectl("get", "csr", "-o", "json"))["items"]
    found = [(item, x509.load_pem_x509_csr(base64.b64decode(item["spec"]["request"]))) for item in items]
    return [(item, csr) for item, csr in found if fleet.instance in csr.subject.rfc4514_string()]


def named(extensions: x509.Extensions) -> set[str]:
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} | set(names.get_values_for_type(x509.DNSName))


async def shown(endpoint: Endpoint) -> x509.Certificate | None:
    """What a new connection is shown; None until there is something."""
    try:
        pem = await asyncio.to_thread(ssl.get_server_certificate, (endpoint.address, endpoint.port))
    except OSError:
        return None
    return x509.load_pem_x509_certificate(pem.encode())


async def certified(endpoint: Endpoint) -> x509.Certificate:
    """As soon as the request is signed; the node is Ready before that, as a kubelet's is."""
    found = await eventually(lambda: shown(endpoint), "there is a serving certificate")
    assert isinstance(found, x509.Certificate)
    return found


async def test_a_new_address_of_a_node_brings_a_new_certificate_while_it_runs(scheduled: Fleet) -> None:
    name, host, file = scheduled.name("a"), scheduled.plane.host_address, scheduled.directory / "addresses"
    file.write_text(f"InternalIP={host}")
    provider = {"node": name, "addresses": str(file)}
    server = {**CSR, "node_address": host}
    with scheduled.program(str(ADDRESSED), server=server, provider=provider) as program:
        (node,) = await scheduled.ready([name], program=program)
        endpoint = Endpoint(host, port(node))
        assert named((await certified(endpoint)).extensions) == {host}
        assert (await call(scheduled.plane, endpoint, "/healthz")).text == "ok"
        # The API server verifies the certificate for the first address.
        assert await scheduled.plane.kubectl("get", "--raw", f"/api/v1/nodes/{name}/proxy/healthz") == "ok"
        file.write_text(f"InternalIP={host} ExternalIP=192.0.2.77 Hostname={name}.example")

        async def renewed() -> bool:
            return named((await certified(endpoint)).extensions) == {host, "192.0.2.77", f"{name}.example"}

        await eventually(renewed, "the new addresses are in the certificate", seconds=60)
        assert port(await scheduled.until_node(name, lambda body: len(body["status"]["addresses"]) == 3, "publishes all")) == endpoint.port
        assert await scheduled.plane.kubectl("get", "--raw", f"/api/v1/nodes/{name}/proxy/healthz") == "ok"
    requests = await requests_of(scheduled)
    assert len(requests) == 2
    for item, csr in requests:
        assert item["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
        assert item["spec"]["usages"] == ["digital signature", "server auth"]
        assert csr.subject.rfc4514_string() == f"CN=system:node:{scheduled.instance},O=system:nodes"
    # Both may have been made in one second, and are told in no order.
    asked = [named(csr.extensions) for _, csr in requests]
    assert {host, "192.0.2.77", f"{name}.example"} in asked and {host} in asked


async def test_metrics_of_a_node_tell_of_its_queue_its_syncs_and_calls_of_the_api(scheduled: Fleet) -> None:
    here, there = scheduled.name("m-0"), scheduled.name("m-1")
    server = {"main_port": 0, "certificate": "csr", "approve_own_csr": True, "node_address": scheduled.plane.host_address}
    provider = {"node": scheduled.name("m"), "nodes": 2}
    with scheduled.program("mock", server=server, provider=provider) as program:
        nodes = await scheduled.ready([here, there], program=program)
        await certified(Endpoint(scheduled.plane.host_address, port(nodes[0])))
        await scheduled.create("one", "two", node=here)
        await scheduled.running("one", "two")

        async def scraped(node: str) -> dict[str, list[tuple[dict[str, str], float]]]:
            text = await scheduled.plane.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics")
            out: dict[str, list[tuple[dict[str, str], float]]] = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    out.setdefault(sample.name, []).append((sample.labels, sample.value))
            return out

        async def counted() -> dict[str, list[tuple[dict[str, str], float]]] | None:
            """A write shows in the pod before its answer is counted, and a call of the provider ends behind its report."""
            found = await scraped(here)
            created = [value for labels, value in found.get(WORKED, ()) if labels["operation_type"] == "create"]
            written = [value for _, value in found.get("kubelet_pod_status_sync_duration_seconds_count", ())]
            return found if created == [2.0] and written and written[0] >= 2 else None

        busy = await eventually(counted, "both pods were created and their status written")
        idle = await scraped(there)
        assert busy["kubelet_node_name"] == [({"node": here}, 1.0)]
        assert busy["kubelet_running_pods"] == [({}, 2.0)]
        assert idle["kubelet_running_pods"] == [({}, 0.0)]
        assert {labels["queue"] for labels, _ in busy["vkubelet_node_queue_depth"]} == {"pods", "pod-status"}
        assert all(labels["node"] == here for labels, _ in busy["vkubelet_node_queue_depth"])
        assert WORKED not in idle
        assert any(labels["resource"] == "pods" and labels["code"] == "200" for labels, _ in busy["vkubelet_api_seconds_count"])
        assert busy["kubelet_certificate_manager_server_ttl_seconds"][0][1] > 0
        assert {labels["controller"] for labels, _ in busy["vkubelet_reconcile_seconds_count"]} >= {"pods", "nodes"}
        configuration = json.loads(await scheduled.plane.kubectl("get", "--raw", f"/api/v1/nodes/{here}/proxy/configz"))["kubeletconfig"]
        assert (configuration["nodeLeaseDurationSeconds"], configuration["serverTLSBootstrap"]) == (40, True)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_a_node_of_both_families_is_reached_verified_and_serves_logs_over_each(scheduled: Fleet) -> None:
    """IPv6 is also how it reaches the API server, and how that one reaches it: by the first address."""
    name, host = scheduled.name("d"), scheduled.plane.host_address
    scheduled.kubeconfig = scheduled.plane.client_config("boss", ["system:masters"], host="[::1]")
    server = {**CSR, "bind_address": "::", "node_address": f"::1,{host}"}
    with scheduled.program("mock", server=server, provider={"node": name}) as program:
        (node,) = await scheduled.ready([name], program=program)
        addresses = [(each["type"], each["address"]) for each in node["status"]["addresses"]]
        assert addresses == [("InternalIP", "::1"), ("InternalIP", host)]
        certificate = await certified(Endpoint(host, port(node)))
        for address in ("[::1]", host):
            assert (await call(scheduled.plane, Endpoint(address, port(node)), "/healthz")).text == "ok"
        assert {ipaddress.ip_address(each) for each in named(certificate.extensions)} == {
            ipaddress.ip_address("::1"),
            ipaddress.ip_address(host),
        }
        await scheduled.create("web", node=name)
        (pod,) = await scheduled.running("web")
        assert [each["ip"] for each in pod["status"]["hostIPs"]] == ["::1", host]
        assert "started" in await scheduled.kubectl("logs", "web")
