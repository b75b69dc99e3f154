"""What is on and off of a kubelet's further handlers, asked for by kubectl through the API server and by curl-like calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from tests.integration.server.backend import Backend, Stand, call, serving, tls
from tests.integration.server.metered import Metered
from vkubelet.server import Endpoint
from vkubelet.server.settings import DebugSettings
from vkubelet.testing.cluster import ControlPlane


@pytest.fixture
async def metered(hub: ControlPlane) -> AsyncIterator[Stand]:
    """With every debug handler on."""
    async with serving(hub, Metered(), debug=DebugSettings(profiling=True)) as running:
        yield running


async def test_configz_tells_the_settings_by_the_names_of_a_kubelet_configuration(hub: ControlPlane, stand: Stand, node: str) -> None:
    await stand.node(node)
    told = json.loads(await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/configz"))["kubeletconfig"]
    assert told["authentication"]["anonymous"] == {"enabled": False}
    assert told["enableDebuggingHandlers"] is True
    assert told["enableProfilingHandler"] is False


async def test_node_logs_come_by_path_and_never_from_elsewhere(hub: ControlPlane, metered: Stand, node: str) -> None:
    endpoint = await metered.node(node)
    assert isinstance(metered.backend, Metered)
    proxy = f"/api/v1/nodes/{node}/proxy/logs"
    assert await hub.kubectl("get", "--raw", f"{proxy}/kubelet.log") == "it runs\n"
    assert "kubelet.log" in await hub.kubectl("get", "--raw", f"{proxy}/")
    assert (await call(hub, endpoint, "/logs/")).headers["Content-Type"].startswith("text/html")
    assert (await call(hub, endpoint, "/logs/pods/a%20b.log")).text == "spaced\n"
    moved = await call(hub, endpoint, "/logs")
    assert (moved.status, moved.headers["Location"]) == (301, "/logs/")
    missing = await call(hub, endpoint, "/logs/none.log")
    assert (missing.status, missing.text) == (404, "404 page not found")
    metered.backend.asked.clear()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True))) as session:
        for path in (
            "../kubelet.log",
            "%2e%2e/kubelet.log",
            "a/%2e%2e/kubelet.log",
            "..%2fkubelet.log",
            "%2fetc%2fpasswd",
            "a//b",
            "a%00b",
        ):
            url = URL(f"https://{endpoint.address}:{endpoint.port}/logs/{path}", encoded=True)
            async with session.get(url) as response:
                assert response.status == 404, path
    assert metered.backend.asked == []


@pytest.mark.parametrize("path", ["/logs/../configz", "/logs/%2e%2e/configz"])
async def test_a_path_that_goes_up_is_no_other_route(hub: ControlPlane, metered: Stand, node: str, path: str) -> None:
    """Clients that shorten paths themselves would hide it, so this one writes the request by hand."""
    endpoint = await metered.node(node)
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port, ssl=tls(hub, certificate=True))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert b" 404 " in await reader.readline()
    writer.close()


async def test_what_is_off_says_so_whatever_the_method(hub: ControlPlane, node: str) -> None:
    async with serving(hub, Metered(), debug=DebugSettings(node_logs=False)) as stand:
        endpoint = await stand.node(node)
        for path, text in (
            ("/logs/", "logs endpoint is disabled."),
            ("/logs/kubelet.log", "logs endpoint is disabled."),
            ("/debug/pprof/goroutine", "profiling endpoint is disabled."),
        ):
            for method in ("GET", "POST", "PUT"):
                reply = await call(hub, endpoint, path, method=method)
                assert (reply.status, reply.text) == (405, text), (method, path)


async def test_without_debug_handlers_nothing_reaches_into_pods(hub: ControlPlane, namespace: str, node: str) -> None:
    backend = Backend()
    async with serving(hub, backend, debug=DebugSettings(handlers=False, profiling=True)) as stand:
        endpoint = await stand.node(node)
        stand.backend.write(await stand.pod(namespace, node), b"2026-01-01T00:00:00Z hidden\n")
        for method, path in (
            ("GET", f"/containerLogs/{namespace}/web/app"),
            ("POST", f"/run/{namespace}/web/app?cmd=ls"),
            ("POST", f"/exec/{namespace}/web/app?command=ls&output=1"),
            ("GET", f"/exec/{namespace}/web/app?command=ls&output=1"),
            ("POST", f"/attach/{namespace}/web/app?output=1"),
            ("POST", f"/portForward/{namespace}/web"),
            ("GET", "/runningpods/"),
            ("GET", "/logs/"),
            ("GET", "/debug/pprof/"),
        ):
            reply = await call(hub, endpoint, path, method=method)
            assert (reply.status, reply.text) == (405, "Debug endpoints are disabled."), path
        for path in ("/pods", "/healthz", "/metrics", "/configz"):
            assert (await call(hub, endpoint, path)).status == 200, path
        assert (await call(hub, endpoint, "/containerLogs/a/b/c", certificate=False)).status == 401


async def test_tasks_of_the_process_are_listed_and_no_other_profile(hub: ControlPlane, metered: Stand, node: str) -> None:
    endpoint = await metered.node(node)
    assert "client CA" in await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/debug/pprof/goroutine")
    assert (await call(hub, endpoint, "/debug/pprof/goroutine", method="PUT")).status == 405
    for path in ("/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/cmdline", "/debug/flags/v", "/statusz", "/flagz"):
        assert (await call(hub, endpoint, path)).status == 404, path


async def test_health_is_told_plain_verbose_excluded_and_failing(hub: ControlPlane, node: str) -> None:
    reasons = [""]
    async with serving(hub, Backend(), health=lambda: reasons[0] or None) as stand:
        endpoint = await stand.node(node)
        assert (await call(hub, endpoint, "/healthz")).text == "ok"
        assert "[+]syncloop ok" in await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/healthz?verbose")
        reasons[0] = "a secret cause"
        failing = await call(hub, endpoint, "/healthz")
        assert failing.status == 500
        assert failing.text.endswith("[-]syncloop failed: reason withheld\nhealthz check failed\n")
        assert "secret" not in failing.text
        assert failing.headers["X-Content-Type-Options"] == "nosniff"
        assert (await call(hub, endpoint, "/healthz/syncloop")).status == 500
        assert (await call(hub, endpoint, "/healthz/ping")).text == "ok"
        excluded = await call(hub, endpoint, "/healthz?exclude=syncloop")
        assert (excluded.status, excluded.text) == (200, "ok")


async def test_endpoints_of_the_process_answer_at_the_main_port_too(hub: ControlPlane, metered: Stand, node: str) -> None:
    await metered.node(node)
    assert metered.server.main_port is not None
    main = Endpoint(hub.host_address, metered.server.main_port)
    for path in ("/configz", "/debug/pprof/goroutine", "/healthz", "/version"):
        assert (await call(hub, main, path)).status == 200, path
