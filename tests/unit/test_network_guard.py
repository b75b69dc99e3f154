"""The guard of the unit tests guards.

Invariant: neither a blocking nor an asyncio connection leaves a unit test.
"""

from __future__ import annotations

import asyncio
import socket

import pytest


def test_a_unit_test_that_connects_fails() -> None:
    with pytest.raises(AssertionError, match="network"):
        socket.create_connection(("127.0.0.1", 9))


async def test_a_unit_test_that_listens_fails() -> None:
    with pytest.raises(AssertionError, match="network"):
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
