"""Who is let in, judged by the real hub: its client CA, its TokenReview, its RBAC."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from tests.integration.server.backend import Backend, Stand, call, granted, serving, tls
from tests.support.audit import Audit
from tests.support.program import eventually
from vkubelet.server import Endpoint
from vkubelet.server.settings import DebugSettings
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.cluster import ClusterError, ControlPlane
from vkubelet.testing.cluster.pki import Authority, KeyFiles


@pytest.fixture
async def endpoint(stand: Stand, node: str) -> Endpoint:
    return await stand.node(node)


@pytest.fixture
async def token(hub: ControlPlane, namespace: str) -> AsyncIterator[str]:
    """Of a ServiceAccount that may read node metrics and nothing else."""
    role = f"metrics-{namespace}"
    await hub.kubectl("create", "clusterrole", role, "--verb=get", "--resource=nodes/metrics,nodes/healthz")
    await hub.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace}:default")
    user = f"system:serviceaccount:{namespace}:default"
    await granted(hub, user, "nodes/metrics", "nodes/healthz")
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


async def with_certificate(hub: ControlPlane, endpoint: Endpoint, pair: KeyFiles) -> str:
    """The answer of /healthz to whoever has this certificate."""
    context = ssl.create_default_context(cafile=str(hub.ca))
    context.load_cert_chain(pair.certificate, pair.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        async with session.get(f"https://{endpoint.address}:{endpoint.port}/healthz") as response:
            return await response.text()


async def test_a_bad_certificate_is_cut_off_even_where_anonymous_callers_are_let_in(
    hub: ControlPlane, bare_hub: ControlPlane, node: str, namespace: str, tmp_path: Path
) -> None:
    """A kubelet answers 401; `ssl` ends the handshake with an alert instead. Either way nobody becomes anonymous by a bad proof."""
    long_ago = Authority.load(KeyFiles(hub.ca, hub.ca.with_suffix(".key")), ManualClock(datetime(2020, 1, 1, tzinfo=UTC)))
    expired = long_ago.client("kube-apiserver", ["system:masters"]).write(tmp_path, "expired")
    role = f"open-{namespace}"
    await hub.kubectl("create", "clusterrole", role, "--verb=get", "--resource=nodes/healthz")
    await hub.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", "--user=system:anonymous")
    await granted(hub, "system:anonymous", "nodes/healthz")
    try:
        async with serving(hub, Backend(), anonymous=True) as stand:
            endpoint = await stand.node(node)
            assert (await call(hub, endpoint, "/healthz", certificate=False)).text == "ok"
            for pair in (bare_hub.kubelet_client, expired):
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await with_certificate(hub, endpoint, pair)
            assert await with_certificate(hub, endpoint, hub.kubelet_client) == "ok"
    finally:
        await hub.kubectl("delete", "clusterrole,clusterrolebinding", role)


SUBRESOURCES = {
    "stats": ["/stats/summary"],
    "metrics": ["/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis"],
    "log": ["/logs/", "/logs/kubelet.log"],
    "checkpoint": ["/checkpoint/a/b/c"],
    "configz": ["/configz"],
    "pods": ["/pods", "/runningpods/"],
    "healthz": ["/healthz", "/healthz/ping"],
    "proxy": ["/containerLogs/a/b/c", "/debug/pprof/goroutine", "/nothing"],
}
ALSO_BY_PROXY = {"/pods", "/runningpods/", "/healthz", "/healthz/ping", "/configz", *SUBRESOURCES["proxy"]}


async def test_each_path_opens_by_the_right_on_its_subresource_and_by_no_other(hub: ControlPlane, namespace: str, node: str) -> None:
    """One ServiceAccount for each subresource, with the rights `get` and `create` on it alone."""
    manifest = [item for name in SUBRESOURCES for item in _account(namespace, name)]
    listing = {"apiVersion": "v1", "kind": "List", "items": manifest}
    await hub.kubectl("apply", "-f", "-", stdin=json.dumps(listing))
    for name in SUBRESOURCES:
        await granted(hub, f"system:serviceaccount:{namespace}:{name}", f"nodes/{name}")
    tokens = {name: (await hub.kubectl("create", "token", "-n", namespace, name)).strip() for name in SUBRESOURCES}
    opened: dict[str, set[str]] = {}
    try:
        async with serving(hub, Backend(), debug=DebugSettings(profiling=True)) as stand:
            endpoint = await stand.node(node)
            for path in (path for paths in SUBRESOURCES.values() for path in paths):
                method = "POST" if path.startswith("/checkpoint") else "GET"
                replies = {n: await call(hub, endpoint, path, method=method, certificate=False, token=t) for n, t in tokens.items()}
                opened[path] = {name for name, reply in replies.items() if reply.status != 403}
    finally:
        await hub.kubectl("delete", "clusterrole,clusterrolebinding", "-l", f"test={namespace}")
    for name, paths in SUBRESOURCES.items():
        for path in paths:
            assert opened[path] == {name} | ({"proxy"} if path in ALSO_BY_PROXY else set()), path


def _account(namespace: str, subresource: str) -> list[dict[str, object]]:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{namespace}-{subresource}"}
    metadata = {"name": role["name"], "labels": {"test": namespace}}
    rbac = "rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": [f"nodes/{subresource}"], "verbs": ["get", "create"]}]
    subjects = [{"kind": "ServiceAccount", "name": subresource, "namespace": namespace}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": subresource, "namespace": namespace}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects},
    ]


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
    # The kubelet server is an administrator here; others may ask such things as well.
    audit = Audit(hub, f"{hub.name}-admin")

    def asked() -> Counter[str]:
        return Counter(call.what for call in audit.calls() if call.what in ("tokenreviews", "subjectaccessreviews"))

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(call(hub, endpoint, "/pods", certificate=False, token=token))
    for _ in range(5):
        await call(hub, endpoint, "/pods", certificate=False, token=token)
    # One for the token; one for each of the subresources `pods` and `proxy`.
    await eventually(lambda: asked() == Counter(tokenreviews=1, subjectaccessreviews=2), "three reviews are in the audit log")


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

        await eventually(let_in, "the new CA counts")


async def test_kubectl_of_a_user_without_rights_does_not_reach_the_kubelet(hub: ControlPlane, stand: Stand, node: str) -> None:
    await stand.node(node)
    with pytest.raises(ClusterError, match="Forbidden"):
        await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods", "--as=ann")
