"""`kubeocean dns NAME`: prints the lines of a Corefile by which the worker's DNS finds the mirrors of the hub's Services.

Invariant: nothing is written in either cluster; the output is the lines alone.
"""

from kubeocean.commands import reading
from kubeocean.model.dns import corefile
from vkubelet.commands import clusters
from vkubelet.commands.reading import Reader
from vkubelet.commands.terminal import Terminal


async def show(hub: clusters.Choice, binding: str, terminal: Terminal, *, hub_domain: str, worker_domain: str) -> None:
    """Prints the lines for one binding. Raises CommandFailed."""
    async with clusters.opened(hub) as client:
        (served,) = await reading.bindings(Reader(client, hub), binding)
    text = corefile(served.identity, hub_domain=hub_domain, worker_domain=worker_domain)
    terminal.write_line(text.rstrip("\n"))
