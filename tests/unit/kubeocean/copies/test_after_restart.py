"""What a process before this one created is read, not created again, while the worker's objects are still being listed."""

from __future__ import annotations

from kubeocean.copies.bodies import physical_configmap
from kubeocean.copies.copy_reconciler import CopyKind, CopyReconciler
from kubeocean.copies.mirrored import Naming
from kubeocean.copies.tokens import TokenReconciler
from kubeocean.model.references import references
from kubeocean.worker.cluster import heads
from tests.support.memory_api import TokenApi
from tests.unit.kubeocean.builders import OWNER, worker_scope
from vkubelet.api.objects import CONFIGMAPS, Key, Unknown
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod

ORIGINAL = Key("default", "settings")
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": TokenApi.LIFE}}]}}


def host_on(api: TokenApi) -> RecordingHost:
    """One API server is both clusters."""
    return RecordingHost(clock=api.clock, client=api.client())


def copies_of_a_new_process(api: TokenApi) -> CopyReconciler:
    host = host_on(api)
    scope = worker_scope(host)
    client, clock = host.client, host.clock

    def render(original: Unknown) -> dict[str, object]:
        return physical_configmap(original, owner=OWNER, namespace="mnt", ca_bundle="")

    async def nowhere_else(key: Key) -> bool:
        return False

    return CopyReconciler(
        CopyKind(render),
        scope,
        originals=heads(client, CONFIGMAPS, clock=clock),
        copies=heads(client, CONFIGMAPS, clock=clock),
        naming=Naming(needed=lambda key: True, by_a_pod=lambda key: True, elsewhere=nowhere_else),
    )


async def test_a_copy_is_not_written_again() -> None:
    api = TokenApi(ManualClock())
    api.put(
        "/api/v1/namespaces/default/configmaps/settings",
        {"metadata": {"name": "settings", "namespace": "default", "uid": "o"}, "data": {"a": "b"}},
    )
    await copies_of_a_new_process(api).ensure(ORIGINAL)
    assert any("/namespaces/mnt/configmaps" in each.path for each in api.writes)
    api.writes.clear()
    await copies_of_a_new_process(api).ensure(ORIGINAL)
    assert not api.writes


async def test_a_token_that_is_not_due_is_not_requested_again() -> None:
    api = TokenApi(ManualClock())
    pod = make_pod(spec={"volumes": [TOKEN]})
    for _ in range(2):
        host = host_on(api)
        host.pods.put(pod)
        tokens = TokenReconciler(host, worker_scope(host).worker)
        await tokens.ensure(pod, references(pod).tokens)
        await tokens.reconcile(pod.ref)
        assert api.issued == 1
    assert len(api.writes) == 1
