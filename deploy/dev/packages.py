"""Installs what nodes, the image and the browser tests need from the distribution, for `make test`; `make up` does it by itself.

Invariant: the list of packages is in one place, vkubelet.testing.cluster.packages.
"""

from __future__ import annotations

import asyncio
import sys

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import ClusterError, packages

if __name__ == "__main__":
    try:
        asyncio.run(packages.install(packages.missing(nodes=True, services=True, image=True, browser=True), say=print, clock=SystemClock()))
        if packages.prometheus() is None:
            asyncio.run(packages.unpack(packages.PROMETHEUS, say=print, clock=SystemClock()))
    except ClusterError as error:
        sys.exit(f"error: {error}")
