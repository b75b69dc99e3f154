"""When the Secret with the tokens of a pod is deleted, and what is read before."""

from __future__ import annotations

from kubeocean.copies.tokens import TokenReconciler
from kubeocean.model.references import references
from tests.support.memory_api import TokenApi
from tests.unit.kubeocean.builders import worker_scope
from vkubelet.client.transport import Call
from vkubelet.clock import rfc3339
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod

TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": TokenApi.LIFE}}]}}
POD = make_pod(spec={"volumes": [TOKEN]})


class ReadApi(TokenApi):
    """Also records which pods are read."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.read: list[str] = []

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "GET" and "/pods/" in call.path:
            self.read.append(call.path)
        return await super().fetch(call, timeout)

    def secrets(self) -> list[str]:
        return [path for path in self.objects if "/secrets/" in path]


async def deleted_pod() -> tuple[ReadApi, TokenReconciler]:
    """One API server is both clusters; the pod is gone in both, and its Secret is two minutes old."""
    clock = ManualClock()
    api = ReadApi(clock)
    host = RecordingHost(clock=clock, client=api.client())
    host.pods.put(POD)
    await TokenReconciler(host, worker_scope(host).worker).ensure(POD, references(POD).tokens)
    (secret,) = api.secrets()
    body = api.objects[secret]
    api.put(secret, {**body, "metadata": {**body["metadata"], "uid": "s", "creationTimestamp": rfc3339(clock.now())}})
    await clock.advance(120.0)
    host = RecordingHost(clock=clock, client=api.client())
    return api, TokenReconciler(host, worker_scope(host).worker)


async def test_no_pod_is_read_before_the_secret_of_a_released_pod_is_deleted() -> None:
    api, tokens = await deleted_pod()
    tokens.released(POD.ref)
    await tokens.reconcile(POD.ref._replace(node=""))
    assert not api.secrets() and not api.read


async def test_both_clusters_are_read_before_the_secret_of_an_unknown_pod_is_deleted() -> None:
    api, tokens = await deleted_pod()
    await tokens.reconcile(POD.ref._replace(node=""))
    assert not api.secrets() and len(api.read) == 2
