"""Tests of fleet.agent.tokens."""

from __future__ import annotations

import base64
import json
from importlib import metadata

import pytest

from fleet.agent.agent_settings import AgentSettings, TokenSettings
from fleet.agent.tokens import SecretToken, token_source
from tests.support.memory_api import MemoryApi
from vkubelet.api.objects import Key
from vkubelet.client.credentials import Fixed, TokenFile
from vkubelet.errors import SettingsError, Unauthorized
from vkubelet.testing.clock import ManualClock

PATH = "/api/v1/namespaces/fleet-system/secrets/hub-token"
KEY = Key("fleet-system", "hub-token")


def put(api: MemoryApi, token: str) -> None:
    meta = {"name": KEY.name, "namespace": KEY.namespace}
    api.put(PATH, {"metadata": meta, "data": {"token": base64.b64encode(token.encode()).decode()}})


def token_until(seconds: float, clock: ManualClock) -> str:
    claims = json.dumps({"exp": int(clock.now().timestamp() + seconds)}).encode()
    return f"h.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s"


def test_f_126_a_provider_that_is_not_installed_is_refused_by_its_setting() -> None:
    settings = AgentSettings(cluster="w1", door="kubefleet", token=TokenSettings(provider="vault"))
    with pytest.raises(SettingsError, match="agent.token.provider: vault is not installed; installed are: none"):
        token_source(settings, MemoryApi().client())


def test_f_126_a_provider_is_found_by_its_entry_point_and_called_with_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [metadata.EntryPoint("vault", "vkubelet.client.credentials:Fixed", "fleet.token_providers")]
    monkeypatch.setattr(metadata, "entry_points", lambda **named: found)
    settings = AgentSettings(cluster="w1", door="kubefleet", token=TokenSettings(provider="vault"))
    source = token_source(settings, MemoryApi().client())
    assert isinstance(source, Fixed) and source._header == "w1"


def test_f_126_a_file_or_a_secret_is_what_the_settings_name() -> None:
    client = MemoryApi().client()
    for token, kind in ((TokenSettings(file="/a"), TokenFile), (TokenSettings(secret="b"), SecretToken)):
        assert isinstance(token_source(AgentSettings(cluster="w1", door="kubefleet", token=token), client), kind)


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
