"""The API server model over HTTP, for programs and commands that open connections of their own.

Invariant: it answers what the model answers; the user is the bearer token of a request, and `refused` names what a user may not do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web
from attrs import define, field

from tests.faults.model.refusals import Refusal
from tests.faults.model.request import Request
from tests.faults.model.server import ApiModel


@define
class ServedModel:
    """A model at `url`; `refused` has resources, as in a path, by user."""

    model: ApiModel
    url: str = ""
    refused: dict[str, set[str]] = field(factory=dict)
    broken: bool = False
    """Every request is answered with 503."""
    requests: list[str] = field(factory=list)
    """Method and path of every request."""

    async def serve(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        if self.broken:
            return web.Response(status=503, text="the API server is starting")
        user = request.headers.get("Authorization", "").removeprefix("Bearer ")
        asked = Request(
            method=request.method,
            path=request.path,
            user=user,
            params=dict(request.query),
            body=await request.read(),
            content_type=request.content_type,
        )
        try:
            if self.refused.get(user, set()) & set(request.path.split("/")):
                raise Refusal(code=403, reason="Forbidden", message=f"{user} may not {request.method} {request.path}")
            return web.Response(body=self.model.serve(asked), content_type="application/json")
        except Refusal as refusal:
            return web.json_response(refusal.status(), status=refusal.code)

    def kubeconfig(self, user: str) -> str:
        """The text of a kubeconfig for this user."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "model",
                "clusters": [{"name": "model", "cluster": {"server": self.url}}],
                "users": [{"name": "model", "user": {"token": user}}],
                "contexts": [{"name": "model", "context": {"cluster": "model", "user": "model"}}],
            }
        )

    def write_kubeconfig(self, path: Path, user: str) -> Path:
        path.write_text(self.kubeconfig(user))
        return path


@asynccontextmanager
async def served(model: ApiModel) -> AsyncIterator[ServedModel]:
    """Serves a model on loopback while entered."""
    made = ServedModel(model)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.serve)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()
