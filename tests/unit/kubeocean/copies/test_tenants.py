"""Worker namespaces of tenants: used by consent, created within the admission policies alone, and completed after a crash."""

from __future__ import annotations

import json

import pytest

from kubeocean.copies.tenants import NOT_PREPARED, Tenants
from kubeocean.model import keys
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.support.memory_api import Body, MemoryApi
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Key
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden, Unavailable, Unreachable
from vkubelet.testing.clock import ManualClock

SPACE = "/api/v1/namespaces/mnt-red"
MADE = [
    SPACE,
    "/apis/rbac.authorization.k8s.io/v1/namespaces/mnt-red/rolebindings/kubeocean-tenant",
    "/apis/networking.k8s.io/v1/namespaces/mnt-red/networkpolicies/kubeocean-tenant",
]


class Worker(MemoryApi):
    """A worker whose user has some rights; where it is `guarded`, it refuses the dry runs that are tried. It may lose answers."""

    def __init__(self, *, creates: bool = True, guarded: bool = True) -> None:
        super().__init__()
        self.creates, self.guarded = creates, guarded
        self.lost_after = -1
        self.clock = ManualClock()
        self.put("/api/v1/namespaces/mnt", {"metadata": {"name": "mnt", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
        self.writes.clear()

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.path.endswith("/selfsubjectaccessreviews"):
            asked = json.loads(call.body or b"{}")["spec"]["resourceAttributes"]
            allowed = self.creates if asked["resource"] == "namespaces" else MADE[1] in self.objects
            return json.dumps({"metadata": {}, "status": {"allowed": allowed}}).encode()
        if ("dryRun", "All") in tuple(call.params):
            if self.guarded:
                raise Forbidden(call.attempt, "denied by an admission policy")
            return call.body or b"{}"
        answer = await super().fetch(call, timeout)
        if (call.method, call.path) == ("POST", "/api/v1/namespaces"):
            self.objects[SPACE]["metadata"]["uid"] = f"u-{len(self.writes)}"
            answer = json.dumps(self.objects[SPACE]).encode()
        if call.method == "POST" and len(self.writes) == self.lost_after:
            raise Unreachable(call.attempt, "the process was stopped")
        return answer

    def tenants(self) -> Tenants:
        """Those of a process that has just started and has listed the namespaces."""
        mount = Mount(OWNER, "mnt", keys.PER_NAMESPACE)
        worker = WorkerCluster(self.client(), mount, clock=self.clock, probe_interval=10)
        worker.namespaces.ever_synced = True
        return Tenants(worker, self.clock)

    def existing(self, labels: Body) -> None:
        self.put(SPACE, {"metadata": {"name": "mnt-red", "uid": "u-1", "labels": labels}})


async def refusal(tenants: Tenants) -> str:
    with pytest.raises(Unavailable) as caught:
        await tenants.ensure("red")
    assert (caught.value.event, caught.value.waiting) == (NOT_PREPARED, NOT_PREPARED)
    return str(caught.value)


async def test_a_prepared_namespace_is_used_as_it_is() -> None:
    worker = Worker(creates=False)
    worker.existing({keys.TENANT_OF: "mnt"})
    await worker.tenants().ensure("red")
    assert not worker.writes


@pytest.mark.parametrize("labels", [{}, {keys.TENANT_OF: "another"}])
async def test_a_namespace_without_our_label_is_refused_whatever_the_rights(labels: Body) -> None:
    worker = Worker()
    worker.existing(labels)
    assert "exists without the label kubeocean.io/tenant-of=mnt" in await refusal(worker.tenants())
    assert not worker.writes


async def test_refusal_is_checked_again_after_seconds_or_once_the_namespace_is_observed() -> None:
    worker = Worker()
    worker.existing({})
    tenants = worker.tenants()
    first = await refusal(tenants)
    worker.existing({keys.TENANT_OF: "mnt"})
    assert await refusal(tenants) == first, "many pods and Services of one namespace are one question"
    await worker.clock.advance(5.0)
    await tenants.ensure("red")

    other = worker.tenants()
    worker.existing({})
    await refusal(other)
    other._worker.namespaces.adopt(unknown({"metadata": {"name": "mnt-red", "resourceVersion": "99", "labels": {keys.TENANT_OF: "mnt"}}}))
    await other.ensure("red")
    assert not worker.writes


async def test_without_the_right_to_create_the_owner_prepares_it() -> None:
    worker = Worker(creates=False)
    assert "kubeocean bind --print=worker --tenant red" in await refusal(worker.tenants())
    assert not worker.writes


async def test_nothing_is_created_where_the_worker_would_accept_more() -> None:
    worker = Worker(guarded=False)
    assert "could also create namespaces of any name" in await refusal(worker.tenants())
    assert not worker.writes


async def test_created_with_the_level_of_the_mount_namespace_and_our_marks_once() -> None:
    worker = Worker()
    tenants = worker.tenants()
    for _ in range(2):
        await tenants.ensure("red")
    await worker.tenants().ensure("red")
    assert [f"{each.path}/{each.body['metadata']['name']}" for each in worker.writes] == MADE
    metadata = worker.objects[SPACE]["metadata"]
    wanted = {keys.TENANT_OF: "mnt", "pod-security.kubernetes.io/enforce": "restricted", **OWNER.labels}
    assert metadata["labels"] == wanted and metadata["annotations"][keys.VIRTUAL_NAMESPACE] == "red"


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_process_that_stops_after_any_write_leaves_what_the_next_completes(after: int) -> None:
    worker = Worker()
    worker.lost_after = after
    with pytest.raises(Unreachable):
        await worker.tenants().ensure("red")
    worker.lost_after = -1
    await worker.tenants().ensure("red")
    assert [f"{each.path}/{each.body['metadata']['name']}" for each in worker.writes] == MADE


async def test_a_namespace_that_is_created_again_gets_rights_and_isolation_again() -> None:
    worker = Worker()
    tenants = worker.tenants()
    await tenants.ensure("red")
    for path in MADE:
        worker.delete(path)
    tenants._worker.namespaces.store.remove(Key("", "mnt-red"))
    await tenants.ensure("red")
    assert [f"{each.path}/{each.body['metadata']['name']}" for each in worker.writes] == [*MADE, *MADE]


async def test_one_mapping_for_all_asks_nothing() -> None:
    worker = Worker()
    mount = Mount(OWNER, "mnt")
    cluster = WorkerCluster(worker.client(), mount, clock=worker.clock, probe_interval=10)
    await Tenants(cluster, worker.clock).ensure("red")
    assert not worker.writes
