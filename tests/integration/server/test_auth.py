"""Who is let in, judged by the real hub: its client CA, its TokenReview, its RBAC."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.server.backend import Backend, Stand, call, serving, tls
from tests.support.program import eventually
from vkubelet.server import Endpoint
from vkubelet.testing.cluster import ClusterError, ControlPlane


@pytest.fixture
async def endpoint(stand: Stand, node: str) -> Endpoint:
    return await stand.node(node)


@pytest.fixture
async def token(hub: ControlPlane, namespace: str) -> AsyncIterator[str]:
    """Of a ServiceAccount that may read node metrics and nothing else."""
    role = f"metrics-{namespace}"
    await hub.kubectl("create", "clusterrole", role, "--verb=get", "--resource=nodes/metrics,nodes/healthz")
    await hub.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace}:default")
    yield (await hub.kubectl("create", "token", "-n", namespace, "default")).strip()
    await hub.kubectl("delete", "clusterrole,clusterrolebinding", role)


async def test_api_server_is_known_by_the_client_ca_the_cluster_publishes(hub: ControlPlane, endpoint: Endpoint) -> None:
    async def answer() -> bool:
        return (await call(hub, endpoint, "/healthz")).text == "ok"

    await eventually(answer, "the client CA is read")


@pytest.mark.parametrize("path", ["/healthz", "/pods", "/containerLogs/a/b/c", "/exec/a/b/c", "/nothing"])
async def test_nobody_gets_401_whatever_the_path(hub: ControlPlane, endpoint: Endpoint, path: str) -> None:
    reply = await call(hub, endpoint, path, certificate=False)
    assert (reply.status, reply.text) == (401, "Unauthorized")


async def test_wrong_token_gets_401(hub: ControlPlane, endpoint: Endpoint) -> None:
    reply = await call(hub, endpoint, "/healthz", certificate=False, token="not.a.token")
    assert (reply.status, reply.text) == (401, "Unauthorized")


async def test_token_opens_what_its_owner_may_and_nothing_else(hub: ControlPlane, endpoint: Endpoint, token: str, namespace: str) -> None:
    assert (await call(hub, endpoint, "/healthz", certificate=False, token=token)).text == "ok"
    assert (await call(hub, endpoint, "/metrics/resource", certificate=False, token=token)).status == 501
    user = f"system:serviceaccount:{namespace}:default"
    refused = await call(hub, endpoint, "/pods", certificate=False, token=token)
    assert refused.status == 403
    assert refused.text == f"Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])"
    posted = await call(hub, endpoint, "/exec/a/b/c", method="POST", certificate=False, token=token)
    assert posted.text == f"Forbidden (user={user}, verb=create, resource=nodes, subresource(s)=[proxy])"


async def test_certificate_of_a_user_without_rights_gets_403(hub: ControlPlane, endpoint: Endpoint, tmp_path: Path) -> None:
    hub.authority.client("ann", ["guests"]).write(tmp_path, "ann")
    context = ssl.create_default_context(cafile=str(hub.ca))
    context.load_cert_chain(tmp_path / "ann.crt", tmp_path / "ann.key")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        async with session.get(f"https://{endpoint.address}:{endpoint.port}/containerLogs/a/b/c") as response:
            assert response.status == 403
            assert await response.text() == "Forbidden (user=ann, verb=get, resource=nodes, subresource(s)=[proxy])"


async def test_certificate_of_another_ca_is_cut_off(hub: ControlPlane, bare_hub: ControlPlane, endpoint: Endpoint) -> None:
    context = ssl.create_default_context(cafile=str(hub.ca))
    context.load_cert_chain(bare_hub.kubelet_client.certificate, bare_hub.kubelet_client.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with pytest.raises((aiohttp.ClientError, OSError)):
            await session.get(f"https://{endpoint.address}:{endpoint.port}/healthz")


async def test_anonymous_callers_are_judged_by_rbac_when_allowed_at_all(hub: ControlPlane, node: str) -> None:
    async with serving(hub, Backend(), anonymous=True) as stand:
        endpoint = await stand.node(node)
        reply = await call(hub, endpoint, "/pods", certificate=False)
        assert reply.status == 403
        assert "user=system:anonymous" in reply.text
        assert (await call(hub, endpoint, "/pods", certificate=False, token="not.a.token")).status == 401


async def test_plain_http_is_refused(endpoint: Endpoint) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://{endpoint.address}:{endpoint.port}/healthz")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_only_http_1_1_is_offered_and_old_tls_refused(hub: ControlPlane, endpoint: Endpoint) -> None:
    context = tls(hub, certificate=False)
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(endpoint.address, endpoint.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    writer.close()
    old = tls(hub, certificate=False)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    _, writer = await asyncio.open_connection(endpoint.address, endpoint.port, ssl=old)
    writer.close()
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(endpoint.address, endpoint.port, ssl=old)


async def test_reviews_are_held_and_shared(hub: ControlPlane, endpoint: Endpoint, token: str, namespace: str) -> None:
    def asked() -> Counter[str]:
        entries = [json.loads(line) for line in hub.audit_log.read_text().splitlines()]
        names = [e["objectRef"]["resource"] for e in entries if e["verb"] == "create" and e["stage"] == "ResponseComplete"]
        return Counter(name for name in names if name in ("tokenreviews", "subjectaccessreviews"))

    before = asked()
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(call(hub, endpoint, "/pods", certificate=False, token=token))
    for _ in range(5):
        await call(hub, endpoint, "/pods", certificate=False, token=token)
    # One for the token; one for each of the subresources `pods` and `proxy`.
    await eventually(
        lambda: asked() - before == Counter(tokenreviews=1, subjectaccessreviews=2), "three reviews are in the audit log", seconds=5
    )


async def test_client_ca_file_is_followed_without_restart(hub: ControlPlane, bare_hub: ControlPlane, node: str, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes(bare_hub.ca.read_bytes())
    async with serving(hub, Backend(), client_ca_file=str(bundle)) as stand:
        endpoint = await stand.node(node)
        with pytest.raises((aiohttp.ClientError, OSError)):
            await call(hub, endpoint, "/healthz")
        bundle.write_bytes(bare_hub.ca.read_bytes() + hub.ca.read_bytes())

        async def let_in() -> bool:
            try:
                return (await call(hub, endpoint, "/healthz")).status == 200
            except (aiohttp.ClientError, OSError):
                return False

        await eventually(let_in, "the new CA counts", seconds=30)


async def test_kubectl_of_a_user_without_rights_does_not_reach_the_kubelet(hub: ControlPlane, stand: Stand, node: str) -> None:
    await stand.node(node)
    with pytest.raises(ClusterError, match="Forbidden"):
        await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods", "--as=ann")
