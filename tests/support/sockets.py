"""The TCP connections of a process, as the kernel lists them."""

from __future__ import annotations

import os
from pathlib import Path

ESTABLISHED = "01"


def connections_to(pid: int, port: int) -> int:
    """How many established connections a process has to a port of any address; one that the other end has closed is none.

    That end is looked at too where it is on this machine: what it said before its goodbye may not have arrived yet.
    """
    own = {link.removeprefix("socket:[").removesuffix("]") for link in _links(pid) if link.startswith("socket:[")}
    count = 0
    for family in ("tcp", "tcp6"):
        lines = [line.split() for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]]
        states = {(local, remote): state for _, local, remote, state, *_ in lines}
        for _, local, remote, state, *rest in lines:
            there = states.get((remote, local), ESTABLISHED)
            count += state == there == ESTABLISHED and int(remote.rpartition(":")[2], 16) == port and rest[5] in own
    return count


def _links(pid: int) -> list[str]:
    links: list[str] = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            # Closed since it was listed.
            continue
    return links
