"""Tests of kubeocean.mirrors.namespaces."""

from __future__ import annotations

from kubeocean.mirrors.namespaces import LeasedNamespaces
from kubeocean.pods.translate import physical_pod
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, TARGET, physical, pod
from vkubelet.api.objects import Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.control.informer import Change
from vkubelet.testing.host import RecordingHost


def caller(name: str, namespace: str = "shop") -> Pod:
    return pod(name=name, namespace=namespace, uid=f"uid-{name}")


class Scene:
    """A worker whose pods come and go."""

    def __init__(self) -> None:
        self.host = RecordingHost(client=Client(Connection("https://192.0.2.1")))
        self.worker = WorkerCluster(self.host.client, Mount(OWNER, "mnt"), clock=self.host.clock, probe_interval=10)
        self.leased = LeasedNamespaces(self.host, self.worker, unused_after=30.0)

    def runs(self, virtual: Pod) -> tuple[str, float] | None:
        """The watch of the worker shows the physical pod."""
        found = physical(physical_pod(virtual, TARGET))
        self.worker.pods.store.put(found)
        return self.leased.observe(Change(found.key, None, found))

    def ends(self, virtual: Pod) -> tuple[str, float] | None:
        """The watch of the worker shows that it is deleted."""
        found = physical(physical_pod(virtual, TARGET))
        self.worker.pods.store.remove(found.key)
        return self.leased.observe(Change(found.key, found, None))


def test_physical_pods_of_an_earlier_process_put_their_namespace_in_use() -> None:
    scene = Scene()
    assert scene.runs(caller("a")) == ("shop", 0.0) and scene.runs(caller("b")) is None
    assert scene.leased.uses("shop") and scene.leased.namespaces() == {"shop"}


def test_pods_of_others_put_no_namespace_in_use() -> None:
    scene = Scene()
    theirs = pod(namespace="mnt", name="theirs")
    scene.worker.pods.store.put(theirs)
    assert scene.leased.observe(Change(theirs.key, None, theirs)) is None and scene.leased.namespaces() == frozenset()


def test_a_pod_counts_before_its_physical_pod_exists_and_only_while_it_does() -> None:
    scene = Scene()
    scene.host.pods.put(caller("a"))
    assert scene.leased.note(caller("a")) and not scene.leased.note(caller("a")) and scene.leased.uses("shop")
    scene.host.pods.remove(caller("a"))
    assert not scene.leased.uses("shop")


async def test_namespace_is_used_for_a_while_after_its_last_pod() -> None:
    scene = Scene()
    scene.runs(caller("a"))
    scene.runs(caller("b"))
    assert scene.ends(caller("a")) is None
    assert scene.ends(caller("b")) == ("shop", 30.0) and scene.leased.uses("shop")
    await scene.host.manual_clock.advance(30.0)
    assert not scene.leased.uses("shop") and scene.leased.namespaces() == frozenset()


async def test_pod_that_comes_back_in_time_keeps_the_namespace() -> None:
    scene = Scene()
    scene.runs(caller("a"))
    scene.ends(caller("a"))
    assert scene.runs(caller("b")) == ("shop", 0.0)
    await scene.host.manual_clock.advance(60.0)
    assert scene.leased.uses("shop")


def test_pod_whose_physical_pod_is_deleted_before_it_does_not_count() -> None:
    scene = Scene()
    scene.host.pods.put(caller("a"))
    scene.leased.note(caller("a"))
    scene.runs(caller("a"))
    assert scene.ends(caller("a")) == ("shop", 30.0)


async def test_pods_deleted_before_they_have_a_physical_pod_leave_nothing_behind() -> None:
    scene = Scene()
    scene.host.pods.put(caller("a"))
    scene.leased.note(caller("a"))
    scene.host.pods.remove(caller("a"))
    assert scene.leased.released(caller("a").ref) == ("shop", 30.0), "mirrors made for it are deleted later"
    assert scene.leased.released(caller("a").ref) is None
    await scene.host.manual_clock.advance(30.0)
    assert not scene.leased.uses("shop") and scene.leased.namespaces() == frozenset()
