"""Tests of kubeocean.pods.virtual_status."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.keys import physical_name
from kubeocean.pods.translate import physical_pod
from kubeocean.pods.virtual_status import virtual_annotations, virtual_labels, virtual_status
from tests.unit.kubeocean.builders import TARGET, physical, pod
from vkubelet.api.objects import Json, Pod

SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-05T10:00:00Z"}
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-05T10:00:09Z"}
RUNNING: Json = {
    "phase": "Running",
    "hostIP": "10.0.0.7",
    "hostIPs": [{"ip": "10.0.0.7"}],
    "podIP": "10.1.0.1",
    "podIPs": [{"ip": "10.1.0.1"}],
    "startTime": "2026-01-05T10:00:01Z",
    "qosClass": "Burstable",
    "conditions": [READY, {**SCHEDULED, "lastTransitionTime": "2026-01-05T10:00:05Z"}],
    "containerStatuses": [{"name": "main", "ready": True}],
}


def there(web: Pod, status: Json, *, generation: int = 1, **metadata: object) -> Pod:
    return physical(physical_pod(web, TARGET), status=status, generation=generation, **metadata)


def test_status_is_the_workers_but_for_what_belongs_to_the_hub() -> None:
    web = pod(status={"phase": "Pending", "qosClass": "BestEffort", "nominatedNodeName": "n", "conditions": [SCHEDULED]})
    assert virtual_status(web, there(web, RUNNING)) == {
        "phase": "Running",
        "hostIP": "10.0.0.7",
        "hostIPs": [{"ip": "10.0.0.7"}],
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": "2026-01-05T10:00:01Z",
        "containerStatuses": [{"name": "main", "ready": True}],
        "qosClass": "BestEffort",
        "nominatedNodeName": "n",
        "conditions": [SCHEDULED, READY],
    }


@pytest.mark.parametrize(
    ("sent", "generation", "seen", "expected"),
    [
        (7, 3, 3, 7),
        # Its kubelet has not seen the last change yet.
        (7, 3, 2, 5),
        # The last change of the virtual pod has not been sent yet.
        (6, 3, 3, 5),
        # A worker that does not count.
        (7, 3, None, 5),
    ],
)
def test_observed_generation_is_the_hubs_and_only_when_all_of_it_has_arrived(
    sent: int, generation: int, seen: int | None, expected: int
) -> None:
    web = pod(generation=7, status={"observedGeneration": 5})
    status = {**RUNNING, "conditions": [{**READY, "observedGeneration": 99}], **({"observedGeneration": seen} if seen else {})}
    live = there(pod(generation=sent), status, generation=generation)
    found = virtual_status(web, live)
    assert found["observedGeneration"] == expected
    assert found["conditions"][0].get("observedGeneration") == (7 if expected == 7 else None)


def test_generation_is_not_reported_before_it_was_ever_observed() -> None:
    web = pod(generation=7)
    assert "observedGeneration" not in virtual_status(web, there(web, RUNNING))


@pytest.mark.parametrize(("gate", "ready"), [("True", "True"), ("False", "False"), (None, "False")])
def test_readiness_gates_are_answered_at_home(gate: str | None, ready: str) -> None:
    home = [SCHEDULED] + ([{"type": "lb.example/ready", "status": gate}] if gate else [])
    web = pod({"readinessGates": [{"conditionType": "lb.example/ready"}]}, status={"conditions": home})
    conditions = {each["type"]: each for each in virtual_status(web, there(web, RUNNING))["conditions"]}
    assert conditions["Ready"]["status"] == ready
    if ready == "False":
        assert conditions["Ready"]["reason"] == "ReadinessGatesNotReady"


def test_waiting_resize_shows_its_reason_and_overrides_the_kubelets_condition() -> None:
    web, status = pod(generation=2), {**RUNNING, "observedGeneration": 3}
    body = physical_pod(web, TARGET)
    body["metadata"]["annotations"]["kubeocean.io/resize-pending"] = "Infeasible: too much: cpu"
    expected = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "too much: cpu", "observedGeneration": 2}
    assert virtual_status(web, physical(body, status=status, generation=3))["conditions"] == [READY, expected]
    theirs = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "earlier"}
    both = {**status, "conditions": [READY, theirs]}
    assert virtual_status(web, physical(body, status=both, generation=3))["conditions"] == [READY, expected]
    assert virtual_status(web, there(web, both))["conditions"] == [READY, theirs]


def test_annotations_name_the_physical_pod_once() -> None:
    web = pod()
    live = there(web, RUNNING)
    mapping = {
        "kubeocean.io/physical-pod-namespace": "mnt",
        "kubeocean.io/physical-pod-name": live.metadata.name,
        "kubeocean.io/physical-pod-uid": "physical-uid",
        "kubeocean.io/physical-pod-of": "uid-1",
    }
    assert virtual_annotations(web, live) == mapping
    assert virtual_annotations(pod(annotations=mapping), live) == {}


CNI, SELECTED = "k8s.v1.cni.cncf.io/network-status", "tier"


def changed_below(web: Pod, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Pod:
    """The physical pod as somebody in the worker changed it."""
    meta = physical_pod(web, TARGET)["metadata"]
    return there(web, RUNNING, labels={**meta["labels"], **(labels or {})}, annotations={**meta["annotations"], **(annotations or {})})


def test_nothing_that_the_worker_sets_comes_up_by_itself() -> None:
    web = pod(labels={"app": "batch"}, annotations={"note": "x"})
    live = changed_below(
        web,
        labels={"app": "checkout", SELECTED: "front"},
        annotations={"note": "y", CNI: "[]", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    )
    assert virtual_labels(web, live) == {}
    assert all(key.startswith("kubeocean.io/physical-pod-") for key in virtual_annotations(web, live))


@pytest.mark.parametrize("pattern", ["*", "k8s.v1.cni.cncf.io/*", CNI])
def test_what_the_binding_allows_comes_up_but_nothing_internal(pattern: str) -> None:
    web = pod()
    live = changed_below(web, annotations={CNI: "[]", "kubeocean.io/anything": "x"})
    found = virtual_annotations(web, live, allowed=[pattern])
    assert found[CNI] == "[]"
    assert {key for key in found if not key.startswith("kubeocean.io/physical-pod-")} == {CNI}


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy")))
def test_no_key_that_the_user_has_is_ever_changed_by_the_worker(users: dict[str, str], theirs: dict[str, str]) -> None:
    web = pod(labels=users, annotations=users)
    live = changed_below(web, labels=theirs, annotations=theirs)
    for added in (virtual_labels(web, live, allowed=["*"]), virtual_annotations(web, live, allowed=["*"])):
        mine = {key: value for key, value in added.items() if "/" not in key}
        assert mine == {key: value for key, value in theirs.items() if key not in users}


def test_label_the_user_just_dropped_does_not_come_back() -> None:
    live = there(pod(labels={"app": "web"}), RUNNING)
    assert virtual_labels(pod(), live, allowed=["*"]) == {}


def test_ephemeral_containers_that_the_worker_does_not_have_wait_and_say_for_what() -> None:
    web = pod({"ephemeralContainers": [{"name": "first", "image": "d:1"}, {"name": "second", "image": "d:1"}]})
    running = {"name": "second", "state": {"running": {}}}
    status = virtual_status(web, there(web, {**RUNNING, "ephemeralContainerStatuses": [running]}), refused={"first": "no", "gone": "no"})
    waiting = {"waiting": {"reason": "FailedEphemeralContainer", "message": "no"}}
    refused = {"name": "first", "image": "d:1", "imageID": "", "ready": False, "restartCount": 0, "state": waiting}
    assert status["ephemeralContainerStatuses"] == [refused, running]


def test_messages_are_in_the_names_of_the_hub_and_what_a_container_wrote_stays() -> None:
    web = pod({"containers": [{"name": "main", "image": "app:1", "envFrom": [{"secretRef": {"name": "word"}}]}]}, status={})
    body = physical_pod(web, TARGET)
    name, secret = body["metadata"]["name"], physical_name("default", "word")
    back_off = f"back-off 10s restarting failed container=main pod={name}_mnt(physical-uid)"
    entries = [
        {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": back_off}}},
        {"name": "two", "state": {"waiting": {"reason": "CreateContainerConfigError", "message": f'secret "{secret}" not found'}}},
        {"name": "three", "state": {"terminated": {"message": f"I am {name}"}}},
    ]
    unready = {"type": "Ready", "status": "False", "message": f"pod mnt/{name} is not ready"}
    status = {"phase": "Pending", "message": f"Pod {name} was evicted", "containerStatuses": entries, "conditions": [unready]}
    seen = virtual_status(web, physical(body, status=status))
    texts = [each["state"].get("waiting", {}).get("message") for each in seen["containerStatuses"]]
    assert texts == ["back-off 10s restarting failed container=main pod=web_default(uid-1)", 'secret "word" not found', None]
    assert seen["containerStatuses"][2] == entries[2]
    assert (seen["message"], seen["conditions"][0]["message"]) == ("Pod web was evicted", "pod default/web is not ready")
