"""`/configz`, `/debug/pprof/`, `/debug/flags/v`, `/statusz`, `/flagz`: debug handlers of a kubelet.

Invariant: all of them concern the process and are the same at every port; one that is off responds with 405, or does not exist.
"""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

import attrs
from aiohttp import web

from vkubelet import logformat
from vkubelet.api.codec import encode_json
from vkubelet.api.shapes import Json, JsonView
from vkubelet.clock import Clock, rfc3339
from vkubelet.server.node_endpoints import own_version
from vkubelet.server.profiling import encoded, profile, waiting_tasks
from vkubelet.server.settings import DebugSettings

log = logging.getLogger(__name__)

HANDLERS_OFF = "Debug endpoints are disabled."
PROFILING_OFF = "profiling endpoint is disabled."
FLAGS_OFF = "flags endpoint is disabled."

_PROFILE_SECONDS, _LONGEST_PROFILE = 30.0, 600.0
_DEBUG_VERBOSITY = 4
"""From this verbosity on Kubernetes' programs write debug lines (conventions of klog)."""

_PROFILES = {
    "cmdline": "the command line of this process",
    "profile": "where the event loop spends its time, sampled for ?seconds=30; read it with go tool pprof",
    "goroutine": "the tasks and where they wait",
    "symbol": "none: a profile from here names its functions itself",
}


@attrs.define(kw_only=True)
class DebugEndpoints:
    """The endpoints; `configuration` is the kubelet's configuration, `flags` the settings of the process."""

    settings: DebugSettings
    clock: Clock
    configuration: JsonView
    flags: JsonView
    _started: float = attrs.field(init=False)
    _profiling: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._started = self.clock.monotonic()

    def routes(self) -> list[web.RouteDef]:
        found = [web.get("/configz", self.configz, allow_head=False)]
        if self.settings.profiling:
            found += [
                web.get("/debug/pprof", self.redirect, allow_head=False),
                web.get("/debug/pprof/", self.index, allow_head=False),
                web.get("/debug/pprof/{name}", self.pprof, allow_head=False),
            ]
        else:
            found += [web.route("*", path, _disabled(PROFILING_OFF)) for path in ("/debug/pprof", "/debug/pprof/{name:.*}")]
        put = web.put("/debug/flags/v", self.set_verbosity)
        found.append(put if self.settings.flags else web.route("*", "/debug/flags/v", _disabled(FLAGS_OFF)))
        if self.settings.zpages:
            found += [web.get("/statusz", self.statusz, allow_head=False), web.get("/flagz", self.flagz, allow_head=False)]
        return found

    async def configz(self, request: web.Request) -> web.Response:
        return web.Response(body=encode_json({"kubeletconfig": dict(self.configuration)}), content_type="application/json")

    # --- profiling ---

    async def redirect(self, request: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently("/debug/pprof/")

    async def index(self, request: web.Request) -> web.Response:
        items = "".join(f'<li><a href="{name}">{name}</a>: {text}</li>\n' for name, text in _PROFILES.items())
        return web.Response(text=f"<title>/debug/pprof/</title>\n<ul>\n{items}</ul>\n", content_type="text/html")

    async def pprof(self, request: web.Request) -> web.Response:
        match request.match_info["name"]:
            case "cmdline":
                return web.Response(text="\0".join(sys.orig_argv))
            case "symbol":
                return web.Response(text="num_symbols: 0\n")
            case "goroutine":
                return web.Response(text=waiting_tasks())
            case "profile":
                return await self._profile(_seconds(request.query))
            case "trace":
                raise NotImplementedError
        return web.Response(status=404, text="Unknown profile\n")

    async def _profile(self, seconds: float) -> web.Response:
        if self._profiling:
            raise web.HTTPInternalServerError(text="another profile is being taken; try again when it has ended")
        self._profiling = True
        try:
            samples = await profile(seconds, self.clock.monotonic)
        finally:
            self._profiling = False
        headers = {"Content-Disposition": 'attachment; filename="profile"'}
        return web.Response(body=encoded(samples, seconds), content_type="application/octet-stream", headers=headers)

    # --- log level ---

    async def set_verbosity(self, request: web.Request) -> web.Response:
        text = (await request.text()).strip()
        if not (text.isascii() and text.isdigit()) or len(text) > 3:
            return web.Response(status=400, text=f"failed set klog.logging.verbosity {text[:20]!r}: it must be a number from 0 to 999")
        level = "DEBUG" if int(text) >= _DEBUG_VERBOSITY else "INFO"
        logformat.set_level(level)
        with logformat.bind(to=level):
            log.info("log level changed")
        return web.Response(text=f"successfully set klog.logging.verbosity to {int(text)}")

    # --- pages for people ---

    async def statusz(self, request: web.Request) -> web.Response:
        up = timedelta(seconds=round(self.clock.monotonic() - self._started))
        told = {
            "Started": rfc3339(self.clock.now() - up),
            "Up": str(up),
            "Binary version": own_version(),
            "Python version": platform.python_version(),
            "Paths": " ".join(sorted({resource.canonical for resource in request.app.router.resources()})),
        }
        return _page(request, "statusz", [f"{name}: {value}" for name, value in told.items()])

    async def flagz(self, request: web.Request) -> web.Response:
        return _page(request, "flagz", [f"{name}={value}" for name, value in sorted(flat(self.flags).items())])


def _disabled(text: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=405, text=text)

    return answer


def _seconds(query: Mapping[str, str]) -> float:
    try:
        seconds = float(query.get("seconds", _PROFILE_SECONDS))
    except ValueError as error:
        raise web.HTTPBadRequest(text="seconds must be a number") from error
    if not 0 < seconds <= _LONGEST_PROFILE:
        raise web.HTTPBadRequest(text=f"seconds must be above 0 and at most {_LONGEST_PROFILE:.0f}")
    return seconds


def flat(settings: JsonView, path: str = "") -> Json:
    """Returns the leaves of a settings tree by their path."""
    out: Json = {}
    for key, value in settings.items():
        where = f"{path}.{key}".lstrip(".")
        out |= flat(value, where) if isinstance(value, Mapping) else {where: value}
    return out


def _page(request: web.Request, name: str, lines: list[str]) -> web.Response:
    accepted = {kind.partition(";")[0].strip().lower() for kind in request.headers.get("Accept", "*/*").split(",")}
    if not accepted & {"*/*", "text/*", "text/plain"}:
        return web.Response(status=406, text="only text/plain is offered")
    warning = "For people; programs should not rely on its form."
    return web.Response(text="\n".join((f"kubelet {name}", warning, "", *lines, "")))
