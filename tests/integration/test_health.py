"""The plain-HTTP listeners, over real sockets."""

from __future__ import annotations

import aiohttp
import pytest

from vkubelet.clock import SystemClock
from vkubelet.errors import SettingsError
from vkubelet.health import HealthServer
from vkubelet.metrics import Metrics


async def fetch(port: int, path: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text(), response.headers["Content-Type"]


def server(problem: str | None = None, *, health: str = "127.0.0.1:0", metrics: str = "127.0.0.1:0") -> HealthServer:
    checks = {"watches": lambda: problem, "leader": lambda: None}
    return HealthServer(Metrics(), clock=SystemClock(), checks=checks, health_address=health, metrics_address=metrics)


async def test_healthy_and_ready_say_ok() -> None:
    async with server() as running:
        assert (await fetch(running.health_port, "/healthz"))[:2] == (200, "ok")
        assert (await fetch(running.health_port, "/readyz"))[:2] == (200, "ok")


async def test_failing_check_makes_it_unready_with_the_reason_but_not_unhealthy() -> None:
    async with server("not synced") as running:
        status, text, _ = await fetch(running.health_port, "/readyz")
        assert status == 503
        assert "[-]watches failed: not synced" in text
        assert "[+]leader ok" in text
        assert (await fetch(running.health_port, "/healthz"))[0] == 200


async def test_verbose_lists_all_checks() -> None:
    async with server() as running:
        _, text, _ = await fetch(running.health_port, "/readyz?verbose")
        assert text.splitlines() == ["[+]watches ok", "[+]leader ok", "readyz check passed"]


async def test_metrics_are_prometheus_text_on_a_port_of_their_own() -> None:
    async with server() as running:
        status, text, kind = await fetch(running.metrics_port, "/metrics")
        assert status == 200
        assert "vkubelet_loop_lag_seconds_bucket" in text
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert (await fetch(running.health_port, "/metrics"))[0] == 404


async def test_empty_address_is_off() -> None:
    async with server(metrics="") as running:
        assert running.metrics_port == 0
        assert running.health_port > 0


async def test_taken_address_is_a_settings_error_and_leaves_nothing_open() -> None:
    async with server() as first:
        second = server(metrics=f"127.0.0.1:{first.metrics_port}")
        with pytest.raises(SettingsError, match=r"health\.metrics_address: cannot listen"):
            await second.__aenter__()
        with pytest.raises(aiohttp.ClientConnectorError):
            await fetch(second.health_port, "/healthz")


@pytest.mark.parametrize("address", ["8081", "localhost:", "localhost:http", "127.0.0.1:70000"])
async def test_malformed_address_is_a_settings_error(address: str) -> None:
    with pytest.raises(SettingsError, match=r"health\.health_address"):
        await server(health=address).__aenter__()
