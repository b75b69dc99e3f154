"""What the cache of a worker says of the objects that pods use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model import keys
from kubeocean.pods.translate import physical_pod
from kubeocean.worker.cluster import Mount, WorkerCluster, head_of
from tests.unit.kubeocean.builders import OWNER, TARGET, physical, pod, unknown
from vkubelet.api.codec import encode_json
from vkubelet.api.names import LAST_APPLIED
from vkubelet.api.objects import Key, Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.testing.clock import ManualClock

CONFIG = {"volumes": [{"name": "c", "configMap": {"name": "conf"}}]}


def cluster(*pods: Pod, listed: bool = True) -> WorkerCluster:
    clock = ManualClock()
    made = WorkerCluster(Client(Connection("https://192.0.2.1"), clock=clock), Mount(OWNER, "mnt"), clock=clock, probe_interval=10)
    for each in pods:
        made.pods.adopt(each)
    made.pods.ever_synced = listed
    return made


def of(virtual: Pod, **metadata: object) -> Pod:
    return physical(physical_pod(virtual, TARGET), resourceVersion="5", **metadata)


def test_what_a_physical_pod_names_is_used_even_if_no_virtual_pod_is_known() -> None:
    worker = cluster(of(pod(CONFIG)))
    assert worker.is_used(Key("default", "conf"))
    assert not worker.is_used(Key("default", "other"))
    assert not worker.is_used(Key("elsewhere", "conf"))


def test_the_pods_of_a_namespace_are_not_searched_for_each_copy() -> None:
    """Otherwise a namespace that empties costs the square of its pods."""
    worker = cluster(
        *(
            of(pod({"volumes": [{"name": "c", "configMap": {"name": f"conf-{number}"}}]}, name=f"web-{number}", uid=f"uid-{number}"))
            for number in range(100)
        )
    )
    search, found = worker.pods.store.by_index, list[Pod]()

    def counted(index: str, value: str) -> list[Pod]:
        pods = search(index, value)
        found.extend(pods)
        return pods

    worker.pods.store.by_index = counted  # type: ignore[method-assign]
    assert all(worker.is_used(Key("default", f"conf-{number}")) for number in range(100)) and len(found) == 100
    assert not any(worker.is_used(Key("default", f"none-{number}")) for number in range(100)) and len(found) == 100


@given(name=st.text("ab-", min_size=1, max_size=40), around=st.text("a-0f", max_size=40), after=st.text("a-0f", max_size=3))
def test_a_name_is_found_wherever_a_spec_contains_it(name: str, around: str, after: str) -> None:
    copied = keys.physical_name("default", name)
    spec = encode_json({"name": f"{around}{copied}{after}"})
    assert keys.hash_of(copied) in keys.hashes_in(spec)


def test_everything_is_used_while_the_pods_are_not_known() -> None:
    assert cluster(listed=False).is_used(Key("default", "conf"))


def test_a_pod_made_of_the_yaml_of_ours_backs_no_virtual_pod() -> None:
    ours = of(pod())
    worker = cluster(ours, of(pod(), name="copied-by-hand", uid="another-uid"))
    assert [worker.backed(each) is not None for each in worker.pods.store] == [True, False]
    assert [each.metadata.uid for each in worker.pods_of("vnode-demo-node-1")] == [ours.metadata.uid]


def test_heads_keep_no_second_copy_of_what_a_secret_holds() -> None:
    annotations = {LAST_APPLIED: '{"stringData":{"password":"hunter2"}}', "kubeocean.io/virtual-name": "s"}
    labels = {"app": "x", "kubeocean.io/managed-by": "kubeocean"}
    meta = {"name": "s", "namespace": "default", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    full = unknown({"metadata": {**meta, "labels": labels, "annotations": annotations}, "data": {"password": "aHVudGVyMg=="}})
    head = head_of(full)
    assert "hunter2" not in repr(head) and b"aHVudGVyMg" not in head.raw
    assert head.metadata.annotations == {"kubeocean.io/virtual-name": "s"}
    assert head.metadata.labels == {"kubeocean.io/managed-by": "kubeocean"}
    same = ("key", "uid", "resource_version", "deletion_timestamp")
    assert all(getattr(head.metadata, name) == getattr(full.metadata, name) for name in same)
