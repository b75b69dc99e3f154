"""`kubeocean dashboard`: serves the pages to the user who started it, on loopback, with that user's kubeconfig.

Invariant: the token of the address appears on the terminal and in a file that only its user can read; never in the arguments of a process,
which every user of the machine can list.
"""

import asyncio
import signal
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from attrs import frozen

from kubeocean.commands import app as flags
from kubeocean.model import keys
from kubeocean.settings import LEAST_READING, LONGEST_READING
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.commands import clusters, reading
from vkubelet.commands.terminal import Terminal

if TYPE_CHECKING:
    from aiohttp import web

    from kubeocean.dashboard import access, forward


app, run = flags.app, flags.run
"""The complete command line: that of `kubeocean.commands`, which is below this package, and this command."""


@app.command(
    "dashboard",
    help="open a read-only web page about bindings, nodes, pods, problems and time windows, with your own rights: the one that the "
    "manager serves, else one that this command serves",
)
def dashboard_command(
    *,
    one: flags.OptionalBinding = "",
    port: Annotated[int, typer.Option(metavar="PORT", help="port on 127.0.0.1 (default: any free one)", min=0, max=65535)] = 0,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=LEAST_READING,
            max=LONGEST_READING,
            help="time between two readings of the computing cluster, at most 60",
        ),
    ] = 10.0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="open the page in the browser")] = True,
    local: Annotated[
        bool | None,
        typer.Option(
            "--local/--manager",
            help="read the clusters with this command, or open the page of the manager (default: that of the manager, if it serves one)",
        ),
    ] = None,
    namespace: flags.SystemNamespace = keys.NAMESPACE,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = "",
    worker_context: flags.ReadContext = "",
    worker_kubeconfig: flags.WorkerKubeconfig = None,
) -> None:
    hub = flags.hub_of(kubeconfig, context)
    shown = Shown(
        hub=hub,
        worker=flags.chosen_worker(hub, worker_kubeconfig, worker_context),
        binding=one,
        port=port,
        interval=interval,
        opens=open_browser,
        local=True if one or worker_context or worker_kubeconfig else local,
        namespace=namespace,
        out=Terminal.standard(),
    )
    asyncio.run(shown.run())


@frozen(kw_only=True)
class Shown:
    """One run of the command; `local` is None where the manager's dashboard is preferred."""

    hub: clusters.Choice
    worker: clusters.Choice | None
    binding: str
    port: int
    interval: float
    opens: bool
    local: bool | None
    namespace: str
    out: Terminal

    async def run(self) -> None:
        """Serves until Ctrl-C or SIGTERM. Raises CommandFailed."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with clusters.opened(self.hub) as client:
            served = None if self.local else await self._manager(client)
            if served is not None:
                try:
                    return await self._run_served(client, served, stop)
                except clusters.CommandFailed as error:
                    if self.local is False:
                        raise
                    self.out.write_line(f"! {error}")
            await self._run_local(client, stop)

    async def _manager(self, client: Client) -> "forward.Manager | None":
        """Finds the manager that serves the dashboard. Raises CommandFailed without one, where `--manager` requires it."""
        # Only this command needs a web server and templates.
        from kubeocean.dashboard import forward

        found = await forward.find_manager(reading.Reader(client, self.hub), self.namespace)
        if isinstance(found, str):
            if self.local is False:
                raise clusters.CommandFailed(f"the dashboard of the manager cannot be opened: {found}; --local reads the clusters itself")
            return None
        return found

    async def _run_local(self, client: Client, stop: asyncio.Event) -> None:
        from kubeocean.dashboard import access, observer, server, source

        clock = SystemClock()
        read = source.Source(client, self.hub, clock, worker=self.worker, only=self.binding)
        seen = observer.Observer(read, clock, self.interval)
        await seen.current()
        path = access.TokenPath()
        application = server.Dashboard(access.TokenAccess(seen, path), clock).application()
        title = f"The dashboard of the {self.hub.title}"
        async with self._listening(application, path), asyncio.TaskGroup() as group:
            readings = group.create_task(seen.run(), name="readings")
            await self._until(stop, path, title)
            readings.cancel()

    async def _run_served(self, client: Client, found: "forward.Manager", stop: asyncio.Event) -> None:
        from kubeocean.dashboard import access, forward

        path = access.TokenPath()
        async with forward.forwarded(client, found) as port:
            connection = forward.connection_to(found, client.connection, port)
            async with Client(connection) as manager:
                await forward.try_once(manager, self.hub)
                self.out.write_line(
                    f"Your credentials are sent to pod {found.pod} of the manager; --local sends them to API servers alone."
                )
                async with self._listening(forward.Relay(manager, path).application(), path):
                    await self._until(stop, path, f"The dashboard of the manager in the {self.hub.title}")

    @asynccontextmanager
    async def _listening(self, application: "web.Application", path: "access.TokenPath") -> AsyncIterator[None]:
        from kubeocean.dashboard import server

        try:
            async with server.listening(application, "127.0.0.1", self.port) as path.port:
                yield
        except OSError as error:
            raise clusters.CommandFailed(f"cannot listen on 127.0.0.1:{self.port}: {error.strerror}; choose another --port") from error

    async def _until(self, stop: asyncio.Event, path: "access.TokenPath", title: str) -> None:
        with tempfile.TemporaryDirectory(prefix="kubeocean-") as directory:
            self._announce(title, path.address, directory=Path(directory))
            await stop.wait()

    def _announce(self, title: str, address: str, *, directory: Path) -> None:
        """Prints the address and opens it, through a file: the arguments of a browser are visible to other users."""
        self.out.write_line(f"{title}: {address}")
        self.out.write_line("Anyone who knows this address sees what your kubeconfig may read. Press Ctrl-C to stop.")
        if self.opens:
            page = directory / "dashboard.html"
            page.touch(mode=0o600)
            page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
            # A browser of a terminal occupies its thread until the user leaves it, and meanwhile loads pages from this process.
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
