"""Many nodes behind one server: each at its port, opened and closed while it runs."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterator

import aiohttp
import pytest

from tests.integration.server.backend import Backend, Stand, call, serving, tls
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.server import Endpoint
from vkubelet.server.listeners import ports_for, published_addresses
from vkubelet.testing.cluster import ControlPlane


async def test_two_nodes_never_answer_for_each_others_pods(hub: ControlPlane, stand: Stand, namespace: str, node: str) -> None:
    here, there = await stand.node(node), await stand.node(f"{node}-2")
    pod = await stand.pod(namespace, node)
    stand.backend.write(pod, b"2026-01-01T00:00:00Z mine\n")
    path = f"/containerLogs/{namespace}/web/app"
    assert (await call(hub, here, path)).text == "mine\n"
    foreign = await call(hub, there, path)
    assert (foreign.status, foreign.text) == (404, 'pod "web" does not exist')
    assert json.loads((await call(hub, there, "/pods")).text)["items"] == []


async def test_the_main_port_serves_the_pods_of_all_nodes_but_no_node(hub: ControlPlane, stand: Stand, namespace: str, node: str) -> None:
    await stand.node(node)
    stand.backend.write(await stand.pod(namespace, node), b"2026-01-01T00:00:00Z mine\n")
    assert stand.server.main_port is not None
    main = Endpoint(hub.host_address, stand.server.main_port)
    assert (await call(hub, main, f"/containerLogs/{namespace}/web/app")).text == "mine\n"
    assert (await call(hub, main, "/healthz")).text == "ok"
    assert "kubeletVersion" in json.loads((await call(hub, main, "/version")).text)
    assert (await call(hub, main, "/pods")).status == 404


async def test_node_proxy_reaches_the_node(hub: ControlPlane, stand: Stand, namespace: str, node: str) -> None:
    await stand.node(node)
    pod = await stand.pod(namespace, node)
    stand.report(pod)
    listed = json.loads(await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods"))
    assert listed["kind"] == "PodList"
    item = listed["items"][0]
    seen = json.loads(await hub.kubectl("get", "pod", "-n", namespace, "web", "-o", "json"))
    assert (item["metadata"]["uid"], item["spec"], item["status"]) == (pod.metadata.uid, seen["spec"], seen["status"])
    running = json.loads(await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/runningpods/"))
    assert [(p["metadata"]["uid"], p["spec"]["containers"][0]["name"]) for p in running["items"]] == [(pod.metadata.uid, "app")]
    assert await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/healthz") == "ok"


async def test_other_paths_and_methods(hub: ControlPlane, stand: Stand, node: str) -> None:
    endpoint = await stand.node(node)
    unknown = await call(hub, endpoint, "/nothing")
    assert (unknown.status, unknown.text) == (404, "404 page not found")
    moved = await call(hub, endpoint, "/runningpods")
    assert (moved.status, moved.headers["Location"]) == (301, "/runningpods/")
    wrong = await call(hub, endpoint, "/pods", method="DELETE")
    assert wrong.status == 405
    assert (await call(hub, endpoint, "/healthz/moon")).status == 404
    assert (await call(hub, endpoint, "/healthz/ping")).text == "ok"
    assert (await call(hub, endpoint, "/exec/a/b/c", method="POST")).status == 501


async def test_opening_again_changes_nothing_and_closing_frees_the_port(hub: ControlPlane, stand: Stand, node: str) -> None:
    expected = next(free_ports(node))
    first = await stand.server.open(node)
    assert first.port == expected
    assert await stand.server.open(node, preferred_port=16000) == first
    assert (await call(hub, first, "/healthz")).status == 200
    await stand.server.close(node)
    await stand.server.close(node)
    with pytest.raises((aiohttp.ClientError, OSError)):
        await call(hub, first, "/healthz")
    assert await stand.server.open(f"{node}-b", preferred_port=first.port) == first


async def test_connection_kept_alive_past_its_node_belongs_to_nobody(hub: ControlPlane, stand: Stand, node: str) -> None:
    endpoint = await stand.server.open(node)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True))) as session:
        url = f"https://{endpoint.address}:{endpoint.port}/pods"
        async with session.get(url) as response:
            assert response.status == 200
        await stand.server.close(node)
        async with session.get(url) as response:
            assert response.status == 404


async def test_ports_taken_by_others_are_skipped(hub: ControlPlane, stand: Stand, node: str) -> None:
    ports = free_ports(node)
    with socket.create_server(("0.0.0.0", next(ports))):
        expected = next(ports)
        assert (await stand.server.open(node)).port == expected


def free_ports(node: str) -> Iterator[int]:
    """Those that a node tries in turn, but for what somebody else has."""
    for port in ports_for(node, first=15000, last=29999):
        try:
            socket.create_server(("0.0.0.0", port)).close()
        except OSError:
            continue
        yield port


async def test_hundreds_of_listeners_open_quickly(stand: Stand, node: str) -> None:
    endpoints = {(await stand.server.open(f"{node}-{number}")).port for number in range(500)}
    assert len(endpoints) == 500


async def test_a_taken_main_port_is_told_by_its_setting(hub: ControlPlane) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        with pytest.raises(SettingsError, match=r"server\.main_port"):
            async with serving(hub, Backend(), main_port=taken.getsockname()[1]):
                pass


async def test_the_main_port_can_be_off(hub: ControlPlane) -> None:
    async with serving(hub, Backend(), main_port=False) as stand:
        assert stand.server.main_port is None


async def test_the_published_address_is_never_a_wildcard(hub: ControlPlane, node: str) -> None:
    async with serving(hub, Backend(), node_address="", main_port=False) as stand:
        found = (await stand.server.open(node)).address
        assert not found.startswith(("0.", "127."))
    async with serving(hub, Backend(), node_address="", bind_address=hub.host_address, main_port=False) as stand:
        assert (await stand.server.open(node)).address == hub.host_address


async def test_listening_on_all_addresses_publishes_one_of_each_family_there_is(hub: ControlPlane, node: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(hub, Backend(), node_address="", bind_address="::", main_port=False) as stand:
        found = await stand.server.open(node)
        addresses = [ipaddress.ip_address(each) for each in (found.address, *found.also)]
        assert len({each.version for each in addresses}) == len(addresses)
        assert not any(each.is_unspecified or each.is_loopback or each.is_link_local for each in addresses)
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, found.port), timeout=5).close()


async def test_an_api_server_reached_over_ipv6_needs_a_server_that_listens_there() -> None:
    with pytest.raises(Unavailable, match=r"server\.bind_address listens on IPv4 only"):
        await published_addresses("0.0.0.0", "https://[2001:db8::5]:6443")
    assert await published_addresses("2001:db8::7", "https://203.0.113.1:6443") == ("2001:db8::7",)


async def test_a_connection_serves_one_request_after_another(hub: ControlPlane, stand: Stand, node: str) -> None:
    endpoint = await stand.node(node)
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port, ssl=tls(hub, certificate=True))
    for path, body in (("/healthz", b"ok"), ("/nothing", b"404 page not found"), ("/healthz/ping", b"ok")):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: kubelet\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert f"content-length: {len(body)}\r\n".encode() in head
        assert b"server:" not in head
        assert await reader.readexactly(len(body)) == body
    writer.close()


async def test_a_server_that_stops_takes_no_more_connections_and_no_more_requests(hub: ControlPlane, stand: Stand, node: str) -> None:
    endpoint = await stand.node(node)
    url = f"https://{endpoint.address}:{endpoint.port}/healthz"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True), limit=1)) as kept:
        async with kept.get(url) as before:
            assert (before.status, await before.text()) == (200, "ok")
        stand.server.stop_listening()
        async with kept.get(url) as refused:
            assert (refused.status, await refused.text()) == (503, "this kubelet server is stopping; try again in a few seconds")
            assert refused.headers["Connection"] == "close"
        with pytest.raises(aiohttp.ClientConnectorError):
            await kept.get(url)
