"""The serving certificate: signed by the real signer of the hub, verified by its API server, exchanged while streams go on."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509 as reader

from tests.integration.patient import patient_connection
from tests.integration.server.backend import Backend, Stand, call, serving, tls
from tests.support.program import eventually
from vkubelet.api.objects import CSRS
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.control.certificates import Name, Pair, self_signed
from vkubelet.server import Endpoint, ServerSettings
from vkubelet.server.certificates import Certificates, Subject
from vkubelet.testing.cluster import ControlPlane


async def shown(endpoint: Endpoint) -> reader.Certificate:
    """What a new connection is shown."""
    pem = await asyncio.to_thread(ssl.get_server_certificate, (endpoint.address, endpoint.port))
    return reader.load_pem_x509_certificate(pem.encode())


async def certified(stand: Stand) -> None:
    await eventually(lambda: stand.server.problem is None, "it is certified", seconds=60)


async def test_kubectl_logs_works_with_a_certificate_signed_on_request(hub: ControlPlane, namespace: str, node: str) -> None:
    async with serving(hub, Backend(), certificate="csr", approve_own_csr=True) as stand:
        await certified(stand)
        endpoint = await stand.node(node)
        stand.backend.write(await stand.pod(namespace, node), b"2026-01-01T00:00:00Z verified\n")
        assert await hub.kubectl("logs", "-n", namespace, "web", "-c", "app") == "verified\n"
        certificate = await shown(endpoint)
        assert certificate.subject.rfc4514_string() == "CN=system:node:stand,O=system:nodes"


async def test_an_unapproved_request_waits_and_an_admin_can_approve_it(hub: ControlPlane, node: str) -> None:
    before = set((await hub.kubectl("get", "csr", "-o", "name")).split())
    async with serving(hub, Backend(), certificate="csr") as stand:
        new = await eventually(lambda: _new_requests(hub, before), "there is a request")
        assert len(new) == 1
        assert stand.server.problem is not None
        assert stand.server.problem == "no serving certificate yet"
        endpoint = await stand.server.open(node)
        with pytest.raises(OSError):
            await call(hub, endpoint, "/healthz")
        await hub.kubectl("certificate", "approve", *(name.partition("/")[2] for name in new))
        await certified(stand)
        assert (await call(hub, endpoint, "/healthz")).status == 200


async def _new_requests(hub: ControlPlane, before: set[str]) -> set[str]:
    return set((await hub.kubectl("get", "csr", "-o", "name")).split()) - before


async def test_until_it_is_issued_a_self_signed_one_can_serve(hub: ControlPlane, node: str) -> None:
    async with serving(hub, Backend(), certificate="csr", self_signed_until_issued=True) as stand:
        await certified(stand)
        endpoint = await stand.server.open(node)
        certificate = await shown(endpoint)
        assert certificate.issuer == certificate.subject


async def test_a_kept_certificate_is_used_again_after_a_restart(hub: ControlPlane, node: str, tmp_path: Path) -> None:
    settings = {"certificate": "csr", "approve_own_csr": True, "certificate_directory": str(tmp_path)}
    serials = []
    for _ in range(2):
        async with serving(hub, Backend(), **settings) as stand:
            await certified(stand)
            serials.append((await shown(await stand.server.open(node))).serial_number)
    assert serials[0] == serials[1]
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_changed_file_is_shown_to_new_connections(hub: ControlPlane, node: str, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def replace() -> None:
        pair = hub.serving_certificate("system:node:stand", [hub.host_address])
        certificate.write_bytes(pair.certificate.read_bytes())
        key.write_bytes(pair.key.read_bytes())

    replace()
    async with serving(hub, Backend(), certificate="files", certificate_file=str(certificate), key_file=str(key)) as stand:
        endpoint = await stand.server.open(node)
        first = await shown(endpoint)
        certificate.write_text("half of it is writ")
        replace()

        async def changed() -> bool:
            return await shown(endpoint) != first

        await eventually(changed, "the new certificate is shown", seconds=60)
        assert (await call(hub, endpoint, "/healthz")).status == 200


async def test_streams_over_a_connection_of_an_old_client_ca_do_not_keep_it_open(hub: ControlPlane, namespace: str, node: str) -> None:
    async with serving(hub, Backend(), client_ca_file=str(hub.ca)) as stand:
        endpoint = await stand.node(node)
        stand.backend.write(await stand.pod(namespace, node), b"2026-01-01T00:00:00Z once\n")
        url = f"https://{endpoint.address}:{endpoint.port}/containerLogs/{namespace}/web/app"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True))) as session:
            for _ in range(2):
                async with session.get(url) as response:
                    assert await response.text() == "once\n"
            stranger = self_signed(Name("stranger"), ["192.0.2.7"], now=SystemClock().now())
            stand.server._ports.tls.trust(stranger.certificate.decode())
            async with session.get(url) as response:
                await response.read()
            with pytest.raises((aiohttp.ClientError, OSError)):
                async with session.get(url) as response:
                    response.raise_for_status()


async def test_a_due_certificate_is_replaced_by_a_new_request(hub: ControlPlane) -> None:
    installed: list[Pair] = []
    async with Client(await patient_connection(hub.kubeconfig), field_manager="tests") as client:
        settings = ServerSettings(approve_own_csr=True)
        # A share of nothing makes each certificate due as soon as it is issued.
        certificates = Certificates(settings=settings, client=client, clock=SystemClock(), install=installed.append, share=lambda: 0.0)
        async with asyncio.TaskGroup() as group:
            subject = Subject(name="stand")
            subject.want("", [hub.host_address])
            run = group.create_task(certificates.run(subject))
            await eventually(lambda: len(installed) >= 2, "a second certificate was issued", seconds=60)
            run.cancel()
        keys = {pair.key for pair in installed}
        assert len(keys) == len(installed)
        requests = (await client.list(CSRS)).items
        assert any(item.body["spec"]["signerName"] == "kubernetes.io/kubelet-serving" for item in requests)
