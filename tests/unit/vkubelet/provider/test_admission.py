"""May a pod run on its node? The kubelet's reasons and words, and the order in which pods are judged."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, Node, Pod
from vkubelet.errors import PodRejected
from vkubelet.provider.admission import Admission, Demand, Load, judge
from vkubelet.testing.host import make_pod, with_status

ALLOCATABLE = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "10Ki", "pods": "3", "example.com/gpu": "1"}
NO_AFFINITY = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
LABELS = {"kubernetes.io/os": "linux", "disk": "ssd"}


def node(*, taints: list[Json] | None = None, **allocatable: str) -> Node:
    body = {"metadata": {"name": "node", "labels": LABELS}, "spec": {"taints": taints or []}}
    return Node.decode(encode_json({**body, "status": {"allocatable": {**ALLOCATABLE, **allocatable}}}))


def asking(name: str = "web", *, created: str = "", spec: Json | None = None, **requests: str) -> Pod:
    container: Json = {"name": "main", "image": "image", "resources": {"requests": requests}}
    return make_pod(name, metadata={"creationTimestamp": created}, spec={"containers": [container], **(spec or {})})


def taken(*pods: Pod) -> Load:
    load = Load()
    for pod in pods:
        load.add(pod.metadata.uid, Demand.of(pod))
    return load


def refused(pod: Pod, load: Load | None = None, *, on: Node | None = None) -> tuple[str, str] | None:
    found = judge(pod, on or node(), load or Load())
    return (found.reason, found.message) if found is not None else None


@pytest.mark.parametrize(
    ("requests", "reason", "text"),
    [
        ({"cpu": "1500m"}, "OutOfcpu", "cpu, requested: 1500, used: 1000, capacity: 2000"),
        ({"memory": "900Mi"}, "OutOfmemory", "memory, requested: 943718400, used: 268435456, capacity: 1073741824"),
        (
            {"ephemeral-storage": "11k"},
            "OutOfephemeral-storage",
            "ephemeral-storage, requested: 11000, used: 0, capacity: 10240",
        ),
        ({"example.com/gpu": "2"}, "OutOfexample.com/gpu", "example.com/gpu, requested: 2, used: 0, capacity: 1"),
        ({"hugepages-2Mi": "4Mi"}, "OutOfhugepages-2Mi", "hugepages-2Mi, requested: 4194304, used: 0, capacity: 0"),
        ({"cpu": "9", "memory": "9Gi"}, "OutOfcpu", "cpu, requested: 9000, used: 1000, capacity: 2000"),
    ],
)
def test_what_does_not_fit_beside_the_others_is_refused(requests: dict[str, str], reason: str, text: str) -> None:
    beside = taken(asking("other", cpu="1", memory="256Mi"))
    assert refused(asking(**requests), beside) == (reason, f"Node didn't have enough resource: {text}")


def test_what_fits_exactly_is_taken_and_unknown_extended_resources_are_ignored() -> None:
    assert refused(asking(cpu="1", memory="768Mi"), taken(asking("other", cpu="1", memory="256Mi"))) is None
    assert refused(asking(**{"example.com/unheard-of": "5"})) is None


def test_a_node_has_room_for_so_many_pods() -> None:
    three = taken(*(asking(name) for name in ("a", "b", "c")))
    assert refused(asking(), three) == ("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3")


def test_a_node_without_cpu_takes_only_pods_that_ask_for_none() -> None:
    bare = node(cpu="0")
    assert refused(asking(cpu="1m"), on=bare) is not None
    assert refused(asking(), on=bare) is None


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        (
            {"nodeSelector": {"disk": "hdd"}},
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        ({"os": {"name": "windows"}}, "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
        ({"nodeSelector": {"disk": "ssd"}, "os": {"name": "linux"}}, "", ""),
    ],
)
def test_the_node_must_be_one_that_the_pod_asks_for(spec: Json, reason: str, text: str) -> None:
    assert refused(asking(spec=spec)) == ((reason, text) if reason else None)


def test_the_label_of_an_operating_system_must_be_that_of_the_node() -> None:
    pod = make_pod(metadata={"labels": {"kubernetes.io/os": "windows"}})
    found = refused(pod)
    assert found == ("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")


@pytest.mark.parametrize(
    ("policy", "features", "taken_in"),
    [("Strict", {}, False), ("Strict", {"supplementalGroupsPolicy": True}, True), ("Merge", {}, True)],
)
def test_strict_groups_need_a_node_that_keeps_them(policy: str, features: Json, taken_in: bool) -> None:
    shown = Node.decode(encode_json({"metadata": {"name": "node"}, "status": {"allocatable": ALLOCATABLE, "features": features}}))
    found = refused(asking(spec={"securityContext": {"supplementalGroupsPolicy": policy}}), on=shown)
    expected = ("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
    assert found == (None if taken_in else expected)


def test_a_host_port_is_given_once() -> None:
    ports: Json = {"containers": [{"name": "main", "image": "image", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    found = refused(asking("b", spec=ports), taken(asking("a", spec=ports)))
    assert found == ("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
    assert refused(asking("b", spec=ports)) is None


@pytest.mark.parametrize(
    ("effect", "tolerations", "taken_in"),
    [
        ("NoExecute", [], False),
        ("NoExecute", [{"key": "k", "operator": "Exists"}], True),
        # Whoever evicts counts the seconds.
        ("NoExecute", [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}], True),
        ("NoExecute", [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}], False),
        ("NoSchedule", [], True),
    ],
)
def test_only_taints_that_evict_keep_a_bound_pod_away(effect: str, tolerations: list[Json], taken_in: bool) -> None:
    found = refused(asking(spec={"tolerations": tolerations}), on=node(taints=[{"key": "k", "effect": effect}]))
    expected = ("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
    assert found == (None if taken_in else expected)


class Scene:
    """An `Admission` with pods of one node."""

    def __init__(self, *pods: Pod, **allocatable: str) -> None:
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self.node: Node | None = node(**allocatable)
        self.admission = Admission(node=lambda name: self.node, pod=self.pods.get)
        for pod in pods:
            self.admission.observe(pod)

    def takes(self, name: str) -> bool:
        try:
            self.admission.admit(self.pods[f"uid-{name}"])
        except PodRejected:
            return False
        return True

    def resize(self, name: str, **requests: str) -> None:
        pod = self.pods[f"uid-{name}"]
        changed = with_status(asking(name, created=pod.metadata.creation_timestamp or "", **requests), pod.status)
        self.pods[f"uid-{name}"] = changed
        self.admission.observe(changed)

    def change(self, name: str, **status: Any) -> None:
        pod = self.pods[f"uid-{name}"] = with_status(self.pods[f"uid-{name}"], status)
        self.admission.observe(pod)


def test_the_older_pod_gets_the_room_whichever_is_asked_for_first() -> None:
    younger, older = asking("a", created="2026-01-01T00:00:05Z", cpu="2"), asking("b", created="2026-01-01T00:00:04Z", cpu="2")
    scene = Scene(younger, older)
    assert [scene.takes("a"), scene.takes("b"), scene.takes("a")] == [False, True, False]


def test_pods_that_had_started_before_this_process_come_before_new_ones() -> None:
    started = with_status(asking("z", cpu="2"), {"phase": "Pending", "startTime": "2026-01-01T00:00:09Z"})
    scene = Scene(asking("a", created="2026-01-01T00:00:00Z", cpu="1"), started)
    assert [scene.takes("a"), scene.takes("z")] == [False, True]


def test_a_pod_that_has_ended_or_is_forgotten_makes_room() -> None:
    scene = Scene(asking("a", created="1", cpu="2"), asking("b", created="2", cpu="2"), asking("c", created="3", cpu="2"))
    assert scene.takes("a")
    scene.change("a", phase="Succeeded")
    assert [scene.takes("b"), scene.takes("c")] == [True, False]
    scene.admission.forget("uid-b")
    assert not scene.takes("c"), "what was refused stays refused"
    scene.pods["uid-d"] = asking("d", created="4", cpu="2")
    assert scene.takes("d")


def test_an_older_pod_that_ended_before_its_turn_takes_nothing() -> None:
    scene = Scene(asking("a", created="1", cpu="2"), asking("b", created="2", cpu="2"))
    scene.change("a", phase="Failed")
    assert scene.takes("b")
    scene.admission.forget("uid-a")
    scene.admission.forget("uid-b")
    assert not scene.admission._queues, "nothing is kept of pods that are gone"


def test_nothing_is_kept_of_pods_that_were_deleted_before_they_were_judged() -> None:
    scene = Scene(asking("a", created="1", cpu="2"), asking("b", created="2", cpu="2"), asking("c", created="3", cpu="1"))
    scene.admission.forget("uid-b")
    assert scene.takes("a"), "those that still wait keep their turn"
    scene.admission.forget("uid-a")
    scene.admission.forget("uid-c")
    assert not scene.admission._queues


def test_an_older_pod_that_is_being_deleted_before_its_turn_takes_nothing() -> None:
    going = make_pod(
        "a",
        metadata={"creationTimestamp": "1", "deletionTimestamp": "2026-01-01T00:00:09Z"},
        spec={"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]},
    )
    assert Scene(going, asking("b", created="2", cpu="2")).takes("b")


def test_a_resized_pod_takes_what_it_was_granted() -> None:
    scene = Scene(*(asking(name, created=name, cpu="1") for name in "abcdef"), pods="9")
    assert scene.takes("a")
    granted: Json = {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "1"}}]}
    scene.change("a", **granted)
    scene.resize("a", cpu="2")
    assert scene.takes("b"), "what is asked for is not granted yet"
    granted["containerStatuses"][0]["allocatedResources"] = {"cpu": "500m"}
    scene.resize("a", cpu="500m")
    scene.change("a", **granted)
    scene.pods["uid-g"] = asking("g", created="0", cpu="500m")
    assert [scene.takes("g"), scene.takes("c")] == [True, False]


def test_a_pod_that_was_resized_before_a_restart_takes_what_it_was_granted() -> None:
    status: Json = {"startTime": "2026-01-01T00:00:09Z", "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "500m"}}]}
    assert Scene(with_status(asking("a", cpu="2"), status), asking("b", cpu="1500m")).takes("b")


def test_a_pod_that_came_while_the_node_was_unknown_runs_and_counts() -> None:
    scene = Scene(asking("a", created="2", cpu="2"), asking("b", created="1", cpu="2"))
    known, scene.node = scene.node, None
    assert scene.takes("a")
    scene.node = known
    assert [scene.takes("b"), scene.takes("a")] == [False, True]
