"""Plain-HTTP listeners for probes and scrapers: /healthz and /readyz on one, /metrics on the other.

Invariant: they respond without calling an API server or a provider, so a slow backend is never mistaken for a dead process.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from vkubelet.clock import Clock
from vkubelet.errors import SettingsError


class Scraped(Protocol):
    """Source of `/metrics`."""

    async def scrape(self, clock: Clock) -> bytes:
        """Returns the series in Prometheus text format 0.0.4."""
        ...


Check = Callable[[], str | None]
"""Check that returns None when healthy, else the reason."""

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer:
    """Async context manager of the listeners. Addresses are `host:port`; no host: all interfaces; port 0: any free one; empty: off.

    `health_port` and `metrics_port` are the ports in use, 0 when off.
    """

    def __init__(
        self,
        metrics: Scraped,
        *,
        clock: Clock,
        checks: Mapping[str, Check],
        health_address: str = "0.0.0.0:8081",
        metrics_address: str = "0.0.0.0:8080",
    ) -> None:
        self.health_port = 0
        self.metrics_port = 0
        self._metrics = metrics
        self._clock = clock
        self._checks = checks
        self._health_address = health_address
        self._metrics_address = metrics_address
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Starts the listeners. Raises SettingsError when an address is malformed or in use."""
        async with AsyncExitStack() as stack:
            probes = {"/healthz": _alive, "/readyz": self._ready}
            self.health_port = await _listen(stack, "health.health_address", self._health_address, probes)
            self.metrics_port = await _listen(stack, "health.metrics_address", self._metrics_address, {"/metrics": self._scrape})
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._open.aclose()

    async def _ready(self, request: web.Request) -> web.Response:
        """Responds as an API server: a line per check when requested with `?verbose`, or when one fails."""
        results = {name: check() for name, check in self._checks.items()}
        failed = any(results.values())
        if not failed and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [f"[-]{name} failed: {reason}" if reason else f"[+]{name} ok" for name, reason in results.items()]
        lines.append("readyz check failed" if failed else "readyz check passed")
        return web.Response(text="\n".join(lines) + "\n", status=503 if failed else 200)

    async def _scrape(self, request: web.Request) -> web.Response:
        body = await self._metrics.scrape(self._clock)
        return web.Response(body=body, headers={"Content-Type": _EXPOSITION})


def parse_address(setting: str, address: str) -> tuple[str, int] | None:
    """Returns host, empty for all interfaces, and port; None for an empty address. Raises SettingsError that names `setting`."""
    if not address:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise SettingsError(setting, f"{address!r} must be host:port, such as 0.0.0.0:8081, or empty")
    return host.strip("[]"), int(port)


async def _alive(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _listen(stack: AsyncExitStack, setting: str, address: str, routes: Mapping[str, Handler]) -> int:
    where = parse_address(setting, address)
    if where is None:
        return 0
    host, port = where
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host or None, port).start()
    except OSError as error:
        raise SettingsError(setting, f"cannot listen on {address}: {error}; choose another address") from error
    return int(runner.addresses[0][1])
