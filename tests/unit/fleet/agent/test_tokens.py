"""Tests of fleet.agent.tokens."""

from __future__ import annotations

import base64
import json

import pytest

from fleet.agent.tokens import SecretToken
from tests.support.memory_api import MemoryApi
from vkubelet.api.objects import Key
from vkubelet.errors import Unauthorized
from vkubelet.testing.clock import ManualClock

PATH = "/api/v1/namespaces/fleet-system/secrets/hub-token"
KEY = Key("fleet-system", "hub-token")


def put(api: MemoryApi, token: str) -> None:
    api.put(PATH, {"metadata": {"name": "hub-token"}, "data": {"token": base64.b64encode(token.encode()).decode()}})


def token_until(seconds: float, clock: ManualClock) -> str:
    claims = json.dumps({"exp": int(clock.now().timestamp() + seconds)}).encode()
    return f"h.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s"


async def test_f_126_a_token_is_read_again_at_half_of_its_validity() -> None:
    api, clock = MemoryApi(), ManualClock()
    first = token_until(3600, clock)
    put(api, first)
    token = SecretToken(api.client(), KEY)
    assert await token.authorization(clock) == f"Bearer {first}"
    put(api, "second")
    await clock.advance(1799)
    assert await token.authorization(clock) == f"Bearer {first}"
    await clock.advance(1)
    assert await token.authorization(clock) == "Bearer second"


async def test_f_126_a_token_without_expiry_counts_as_valid_for_a_day() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api, "first")
    token = SecretToken(api.client(), KEY)
    await token.authorization(clock)
    put(api, "second")
    await clock.advance(12 * 3600 - 1)
    assert await token.authorization(clock) == "Bearer first"
    await clock.advance(1)
    assert await token.authorization(clock) == "Bearer second"


async def test_f_126_a_missing_secret_is_named_and_read_again_after_thirty_seconds() -> None:
    api, clock = MemoryApi(), ManualClock()
    token = SecretToken(api.client(), KEY)
    with pytest.raises(Unauthorized, match="Secret fleet-system/hub-token does not exist, or has no key token"):
        await token.authorization(clock)
    put(api, "first")
    with pytest.raises(Unauthorized):
        await token.authorization(clock)
    await clock.advance(30)
    assert await token.authorization(clock) == "Bearer first"


async def test_f_126_a_secret_that_is_missing_for_a_while_takes_no_token_away() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api, "first")
    token = SecretToken(api.client(), KEY)
    await token.authorization(clock)
    api.delete(PATH)
    await clock.advance(13 * 3600)
    assert await token.authorization(clock) == "Bearer first"


async def test_f_126_a_refused_token_is_read_again_at_once() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api, "first")
    token = SecretToken(api.client(), KEY)
    assert not token.invalidate("Bearer other") or await token.authorization(clock) == "Bearer first"
    put(api, "second")
    assert token.invalidate("Bearer first") and await token.authorization(clock) == "Bearer second"
