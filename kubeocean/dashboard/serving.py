"""The dashboard that the manager serves: the same pages over HTTPS, for every caller whom the cluster authenticates.

Invariant: the authentication is that of the kubelet port, and each page is bounded by reviews of the caller's rights. Nothing is written
but an annotation of the manager's own pod: the certificate by which `kubeocean dashboard` recognizes it.
"""

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from aiohttp import web
from attrs import define, field

from kubeocean.dashboard import access, observer, server, source
from kubeocean.dashboard.readers import Readers
from kubeocean.model import keys
from kubeocean.settings import DashboardSettings, in_dashboard
from vkubelet.api.objects import PODS, Key
from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.commands.clusters import Choice
from vkubelet.control.backoff import with_retry
from vkubelet.errors import ApiError, SettingsError
from vkubelet.https import HttpsServer, Question, User, admit_connection, current_caller
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

SERVICE: Final = "kubeocean-dashboard"
PREFIX: Final = "X-Forwarded-Prefix"
"""Header with the path below which a proxy serves the pages."""
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9_-]+)*")
_HUB: Final = Choice(
    "computing cluster",
    "the manager's access to it",
    otherwise="or read the worker with your own credentials: kubeocean dashboard --binding {binding} --worker-context CTX",
)


def names_of(namespace: str) -> Sequence[str]:
    """Returns the names of a self-signed certificate: those of the Service, and of a forwarded port (pure)."""
    inside = (SERVICE, f"{SERVICE}.{namespace}", f"{SERVICE}.{namespace}.svc")
    return (*inside, "localhost", "127.0.0.1", "::1")


@define
class CallerAccess:
    """Access by the credentials of a request; each caller has a view of its own."""

    server: HttpsServer
    readers: Readers

    @property
    def root(self) -> str:
        """The path below which the pages are."""
        return ""

    async def admit(self, request: web.Request) -> access.Visit:
        """Returns what the caller may see. Raises an HTTPException, MissingRight for one who may see nothing."""
        base = request.headers.get(PREFIX, "")
        if not _PREFIX.fullmatch(base):
            raise web.HTTPBadRequest(text=f"{PREFIX}: must be a path of letters, digits, '-' and '_', such as /kubeocean")
        user = current_caller().user
        view = self.readers.of(user, partial(self._may, user))
        # Raises for a caller without any right, also where only a style sheet is requested.
        await view.current()
        admit_connection(request)
        return access.Visit(view=view, base=base)

    async def _may(self, user: User, check: Check) -> bool:
        asked = Question(
            user,
            check.verb,
            check.subresource,
            check.name,
            resource=check.resource,
            group=check.group,
            namespace=check.namespace,
        )
        return await self.server.may(asked)


@define(eq=False)
class ServedDashboard:
    """The dashboard of one process; `pod` is the one in which it runs, None outside of a cluster."""

    client: Client
    clock: Clock
    settings: DashboardSettings
    namespace: str
    pod: Key | None
    server: HttpsServer = field(init=False)
    _observer: observer.Observer = field(init=False)
    _certificate: str = ""
    _changed: asyncio.Event = field(factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self.server = HttpsServer(
            client=self.client,
            clock=self.clock,
            settings=self.settings.server,
            name=SERVICE,
            names=names_of(self.namespace),
            installed=self._installed,
        )
        self._observer = observer.Observer(source.Source(self.client, _HUB, self.clock), self.clock, self.settings.interval)
        admission = CallerAccess(self.server, Readers(self.client, _HUB, self.clock, self._observer))
        self.server.serve(server.Dashboard(admission, self.clock).application())

    async def run(self) -> None:
        """Serves until cancelled. Raises SettingsError when it cannot listen."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.server)
            except SettingsError as error:
                raise in_dashboard(error) from error
            group = await stack.enter_async_context(asyncio.TaskGroup())
            log.info("the dashboard is served on port %d", self.server.port)
            group.create_task(self.server.run(), name="dashboard")
            group.create_task(self._observer.run(), name="readings")
            group.create_task(self._publish(), name="certificate of the dashboard")

    def stop_listening(self) -> None:
        """Refuses new requests."""
        self.server.stop_listening()

    def _installed(self, certificate: bytes) -> None:
        self._certificate = leaf(certificate.decode())
        self._changed.set()

    async def _publish(self) -> None:
        """Annotates the pod with each new certificate; every replica does, also one that does not lead."""
        if self.pod is None:
            return
        unfenced = self.client.fenced(None)
        while True:
            await self._changed.wait()
            self._changed.clear()
            change = {"metadata": {"annotations": {keys.DASHBOARD_CERTIFICATE: self._certificate}}}
            try:
                await with_retry(partial(unfenced.patch, PODS, self.pod, change, kind=PatchKind.MERGE), clock=self.clock)
            except ApiError as error:
                with bind(error=str(error)):
                    log.warning("certificate of the dashboard not published; `kubeocean dashboard` reads the clusters itself")


def leaf(chain: str) -> str:
    """Returns the first certificate of a PEM chain (pure)."""
    end = "-----END CERTIFICATE-----\n"
    return chain[chain.find("-----BEGIN CERTIFICATE-----") :].partition(end)[0] + end


def dashboard_of(client: Client, clock: Clock, settings: DashboardSettings, *, namespace: str) -> ServedDashboard:
    """Returns the dashboard of this process."""
    name = os.environ.get("POD_NAME", "")
    return ServedDashboard(client, clock, settings, namespace, Key(namespace, name) if name else None)
