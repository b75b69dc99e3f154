"""Assigns listening ports to virtual nodes.

Invariant: the same name gives the same order of ports in every process, so a node keeps its port while that is free and in the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32


def ports_for(node: str, preferred: int | None = None, *, first: int, last: int) -> Iterator[int]:
    """Yields the ports to try, best first.

    The one that the Node publishes comes first if it is in the range, then all others from `first` to `last`, starting at the hash of the
    name and wrapping around.
    """
    if preferred is not None and first <= preferred <= last:
        yield preferred
    count = last - first + 1
    start = crc32(node.encode()) % count
    for step in range(count):
        port = first + (start + step) % count
        if port != preferred:
            yield port
