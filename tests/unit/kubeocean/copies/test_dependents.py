"""Tests of kubeocean.copies.dependents: the index of used objects, and what a connection to the worker knows of the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kubeocean.copies.bodies import marked_copy
from kubeocean.copies.dependents import Dependents, Users
from kubeocean.model.keys import physical_name
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, binding, pod, unknown, worker_scope
from vkubelet.api.objects import Key, Pod
from vkubelet.api.podspec import Kind
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import PodTable, RecordingHost

RUNNING = pod(
    {"volumes": [{"name": "c", "configMap": {"name": "late", "optional": True}}, {"name": "s", "secret": {"secretName": "late"}}]}
)


def connected(host: RecordingHost, client: Client) -> Dependents:
    """As after a start, a change of the leader, or another kubeconfig."""
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    shared = worker_scope(host, worker)
    shared.binding.current = binding()
    shared.virtual.complete()
    return Dependents(shared)


@pytest.mark.parametrize("kind", [Kind.CONFIGMAP, Kind.SECRET])
async def test_object_that_appears_reaches_the_pods_an_earlier_connection_synced(kind: Kind) -> None:
    clock = ManualClock()
    client = Client(Connection("https://192.0.2.1"), clock=clock)
    host = RecordingHost(clock=clock, client=client)
    host.pods.put(RUNNING)
    connected(host, client).users.note(RUNNING)
    second = connected(host, client)
    await second.seed()
    head = {"name": "late", "namespace": "default", "uid": "u", "resourceVersion": "5"}
    second.copies[kind].originals.adopt(unknown({"metadata": head}))
    assert Key("default", "late") in second.copies[kind].controller.queue


@pytest.mark.parametrize("kind", [Kind.CONFIGMAP, Kind.SECRET])
async def test_copies_that_are_cached_before_the_reconciler_exists_are_checked(kind: Kind) -> None:
    clock = ManualClock()
    client = Client(Connection("https://192.0.2.1"), clock=clock)
    host = RecordingHost(clock=clock, client=client)
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=clock, probe_interval=10)
    original = unknown({"metadata": {"name": "old", "namespace": "default"}}).metadata
    body = marked_copy(kind.value, original, OWNER, namespace="mnt")
    cached = worker.configmaps if kind is Kind.CONFIGMAP else worker.secrets
    cached.adopt(unknown({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "5"}}))
    assert Key("default", "old") in Dependents(worker_scope(host, worker)).copies[kind].controller.queue


class CountedPods(PodTable):
    """Pods, of which none may be listed without a namespace; `listed` were so far."""

    listed = 0

    def in_namespace(self, namespace: str) -> Sequence[Pod]:
        found = [pod for pod in self._pods.values() if pod.metadata.namespace == namespace]
        self.listed += len(found)
        return found

    def __iter__(self) -> Iterator[Pod]:
        raise AssertionError("the pods of all namespaces are listed")


def test_only_pods_of_the_namespace_are_searched_before_a_copy_is_deleted() -> None:
    pods = CountedPods()
    for number in range(100):
        pods.put(pod(namespace=f"ns-{number % 20}", name=f"web-{number}", uid=f"uid-{number}"))
    users = Users(pods, concerns=lambda each: True)
    assert not users.is_named(Kind.CONFIGMAP, Key("ns-3", "conf")) and pods.listed == 5


@pytest.mark.parametrize(("secret", "needed"), [("s", True), ("t", False)])
def test_secrets_of_volumes_are_found_by_the_names_in_their_copies(secret: str, needed: bool) -> None:
    client = Client(Connection("https://192.0.2.1"))
    volumes = connected(RecordingHost(client=client), client)._volumes
    spec = {"csi": {"driver": "d", "nodePublishSecretRef": {"name": physical_name("storage", "s"), "namespace": "mnt"}}}
    volumes.copies.adopt(unknown({"metadata": {"name": "pv", "uid": "pv", "resourceVersion": "5"}, "spec": spec}))
    volumes.copies.ever_synced = True
    assert volumes.needs_secret(Key("storage", secret)) is needed


CONF = Key("default", "conf")


def naming(name: str, *, configmap: str = "conf", **more: object) -> Pod:
    volume = {"name": "c", "configMap": {"name": configmap, "optional": True}}
    return pod({"volumes": [volume]}, name=name, uid=f"uid-{name}", **more)


def everything(each: Pod) -> bool:
    return True


async def test_pods_that_another_process_synced_are_users_after_a_start() -> None:
    table = PodTable()
    table.put(naming("web"))
    users = Users(table, concerns=everything)
    assert not users.needs(Kind.CONFIGMAP, CONF)
    await users.seed(ManualClock())
    assert users.needs(Kind.CONFIGMAP, CONF)


async def test_pods_that_do_not_go_to_the_worker_and_finished_ones_need_nothing() -> None:
    table = PodTable()
    table.put(naming("agent"))
    table.put(naming("done", status={"phase": "Succeeded"}))
    users = Users(table, concerns=lambda each: each.metadata.name != "agent")
    await users.seed(ManualClock())
    assert not users.needs(Kind.CONFIGMAP, CONF) and not users.is_named(Kind.CONFIGMAP, CONF)


def test_object_is_unused_with_the_last_of_its_pods() -> None:
    table = PodTable()
    users = Users(table, concerns=everything)
    for name in ("a", "b"):
        table.put(naming(name))
        users.note(naming(name))
    assert users.drop("uid-a") == frozenset()
    assert users.drop("uid-b") == {(Kind.CONFIGMAP, CONF)}
    assert users.drop("uid-b") == frozenset()


def test_pod_that_is_gone_without_a_word_is_no_user() -> None:
    table = PodTable()
    table.put(naming("web"))
    users = Users(table, concerns=everything)
    users.note(naming("web"))
    table.remove(naming("web"))
    assert not users.needs(Kind.CONFIGMAP, CONF)


def test_pod_that_nobody_has_synced_yet_names_its_objects_all_the_same() -> None:
    table = PodTable()
    users = Users(table, concerns=everything)
    table.put(naming("new"))
    assert users.is_named(Kind.CONFIGMAP, CONF) and not users.is_named(Kind.SECRET, CONF)
    assert not users.is_named(Kind.CONFIGMAP, Key("other", "conf"))


def test_ephemeral_container_adds_what_it_names() -> None:
    table = PodTable()
    users = Users(table, concerns=everything)
    table.put(naming("web"))
    users.note(naming("web"))
    reference = {"name": "V", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}
    debugged = pod({"ephemeralContainers": [{"name": "debugger", "image": "busybox", "env": [reference]}]}, name="web", uid="uid-web")
    table.put(debugged)
    users.note(debugged)
    assert users.needs(Kind.SECRET, Key("default", "late")) and not users.needs(Kind.CONFIGMAP, CONF)


async def test_asking_looks_at_no_pod_that_is_noted() -> None:
    """Releasing a claim asks twice, and thousands of ephemeral volumes may end one after another."""
    looked_at: list[str] = []

    def counted(each: Pod) -> bool:
        looked_at.append(each.metadata.name)
        return True

    table = PodTable()
    users = Users(table, concerns=counted)
    for number in range(300):
        table.put(naming(f"p{number}"))
    await users.seed(ManualClock())
    assert not any(users.is_named(Kind.CLAIM, Key("default", f"p{number}-scratch")) for number in range(300))
    assert len(looked_at) == 300
