"""What is read from a health check's answer."""

from __future__ import annotations

import pytest

from vkubelet.containers.grpc import status_of


@pytest.mark.parametrize(("message", "status"), [(b"", 0), (b"\x08\x00", 0), (b"\x08\x01", 1), (b"\x08\x02", 2), (b"\x12\x01", 0)])
def test_status_of_a_message(message: bytes, status: int) -> None:
    assert status_of(message) == status
