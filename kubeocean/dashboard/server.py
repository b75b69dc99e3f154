"""The pages over HTTP: routes, headers, and rendering of the templates.

Invariant: every response of a route has the headers of `HEADERS`; no script or style runs that is not a file of this package, and only GET
is served.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Final

from aiohttp import hdrs, web
from attrs import define, field
from jinja2 import Environment, PackageLoader, StrictUndefined

from kubeocean.commands import calendar, explain, output
from kubeocean.dashboard import live, timeline, views
from kubeocean.dashboard.access import Access, Visit
from kubeocean.explain.translation import summary
from vkubelet.api.objects import Key
from vkubelet.clock import Clock, in_batches, rfc3339
from vkubelet.commands import reading
from vkubelet.errors import Forbidden, VKubeletError

log = logging.getLogger(__name__)

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
STATIC: Final = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
_DAYS: Final = (1, 3, 7, 14)
_SHARED: Final = ("macros.html", "base.html")
"""Templates that all pages use."""
_PARTS: Final = 2_000
"""Parts of a page that are rendered in one turn of the event loop: the rows of 80 nodes, in 10 ms."""


def templates() -> Environment:
    """Returns the templates; every value is escaped."""
    made = Environment(
        loader=PackageLoader("kubeocean.dashboard"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"amount": output.amount_text, "instant": rfc3339, "both": explain.both, "local": calendar.local, "age": views.age}
    made.globals |= {"parts": timeline.parts, "figure": views.figure}
    return made


Page = Callable[[web.Request, Visit], Awaitable[web.StreamResponse]]


@define(eq=False)
class Dashboard:
    """The application; `access` decides who may see it."""

    access: Access
    clock: Clock
    _live: live.LiveUpdates = field(factory=live.LiveUpdates)
    _templates: Environment = field(factory=templates)

    def application(self) -> web.Application:
        made = web.Application(middlewares=[self._answered])
        made.on_response_prepare.append(_add_headers)
        pages: Mapping[str, Page] = {
            "/": self._overview,
            "/nodes": self._nodes,
            "/nodes/{node}": self._node,
            "/pods/{namespace}/{pod}": self._pod,
            "/problems": self._problems,
            "/calendar": self._calendar,
            "/ledger": self._ledger,
            "/events": self._events,
        }
        for path, page in pages.items():
            made.router.add_get(f"{self.access.root}{path}", self._admitted(page))
        made.router.add_get(f"{self.access.root}/static/{{file}}", self._admitted(_static))
        return made

    def _admitted(self, page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await page(request, await self.access.admit(request))

        return handle

    @web.middleware
    async def _answered(self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=error.text, content_type="text/plain")
        except VKubeletError as error:
            status = 403 if isinstance(error, (reading.MissingRight, Forbidden)) else 502
            return web.Response(status=status, text=f"{error}\n", content_type="text/plain")

    # --- Pages ------------------------------------------------------------------------------------------------------------------------

    async def _overview(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet = await visit.view.current()
        view = views.overview(fleet, visit.view.samples)
        return await self._page("overview.html", visit, view=view, fleet=fleet)

    async def _nodes(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet = await visit.view.current()
        binding, state = request.query.get("binding", ""), request.query.get("state", "")
        rows = views.node_rows(fleet, binding=binding, state=state)
        counted = views.states(fleet.nodes_of(binding) if binding else fleet.nodes)
        return await self._page("nodes.html", visit, rows=rows, fleet=fleet, binding=binding, chosen=state, states=counted)

    async def _node(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet, name = await visit.view.current(), request.match_info["node"]
        node = fleet.by_name.get(name)
        if node is None:
            return await self._missing(visit, f"no virtual node {name} was read; it does not exist, or you may not list nodes")
        read = await visit.view.source.node(name, node.binding)
        shown = views.bars([node], known=fleet.complete)
        return await self._page("node.html", visit, node=node, read=read, bars=shown, pods=fleet.pods_of(name), fleet=fleet)

    async def _pod(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet, key = await visit.view.current(), Key(request.match_info["namespace"], request.match_info["pod"])
        found = await visit.view.source.pod(key)
        if found is None:
            return await self._missing(visit, f"namespace {key.namespace} has no pod {key.name}")
        made, notes = found
        known = made.node in fleet.by_name
        return await self._page(
            "pod.html", visit, made=made, notes_found=notes, changes=summary(made.translation), known=known, fleet=fleet
        )

    async def _problems(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet = await visit.view.current()
        return await self._page("problems.html", visit, found=views.problems(fleet), fleet=fleet)

    async def _calendar(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet, days = await visit.view.current(), request.query.get("days", "3")
        if not (days.isascii() and days.isdigit() and 0 < int(days) <= calendar.MOST_DAYS):
            raise web.HTTPBadRequest(text=f"days: must be from 1 to {calendar.MOST_DAYS}")
        made, failures = await visit.view.source.timelines(int(days))
        return await self._page("calendar.html", visit, timelines=made, failures=failures, days=int(days), choices=_DAYS, fleet=fleet)

    async def _ledger(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        fleet, ledger = await visit.view.current(), visit.view.ledger
        accounts = ledger.accounts()
        most = max((each.cpu_hours for each in accounts), default=0.0) or 1.0
        return await self._page("ledger.html", visit, ledger=ledger, accounts=accounts, most=most, fleet=fleet)

    async def _events(self, request: web.Request, visit: Visit) -> web.StreamResponse:
        return await self._live.serve(request, visit.view)

    # --- Rendering --------------------------------------------------------------------------------------------------------------------

    async def _page(self, template: str, visit: Visit, **values: object) -> web.Response:
        """Renders a page; other tasks of the loop run between batches of its parts, and between the templates that are compiled first."""
        async for name in in_batches(self.clock, _SHARED, size=1):
            self._templates.get_template(name)
        await self.clock.sleep(0)
        rendering = self._templates.get_template(template).generate(
            base=visit.base, now=self.clock.now(), error=visit.view.error, page=template.removesuffix(".html"), **values
        )
        text = "".join([part async for part in in_batches(self.clock, rendering, size=_PARTS)])
        return web.Response(text=text, content_type="text/html")

    async def _missing(self, visit: Visit, text: str) -> web.Response:
        response = await self._page("missing.html", visit, text=text, fleet=visit.view.fleet)
        response.set_status(404)
        return response


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall(hdrs.SERVER, None)
    response.headers.update(HEADERS)


async def _static(request: web.Request, visit: Visit) -> web.StreamResponse:
    name = request.match_info["file"]
    if name not in STATIC:
        raise web.HTTPNotFound(text="not found")
    body = resources.files("kubeocean.dashboard").joinpath("static", name).read_bytes()
    return web.Response(body=body, content_type=STATIC[name], charset="utf-8")


@asynccontextmanager
async def listening(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serves the application while entered; yields the port. Raises OSError when the address cannot be used."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
