"""Token Secrets of Kubeocean (Go), told by their names."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from kubeocean.copies.bodies import token_secret
from kubeocean.copies.legacy_tokens import LegacyTokens, is_legacy, source_of
from kubeocean.copies.tokens import TokenReconciler
from kubeocean.model import keys
from kubeocean.model.references import TokenSource
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.support.memory_api import TokenApi
from tests.unit.kubeocean.builders import OWNER, pod, unknown
from vkubelet.api.objects import Json, Unknown
from vkubelet.testing.clock import ManualClock

WHO = {keys.VIRTUAL_POD_NAMESPACE: "default", keys.VIRTUAL_POD_NAME: "web", keys.VIRTUAL_POD_UID: "uid-1"}


def projected(name: str, *tokens: Json) -> Json:
    return {"name": name, "projected": {"sources": [{"serviceAccountToken": {"path": "token", **token}} for token in tokens]}}


def secret(name: str) -> Unknown:
    return unknown({"metadata": {"name": name, "labels": {keys.TOKEN_SECRET: "true"}, "annotations": WHO}})


def go_name(volume: str) -> str:
    return keys.physical_name("default", f"web-{volume}-uid-1")


def test_a_secret_under_its_name_is_legacy_and_one_under_ours_is_not() -> None:
    assert is_legacy(secret(go_name("kube-api-access-x")))
    assert not is_legacy(secret(keys.token_secret_name("default", "web", "uid-1")))
    assert not is_legacy(unknown({"metadata": {"name": "x", "annotations": WHO}}))


def test_the_name_tells_which_volume_it_is_mounted_by() -> None:
    one = pod({"volumes": [projected("a", {}), projected("b", {"audience": "x", "expirationSeconds": 600})]})
    assert source_of(go_name("a"), one) == TokenSource("token", "", 3600)
    assert source_of(go_name("b"), one) == TokenSource("token", "x", 600)
    assert source_of(go_name("c"), one) is None


def test_of_two_tokens_in_one_volume_the_first_is_in_it() -> None:
    one = pod({"volumes": [projected("a", {"audience": "first"}, {"audience": "second"})]})
    assert source_of(go_name("a"), one) == TokenSource("token", "first", 3600)


async def issued(api: TokenApi, clock: ManualClock, *, seconds: float, set_by: float = 0.0) -> int:
    """How many tokens are issued for one legacy Secret; then the wall clock is set, and 5 s later they are counted."""
    running_pod = pod({"volumes": [projected("a", {})]})
    body = token_secret(running_pod, {"token": "t"}, owner=OWNER, namespace="mnt", expiry=clock.now() + timedelta(hours=1), lifetime=3600)
    body["metadata"] |= {"name": go_name("a"), "uid": "s"}
    api.put(f"/api/v1/namespaces/mnt/secrets/{go_name('a')}", body)
    client = api.client()
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=clock, probe_interval=10)
    pods = SimpleNamespace(by_uid=lambda uid: running_pod)
    host: Any = SimpleNamespace(clock=clock, metrics=None, client=client, node_client=lambda node: client, pods=pods)
    tokens = TokenReconciler(host, worker)
    legacy = LegacyTokens(host, worker, tokens)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(run()) for run in (worker.secrets.run, legacy.controller.run)]
        await clock.advance(seconds)
        clock.set(set_by)
        tokens.recheck()
        legacy.recheck()
        await clock.advance(5.0)
        for task in running:
            task.cancel()
    return api.issued


async def test_a_clock_ahead_by_the_lifetime_of_a_token_does_not_cause_a_storm() -> None:
    clock = ManualClock()
    assert await issued(TokenApi(clock, ahead=-7200), clock, seconds=3600.0 * 2) <= 21


async def test_tokens_are_renewed_after_the_wall_clock_was_set_forward() -> None:
    for by, expected in ((3600.0, 1), (0.0, 0)):
        clock = ManualClock()
        assert await issued(TokenApi(clock), clock, seconds=600.0, set_by=by) == expected
