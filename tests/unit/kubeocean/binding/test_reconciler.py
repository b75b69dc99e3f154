"""The binding as its process sees it."""

from __future__ import annotations

import json

import pytest

from kubeocean.binding.conditions import RETIREMENT_HELD
from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.model import keys
from kubeocean.nodes.withdrawal import Cause, Withdrawal
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import unknown, worker_scope
from vkubelet.api.objects import Json, get_condition
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.control.guard import MassGuard
from vkubelet.errors import Conflict
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

DEMO = keys.Identity("demo", "mnt")


def stored(
    version: int, *, cluster_id: str = "demo", mount: str = "mnt", served: bool = True, noted: bool = True, uid: str = "uid-b"
) -> Json:
    meta: Json = {"name": "demo", "uid": uid, "resourceVersion": str(version)}
    meta["finalizers"] = [keys.FINALIZER_SYNCER] if served else []
    meta["annotations"] = {keys.ACCEPTED_AS: DEMO.note("uid-b")} if noted else {}
    spec = {"clusterID": cluster_id, "mountNamespace": mount, "secretRef": {"name": "k", "namespace": "n"}}
    return {"metadata": meta, "spec": spec}


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost(client=Client(Connection("https://192.0.2.1")))


@pytest.fixture
def bound(host: RecordingHost) -> BindingReconciler:
    return BindingReconciler(host, "demo")


def seen(bound: BindingReconciler, *bodies: Json) -> keys.Identity:
    for body in bodies:
        bound.informer.adopt(unknown(body))
    assert bound.current is not None
    return bound.current.identity


@pytest.mark.parametrize("noted", [True, False], ids=["the note stays", "the note is removed with it"])
def test_a_served_binding_keeps_its_identity_when_its_spec_is_edited(bound: BindingReconciler, noted: bool) -> None:
    edited = stored(2, cluster_id="renamed", mount="other", noted=noted)
    assert seen(bound, stored(1), edited) == DEMO
    assert seen(bound, stored(3, cluster_id="renamed", mount="other", noted=False)) == DEMO


def test_a_binding_that_was_never_served_may_still_be_corrected(bound: BindingReconciler) -> None:
    before = stored(1, cluster_id="typo", served=False, noted=False)
    assert seen(bound, before, stored(2, served=False, noted=False)) == DEMO


def test_another_binding_of_the_same_name_has_its_own_identity(bound: BindingReconciler) -> None:
    again = stored(2, cluster_id="new", uid="uid-c")
    assert seen(bound, stored(1), again) == keys.Identity("new", "mnt")


@pytest.mark.parametrize("status", ["True", "False"])
def test_what_an_earlier_process_held_is_held_until_all_nodes_were_decided(
    host: RecordingHost, bound: BindingReconciler, status: str
) -> None:
    condition = {"type": RETIREMENT_HELD, "status": status, "reason": "TooManyNodes", "message": "3 nodes vanished"}
    bound.informer.adopt(unknown({**stored(1), "status": {"conditions": [condition]}}))
    assert bound.held == ("3 nodes vanished" if status == "True" else "")
    guard = MassGuard(clock=ManualClock())
    withdrawal = Withdrawal(worker_scope(host, binding=bound, guard=guard))
    withdrawal.restore()
    assert withdrawal.allowed("n1", Cause.NODE, total=20) is (status == "False")
    assert withdrawal.allowed("n2", Cause.TERMS, total=20)
    withdrawal.release()
    assert guard.refused == ({"n1"} if status == "True" else frozenset())
    assert ("n1" in bound.held) is (status == "True")


def test_nothing_is_held_any_more_when_the_nodes_are_back(host: RecordingHost, bound: BindingReconciler) -> None:
    condition = {"type": RETIREMENT_HELD, "status": "True", "reason": "TooManyNodes", "message": "3 nodes vanished"}
    bound.informer.adopt(unknown({**stored(1), "status": {"conditions": [condition]}}))
    withdrawal = Withdrawal(worker_scope(host, binding=bound))
    withdrawal.restore()
    withdrawal.release()
    assert bound.held == "" and withdrawal.allowed("n1", Cause.NODE, total=20)


def test_a_confirmed_node_that_is_back_needs_another_confirmation_next_time(host: RecordingHost, bound: BindingReconciler) -> None:
    withdrawal = Withdrawal(worker_scope(host, binding=bound, guard=MassGuard(clock=ManualClock())))
    assert [withdrawal.allowed(name, Cause.NODE, total=2) for name in ("n1", "n2")] == [True, False]
    assert withdrawal.confirm() == {"n2"}
    withdrawal.remove("n2")
    assert not withdrawal.allowed("n2", Cause.NODE, total=2)


class GuardedApi(MemoryApi):
    """Refuses a patch that is based on an earlier version."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "PATCH":
            there = self.objects[call.path.removesuffix("/status")]["metadata"]["resourceVersion"]
            if json.loads(call.body or b"{}")["metadata"]["resourceVersion"] != there:
                raise Conflict(call.attempt, "the object has been modified")
        return await super().fetch(call, timeout)


async def test_a_status_is_written_though_the_watch_delivers_nothing() -> None:
    api, path = GuardedApi(), "/apis/cloud.tencent.com/v1beta1/clusterbindings/demo"
    api.put(path, stored(1))
    bound = BindingReconciler(RecordingHost(client=api.client()), "demo")
    bound.informer.adopt(unknown(api.objects[path]))
    for changed_by_another in (False, False, True):
        if changed_by_another:
            api.put(path, api.objects[path])
            bound.set_unreachable("no response")
            with pytest.raises(Conflict):
                await bound.reconcile("demo")
        else:
            bound.set_held("" if bound.held else "3 nodes disappeared at once")
        await bound.reconcile("demo")
    condition = get_condition(api.objects[path]["status"]["conditions"], "Connected")
    assert condition is not None and condition["message"] == "no response"
