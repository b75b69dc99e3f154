"""`kubeocean dashboard`: serves the pages to the user who started it, on loopback, with that user's kubeconfig.

Invariant: the token of the address appears on the terminal and in a file that only its user can read; never in the arguments of a process,
which every user of the machine can list.
"""

import asyncio
import signal
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from attrs import frozen

from kubeocean.commands import clusters
from kubeocean.commands.app import Context, Kubeconfig, OptionalBinding, ReadContext, WorkerKubeconfig, app, chosen_worker, run
from kubeocean.commands.terminal import Terminal
from vkubelet.clock import SystemClock

__all__ = ["app", "run"]
"""The complete command line: that of `kubeocean.commands`, which is below this package, and this command."""

LEAST_INTERVAL = 2.0


@app.command("dashboard", help="open a read-only web page about bindings, nodes, pods, problems and time windows, with your own rights")
def dashboard_command(
    *,
    one: OptionalBinding = "",
    port: Annotated[int, typer.Option(metavar="PORT", help="port on 127.0.0.1 (default: any free one)", min=0, max=65535)] = 0,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=LEAST_INTERVAL, help="time between two readings of the computing cluster")
    ] = 10.0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="open the page in the browser")] = True,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
) -> None:
    hub = clusters.hub_of(kubeconfig, context)
    shown = Shown(
        hub=hub,
        worker=chosen_worker(hub, worker_kubeconfig, worker_context),
        binding=one,
        port=port,
        interval=interval,
        opens=open_browser,
        terminal=Terminal.standard(),
    )
    asyncio.run(shown.run())


@frozen(kw_only=True)
class Shown:
    """One run of the command."""

    hub: clusters.Choice
    worker: clusters.Choice | None
    binding: str
    port: int
    interval: float
    opens: bool
    terminal: Terminal

    async def run(self) -> None:
        """Serves until Ctrl-C or SIGTERM. Raises CommandFailed."""
        # Only this command needs a web server and templates.
        from kubeocean.dashboard import access, observer, server, source

        clock, stop = SystemClock(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with clusters.opened(self.hub) as client:
            read = source.Source(client, self.hub, clock, worker=self.worker, only=self.binding)
            seen = observer.Observer(read, clock, self.interval)
            await seen.current()
            allowed = access.TokenAccess(seen)
            application = server.Dashboard(allowed, clock).application()
            try:
                async with server.listening(application, "127.0.0.1", self.port) as port, asyncio.TaskGroup() as group:
                    allowed.port = port
                    readings = group.create_task(seen.run(), name="readings")
                    with tempfile.TemporaryDirectory(prefix="kubeocean-") as directory:
                        self._announce(f"http://127.0.0.1:{port}/{allowed.token}/", Path(directory))
                        await stop.wait()
                    readings.cancel()
            except OSError as error:
                raise clusters.CommandFailed(f"cannot listen on 127.0.0.1:{self.port}: {error.strerror}; choose another --port") from error

    def _announce(self, address: str, directory: Path) -> None:
        """Prints the address and opens it, through a file: the arguments of a browser are visible to other users."""
        self.terminal.write_line(f"The dashboard of the {self.hub.title}: {address}")
        self.terminal.write_line("Anyone who knows this address sees what your kubeconfig may read. Press Ctrl-C to stop.")
        if self.opens:
            page = directory / "dashboard.html"
            page.touch(mode=0o600)
            page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
            webbrowser.open(page.as_uri())
