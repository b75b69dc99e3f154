"""When tokens are requested, by clocks that differ from that of the API server, which dates them."""

import json
from datetime import timedelta

import pytest

from kubeocean.copies.tokens import TokenReconciler
from kubeocean.model.references import references
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import worker_scope
from vkubelet.client.transport import Call
from vkubelet.clock import rfc3339
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod

HOUR = 3600
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": HOUR}}]}}


class Issuer(MemoryApi):
    """It issues tokens that are valid for an hour from `clock` on, its own."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.issued = 0

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if not call.path.endswith("/token"):
            return await super().fetch(call, timeout)
        self.issued += 1
        expiry = rfc3339(self.clock.now() + timedelta(seconds=HOUR))
        return json.dumps({"status": {"token": "t", "expirationTimestamp": expiry}, "spec": {"expirationSeconds": HOUR}}).encode()


async def renewed(ahead: float, seconds: int, *, restarted: bool = False) -> int:
    """How often the token of a running pod is requested within so many seconds, by a clock that is ahead of that of the API server.

    `restarted`: the process is started again after the first request.
    """
    clock, servers = ManualClock(), ManualClock()
    clock.set(ahead)
    api = Issuer(servers)
    host = RecordingHost(clock=clock, client=api.client())
    pod = make_pod(spec={"volumes": [TOKEN]})
    host.pods.put(pod)
    scope = worker_scope(host)
    tokens = TokenReconciler(host, scope.worker)
    await tokens.ensure(pod, references(pod).tokens)
    if restarted:
        tokens = TokenReconciler(host, scope.worker)
    for _ in range(seconds // 10):
        await clock.advance(10.0)
        await servers.advance(10.0)
        await tokens.reconcile(pod.ref)
    return api.issued


async def test_a_token_is_renewed_once_in_its_life() -> None:
    assert await renewed(0.0, HOUR) == 2


async def test_a_clock_that_is_ahead_does_not_renew_a_token_again_and_again() -> None:
    assert await renewed(float(HOUR), HOUR) <= 11


@pytest.mark.parametrize(("restarted", "times"), [(False, 2), (True, 3)])
async def test_a_clock_that_is_behind_does_not_let_a_token_expire(restarted: bool, times: int) -> None:
    # A process that is started again does not know when the token was received: it renews at once what seems to be of the future.
    assert await renewed(-float(HOUR), HOUR, restarted=restarted) == times
