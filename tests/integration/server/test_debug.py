"""What is on and off of a kubelet's further handlers, asked for by kubectl through the API server and by curl-like calls."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from tests.integration.server.backend import Backend, Stand, call, serving, tls
from tests.integration.server.metered import Metered
from tests.support.program import PATIENCE, eventually
from vkubelet import logformat
from vkubelet.server import Endpoint
from vkubelet.server.settings import DebugSettings
from vkubelet.testing.cluster import ControlPlane


@pytest.fixture
async def metered(hub: ControlPlane) -> AsyncIterator[Stand]:
    """With every debug handler on."""
    async with serving(hub, Metered(), debug=DebugSettings(profiling=True, flags=True, zpages=True)) as running:
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
            ("/debug/pprof/", "profiling endpoint is disabled."),
            ("/debug/pprof/profile", "profiling endpoint is disabled."),
            ("/debug/flags/v", "flags endpoint is disabled."),
        ):
            for method in ("GET", "POST", "PUT"):
                reply = await call(hub, endpoint, path, method=method)
                assert (reply.status, reply.text) == (405, text), (method, path)
        assert (await call(hub, endpoint, "/statusz")).status == 404
        assert (await call(hub, endpoint, "/flagz")).status == 404


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


async def test_a_profile_can_be_taken_one_at_a_time(hub: ControlPlane, metered: Stand, node: str) -> None:
    endpoint = await metered.node(node)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True))) as session:
        base = f"https://{endpoint.address}:{endpoint.port}/debug/pprof"

        async def ask(path: str) -> tuple[int, bytes]:
            async with session.get(f"{base}/{path}") as response:
                return response.status, await response.read()

        # Longer than anybody waits here: whichever comes second is refused, and the other ends because its caller leaves.
        both = [asyncio.create_task(ask("profile?seconds=600")) for _ in range(2)]
        (refused,), (going,) = await asyncio.wait(both, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        status, text = refused.result()
        assert (status, b"another profile" in text) == (500, True)

        async def taken() -> bytes:
            status, body = await ask("profile?seconds=0.1")
            return body if status == 200 else b""

        assert b"nanoseconds" in gzip.decompress(await eventually(taken, "another one can be taken"))
        assert b"client CA" in (await ask("goroutine"))[1]
        async with session.get(f"{base}/cmdline") as response:
            assert (await response.text()).split("\0") == sys.orig_argv
        async with session.get(f"{base}/") as response:
            assert 'href="profile"' in await response.text()
    for path, status in (("profile?seconds=x", 400), ("profile?seconds=601", 400), ("nothing", 404), ("trace", 501)):
        assert (await call(hub, endpoint, f"/debug/pprof/{path}")).status == status, path


@pytest.fixture
def levels() -> AsyncIterator[None]:
    """The levels of our loggers, put back afterwards."""
    before = {name: logging.getLogger(name).level for name in logformat._OURS}
    yield  # type: ignore[misc]
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("levels")
async def test_the_log_level_changes_while_the_process_runs(hub: ControlPlane, metered: Stand, node: str) -> None:
    endpoint = await metered.node(node)
    url = f"https://{endpoint.address}:{endpoint.port}/debug/flags/v"
    ours = logging.getLogger("vkubelet")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True))) as session:
        for verbosity, level in (("4", logging.DEBUG), ("2", logging.INFO), ("10\n", logging.DEBUG)):
            async with session.put(url, data=verbosity) as response:
                assert response.status == 200
                assert await response.text() == f"successfully set klog.logging.verbosity to {verbosity.strip()}"
            assert ours.getEffectiveLevel() == level
        for verbosity in ("loud", "-1", ""):
            async with session.put(url, data=verbosity) as response:
                assert response.status == 400
        async with session.get(url) as response:
            assert (response.status, response.headers["Allow"]) == (405, "PUT")
    assert ours.getEffectiveLevel() == logging.DEBUG


async def test_statusz_and_flagz_are_plain_text_for_people(hub: ControlPlane, metered: Stand, node: str) -> None:
    endpoint = await metered.node(node)
    status = await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/statusz")
    assert "Python version: 3." in status
    assert "/containerLogs/{namespace}/{pod}/{container}" in status
    url = f"https://{endpoint.address}:{endpoint.port}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True))) as session:
        for path in ("/statusz", "/flagz"):
            for accept, code in (("text/plain", 200), ("*/*", 200), ("text/html, text/plain;q=0.5", 200), ("application/json", 406)):
                async with session.get(url + path, headers={"Accept": accept}) as response:
                    assert response.status == code, (path, accept)


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
    for path in ("/configz", "/statusz", "/flagz", "/debug/pprof/symbol", "/healthz", "/version"):
        assert (await call(hub, main, path)).status == 200, path
