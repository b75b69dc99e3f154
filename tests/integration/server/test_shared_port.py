"""Rule `shared-port`: nodes on the main port; a node route takes its node from the header of the API server and of no other client."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict

from tests.integration.server.backend import Backend, Stand, granted, serving, tls
from tests.integration.server.metered import Metered
from vkubelet.server import Endpoint, ServerSettings
from vkubelet.testing.cluster import ControlPlane

HEADER = "X-Forwarded-Uri"


@pytest.fixture
async def stand(hub: ControlPlane) -> AsyncIterator[Stand]:
    async with serving(hub, Metered(), listening="shared") as running:
        yield running


@pytest.fixture
def there(node: str) -> str:
    return f"{node}-2"


@pytest.fixture
async def shared(stand: Stand, node: str, there: str, namespace: str) -> Endpoint:
    """`node` with the pod `web`, `there` with the pod `other`, both at one port."""
    assert isinstance(stand.backend, Metered)
    first, second = await stand.node(node), await stand.node(there)
    assert first == second
    assert first.port == stand.server.main_port
    for name, place in (("web", node), ("other", there)):
        pod = await stand.pod(namespace, place, name=name)
        stand.backend.write(pod, f"2026-01-01T00:00:00Z of {name}\n".encode())
        stand.backend.use(pod.ref)
    return first


def asked_for(node: str, path: str = "pods") -> str:
    return f"/api/v1/nodes/{node}/proxy/{path}"


async def ask(
    endpoint: Endpoint,
    context: ssl.SSLContext,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
) -> tuple[int, str]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        url = f"https://{endpoint.address}:{endpoint.port}{path}"
        async with session.request(method, url, headers=CIMultiDict(headers)) as response:
            return response.status, await response.text()


def names(pod_list: str) -> list[str]:
    return [item["metadata"]["name"] for item in json.loads(pod_list)["items"]]


def client(hub: ControlPlane, directory: Path, user: str, *, groups: Sequence[str] = ()) -> ssl.SSLContext:
    """Somebody with a certificate of the hub's client CA."""
    hub.authority.client(user, groups).write(directory, user)
    context = ssl.create_default_context(cafile=str(hub.ca))
    context.load_cert_chain(directory / f"{user}.crt", directory / f"{user}.key")
    return context


async def test_kubectl_finds_pods_by_path_and_nodes_by_the_node_proxy(
    hub: ControlPlane, shared: Endpoint, node: str, there: str, namespace: str
) -> None:
    for pod in ("web", "other"):
        assert await hub.kubectl("logs", "-n", namespace, pod, "-c", "app") == f"of {pod}\n"
    for place, pod in ((node, "web"), (there, "other")):
        assert names(await hub.kubectl("get", "--raw", asked_for(place))) == [pod]
        summary = json.loads(await hub.kubectl("get", "--raw", asked_for(place, "stats/summary")))
        assert (summary["node"]["nodeName"], summary["pods"][0]["podRef"]["name"]) == (place, pod)
        assert f'pod="{pod}"' in await hub.kubectl("get", "--raw", asked_for(place, "metrics/resource"))
        assert f'kubelet_node_name{{node="{place}"}} 1.0' in await hub.kubectl("get", "--raw", asked_for(place, "metrics"))


async def test_what_a_user_of_the_node_proxy_writes_into_the_header_does_not_count(
    hub: ControlPlane, shared: Endpoint, node: str, there: str, tmp_path: Path
) -> None:
    """The user talks to the API server, which sets the header anew."""
    admin = client(hub, tmp_path, "boss", groups=["system:masters"])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=admin)) as session:
        async with session.get(hub.url + asked_for(node), headers={HEADER: asked_for(there)}) as response:
            assert names(await response.text()) == ["web"]


async def test_the_header_counts_on_plain_gets_with_the_api_servers_certificate(
    hub: ControlPlane, stand: Stand, shared: Endpoint, node: str, there: str
) -> None:
    api_server = tls(hub, certificate=True)
    named = {HEADER: asked_for(there)}
    status, text = await ask(shared, api_server, "/pods", headers=named)
    assert (status, names(text)) == (200, ["other"])
    for method, path, headers in (
        ("GET", "/pods", {}),
        ("POST", "/stats/summary", named),
        ("GET", "/pods", {**named, "Upgrade": "websocket"}),
        ("GET", "/pods", {**named, "Connection": "Upgrade"}),
        ("GET", "/pods", {**named, "Connection": "keep-alive, upgrade"}),
        ("GET", "/pods", {HEADER: asked_for("nobody")}),
        ("GET", "/pods", {HEADER: "/pods"}),
        ("GET", "/pods", [(HEADER, asked_for(node)), (HEADER, asked_for(there))]),
    ):
        status, text = await ask(shared, api_server, path, method=method, headers=headers)
        assert status == 404, (method, path, headers)
    await stand.server.close(there)
    assert (await ask(shared, api_server, "/pods", headers=named))[0] == 404
    assert (await ask(shared, api_server, "/pods", headers={HEADER: asked_for(node)}))[0] == 200


async def test_a_pod_of_another_node_than_the_one_named_does_not_exist(
    hub: ControlPlane, shared: Endpoint, node: str, there: str, namespace: str
) -> None:
    path = f"/containerLogs/{namespace}/other/app"
    api_server = tls(hub, certificate=True)
    assert await ask(shared, api_server, path) == (200, "of other\n")
    assert await ask(shared, api_server, path, headers={HEADER: asked_for(there)}) == (200, "of other\n")
    assert (await ask(shared, api_server, path, headers={HEADER: asked_for(node)}))[0] == 404


async def test_a_certificate_opens_the_nodes_its_owner_has_rights_on(
    hub: ControlPlane, shared: Endpoint, node: str, there: str, namespace: str, tmp_path: Path
) -> None:
    user = f"ann-{namespace}"
    ann = client(hub, tmp_path, user)
    await hub.kubectl("create", "clusterrole", user, "--verb=get", "--resource=nodes/pods", f"--resource-name={node}")
    await hub.kubectl("create", "clusterrolebinding", user, f"--clusterrole={user}", f"--user={user}")
    try:
        await granted(hub, user, "nodes/pods", name=node)
        status, text = await ask(shared, ann, "/pods", headers={HEADER: asked_for(node)})
        assert (status, names(text)) == (200, ["web"])
        for headers in ({HEADER: asked_for(there)}, {}):
            status, text = await ask(shared, ann, "/pods", headers=headers)
            assert status == 403, headers
            assert f"user={user}" in text
    finally:
        await hub.kubectl("delete", "clusterrole,clusterrolebinding", user)


async def test_the_header_of_a_token_or_of_nobody_does_not_count(hub: ControlPlane, node: str, namespace: str) -> None:
    role = f"pods-{namespace}"
    await hub.kubectl("create", "clusterrole", role, "--verb=get", "--resource=nodes/pods")
    subjects = (f"--serviceaccount={namespace}:default", "--user=system:anonymous")
    await hub.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", *subjects)
    token = (await hub.kubectl("create", "token", "-n", namespace, "default")).strip()
    named = {HEADER: asked_for(node)}
    try:
        for user in (f"system:serviceaccount:{namespace}:default", "system:anonymous"):
            await granted(hub, user, "nodes/pods")
        async with serving(hub, Backend(), listening="shared", anonymous=True) as stand:
            endpoint = await stand.node(node)
            stranger = tls(hub, certificate=False)
            assert (await ask(endpoint, tls(hub, certificate=True), "/pods", headers=named))[0] == 200
            assert (await ask(endpoint, stranger, "/pods", headers={**named, "Authorization": f"Bearer {token}"}))[0] == 404
            assert (await ask(endpoint, stranger, "/pods", headers=named))[0] == 404
    finally:
        await hub.kubectl("delete", "clusterrole,clusterrolebinding", role)


async def test_with_a_port_for_each_node_the_header_means_nothing(hub: ControlPlane, node: str, there: str, namespace: str) -> None:
    assert ServerSettings().listening == "per-node"
    async with serving(hub, Backend()) as stand:
        here = await stand.node(node)
        await stand.node(there)
        await stand.pod(namespace, node)
        await stand.pod(namespace, there, name="other")
        api_server = tls(hub, certificate=True)
        status, text = await ask(here, api_server, "/pods", headers={HEADER: asked_for(there)})
        assert (status, names(text)) == (200, ["web"])
        assert stand.server.main_port is not None
        main = Endpoint(hub.host_address, stand.server.main_port)
        assert (await ask(main, api_server, "/pods", headers={HEADER: asked_for(node)}))[0] == 404
