"""Tests of fleet.clusters.guard."""

import json
from typing import Any

from fleet.clusters.guard import GuardRails
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import hub_of
from vkubelet.client.transport import Call

NAME = "guardrails.fleet.vkubelet.io"
GROUP = "/apis/admissionregistration.k8s.io/v1"
PATHS = [f"{GROUP}/validatingadmissionpolicies/{NAME}", f"{GROUP}/validatingadmissionpolicybindings/{NAME}"]


class GuardedApi(MergingApi):
    """Knows its client as "fleet-hub", and creates what is applied."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.path.endswith("/selfsubjectreviews"):
            return json.dumps({"status": {"userInfo": {"username": "fleet-hub"}}}).encode()
        if call.method == "PATCH":
            self.put(call.path, json.loads(call.body or b"{}"))
            return json.dumps(self.objects[call.path]).encode()
        return await super().fetch(call, timeout)


def labels(managed_by: str) -> dict[str, Any]:
    return {"metadata": {"name": NAME, "uid": "u1", "labels": {"app.kubernetes.io/managed-by": managed_by}}}


async def test_f_64_the_policy_names_the_administrators_and_the_process_itself() -> None:
    api = GuardedApi()
    await GuardRails(hub_of(api.client()), ["me"]).reconcile(NAME)
    assert sorted(api.objects) == PATHS
    policy = api.objects[PATHS[0]]
    assert policy["metadata"]["ownerReferences"] == []
    assert policy["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "fleet-hub"}
    assert policy["spec"]["variables"][0]["expression"] == "['me', 'fleet-hub']"


async def test_f_64_the_policy_is_deleted_with_the_role_of_the_process() -> None:
    api = GuardedApi()
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "fleet-hub", "uid": "r1"}
    api.put("/apis/rbac.authorization.k8s.io/v1/clusterroles/fleet-hub", {"metadata": {"name": "fleet-hub", "uid": "r1"}})
    await GuardRails(hub_of(api.client()), ["me"]).reconcile(NAME)
    assert [api.objects[path]["metadata"]["ownerReferences"] for path in PATHS] == [[role], [role]]


async def test_f_64_without_administrators_only_a_policy_of_the_process_is_removed() -> None:
    api = GuardedApi()
    for path, owner in zip(PATHS, ("fleet-hub", "Helm"), strict=True):
        api.put(path, labels(owner))
    await GuardRails(hub_of(api.client()), ()).reconcile(NAME)
    assert list(api.objects) == [PATHS[1]] and [each.method for each in api.writes] == ["DELETE"]
