"""Decides who may see the pages: of `kubeocean dashboard`, which only listens on loopback, and of the manager.

Invariant: no page is rendered for a request that has not shown the secret of its reader. A page of another site cannot have it: it is not
sent by a browser on its own, unlike a cookie, and a name of another host that resolves to loopback is refused by the Host header.
"""

import hmac
import secrets
from typing import Protocol

from aiohttp import web
from attrs import define, field, frozen

from kubeocean.dashboard.observer import View


@frozen(kw_only=True)
class Visit:
    """An admitted request: what its reader observes, and the path below which the pages are."""

    view: View
    base: str


class Access(Protocol):
    """Admits requests; the pages are below `root`, which may have a parameter."""

    @property
    def root(self) -> str: ...

    async def admit(self, request: web.Request) -> Visit:
        """Returns what the reader may see. Raises an HTTPException."""
        ...


@define
class TokenPath:
    """Admission by a random token in the path, for the user who started the process; `port` is the one that is listened on."""

    port: int = 0
    token: str = field(factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def address(self) -> str:
        """The address of the first page."""
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def admit(self, request: web.Request) -> str:
        """Returns the path below which the pages are. Raises an HTTPException."""
        if request.host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            raise web.HTTPMisdirectedRequest(text="open the address that `kubeocean dashboard` printed")
        shown = request.match_info.get("token", "")
        if not hmac.compare_digest(shown.encode(errors="surrogateescape"), self.token.encode()):
            raise web.HTTPNotFound(text="not found; open the address that `kubeocean dashboard` printed, with its token")
        return f"/{self.token}"


@frozen
class TokenAccess:
    """Access to one view by a token."""

    view: View
    path: TokenPath

    @property
    def root(self) -> str:
        """The path below which the pages are."""
        return "/{token}"

    async def admit(self, request: web.Request) -> Visit:
        """Returns what the reader may see. Raises an HTTPException."""
        return Visit(view=self.view, base=self.path.admit(request))
