"""The connection of a test to its cluster, over which a busy API server may answer late.

Invariant: it differs from that of a program in nothing but how long an answer is waited for; where that itself is tested, it is not used.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from tests.support.program import PATIENCE
from vkubelet.client.connection import Connection, Timeouts, load_connection

_TIMEOUTS = Timeouts(read=PATIENCE, write=PATIENCE, connect=PATIENCE)


async def patient_connection(kubeconfig: Path) -> Connection:
    return attrs.evolve(await load_connection(kubeconfig=kubeconfig), timeouts=_TIMEOUTS)
