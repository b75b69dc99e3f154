"""Tests of kubeocean.pods.changes."""

from __future__ import annotations

import base64
import json

import pytest

from kubeocean.model.keys import ExpectedMetadata, physical_name
from kubeocean.pods.changes import Changes, changes, with_pending, without_generation
from kubeocean.pods.resize import Pending, Room
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import OWNER, TARGET, physical, pod
from vkubelet.api.objects import Pod
from vkubelet.api.quantity import parse_resources
from vkubelet.api.shapes import Json

SPEC: Json = {
    "initContainers": [{"name": "init", "image": "init:1"}],
    "containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}}}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
}
LABELS = {"app": "web", "tier": "front"}
UID = {"uid": "physical-uid"}


def created(web: Pod) -> Pod:
    return physical(physical_pod(web, TARGET))


def edited(live: Pod, *, labels: Json | None = None, annotations: Json | None = None, spec: Json | None = None) -> Pod:
    """The physical pod after somebody in the worker changed it; None drops a key."""

    def merged(entries: dict[str, str], change: Json | None) -> Json:
        return {key: value for key, value in {**entries, **(change or {})}.items() if value is not None}

    metadata = {
        "name": live.metadata.name,
        "namespace": live.metadata.namespace,
        "labels": merged(dict(live.metadata.labels), labels),
        "annotations": merged(dict(live.metadata.annotations), annotations),
    }
    return physical({"metadata": metadata, "spec": {**live.spec, **(spec or {})}})


def resized(**resources: Json) -> Json:
    return {**SPEC, "containers": [{**SPEC["containers"][0], "resources": resources}]}


def test_nothing_differs_nothing_is_sent() -> None:
    web = pod(SPEC, labels=LABELS, annotations={"note": "x"})
    assert changes(web, created(web), TARGET) == Changes()
    assert not changes(web, created(web), TARGET)


def test_label_changes_travel_down_and_dropped_keys_go() -> None:
    before = pod(SPEC, labels=LABELS, annotations={"note": "x", "old": "y"})
    after = pod(SPEC, labels={"app": "shop", "new": "1"}, annotations={"note": "x"})
    wanted = ExpectedMetadata({"app": "shop", "new": "1"}, {"note": "x"}).encode()
    assert changes(after, created(before), TARGET) == Changes(
        main={
            "metadata": {
                **UID,
                "labels": {"app": "shop", "new": "1", "tier": None},
                "annotations": {"old": None, "kubeocean.io/expected-metadata": wanted},
            }
        }
    )


def test_keys_that_exist_in_the_worker_only_stay_and_its_edits_are_not_reverted() -> None:
    web = pod(SPEC, labels=LABELS)
    assert not changes(web, edited(created(web), labels={"app": "edited", "cni": "x"}, annotations={"cni": "y"}), TARGET)


def test_long_annotations_travel_down_once_and_edits_of_them_are_not_reverted() -> None:
    long, longer = "x" * 20_000, "x" * 20_001
    web = pod(SPEC, annotations={"a": long})
    assert not changes(web, created(web), TARGET)
    assert not changes(web, edited(created(web), annotations={"a": "edited there"}), TARGET)
    main = changes(pod(SPEC, annotations={"a": longer}), created(web), TARGET).main
    assert main is not None and main["metadata"]["annotations"]["a"] == longer


def test_memory_with_whole_values_of_an_earlier_process_is_left_as_it_is() -> None:
    long = "x" * 20_000
    web = pod(SPEC, annotations={"a": long})
    whole = base64.b64encode(json.dumps({"labels": {}, "annotations": {"a": long}}).encode()).decode()
    assert not changes(web, edited(created(web), annotations={"kubeocean.io/expected-metadata": whole}), TARGET)


def test_image_that_the_worker_rewrote_at_creation_is_left_when_something_else_changes() -> None:
    web = pod(SPEC, generation=1)
    mirrored = edited(created(web), spec={"containers": [{**SPEC["containers"][0], "image": "mirror.local/app:1"}]})
    note = changes(web, mirrored, TARGET).main
    assert note is not None and note.keys() == {"metadata"}
    noted = edited(mirrored, annotations=note["metadata"]["annotations"])
    assert not changes(web, noted, TARGET)
    later = pod({**SPEC, "tolerations": [{"key": "a", "operator": "Exists"}]}, generation=2)
    main = changes(later, noted, TARGET).main
    assert main is not None and "containers" not in main["spec"]
    changed = pod({**SPEC, "containers": [{**SPEC["containers"][0], "image": "app:2"}]}, generation=2)
    main = changes(changed, noted, TARGET).main
    assert main is not None and main["spec"]["containers"] == [{"name": SPEC["containers"][0]["name"], "image": "app:2"}]


def test_lost_marks_are_put_back() -> None:
    web = pod(SPEC, labels=LABELS)
    lost = edited(created(web), labels={"kubeocean.io/owner": None, "kubeocean.io/managed-by": "helm"})
    labels = {"kubeocean.io/owner": OWNER.mark, "kubeocean.io/managed-by": "kubeocean"}
    assert changes(web, lost, TARGET) == Changes(main={"metadata": {**UID, "labels": labels}})


def test_damaged_memory_is_written_again_and_removes_nothing() -> None:
    web = pod(SPEC, labels={"app": "web"})
    damaged = edited(created(web), labels={"stray": "1"}, annotations={"kubeocean.io/expected-metadata": "???"})
    wanted = ExpectedMetadata({"app": "web"}, {}).encode()
    main = changes(web, damaged, TARGET).main
    assert main == {"metadata": {**UID, "annotations": {"kubeocean.io/expected-metadata": wanted}}}


def test_images_deadline_and_tolerations_travel_down() -> None:
    before = pod(SPEC)
    after = pod(
        {
            "initContainers": [{"name": "init", "image": "init:2"}],
            "containers": [{**SPEC["containers"][0], "image": "app:2"}],
            "activeDeadlineSeconds": 60,
            "tolerations": [{**SPEC["tolerations"][0], "tolerationSeconds": 60}, {"key": "b", "value": "v"}],
        },
        generation=2,
    )
    theirs = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    live = edited(created(before), spec={"tolerations": [theirs, *SPEC["tolerations"]]})
    assert changes(after, live, TARGET) == Changes(
        main={
            "metadata": {**UID, "annotations": {"kubeocean.io/virtual-generation": "2"}},
            "spec": {
                "initContainers": [{"name": "init", "image": "init:2"}],
                "containers": [{"name": "main", "image": "app:2"}],
                "activeDeadlineSeconds": 60,
                "tolerations": [theirs, {**SPEC["tolerations"][0], "tolerationSeconds": 60}, {"key": "b", "value": "v"}],
            },
        }
    )


def test_what_the_workers_admission_changed_is_not_sent_again() -> None:
    web = pod(SPEC)
    defaulted = {"containers": [{**SPEC["containers"][0], "image": "mirror/app:1", "resources": {"requests": {"cpu": "1"}}}]}
    main = changes(web, edited(created(web), spec=defaulted), TARGET).main
    assert main == {"metadata": {**UID, "annotations": {"kubeocean.io/virtual-images": '{"main":"app:1"}'}}}


def test_ephemeral_containers_are_added_translated_to_those_that_exist() -> None:
    first = {"name": "one", "image": "d:1"}
    second = {"name": "two", "image": "d:1", "envFrom": [{"secretRef": {"name": "key"}}]}
    third = {"name": "three", "image": "d:1", "targetContainerName": "main", "stdin": True, "tty": True}
    live = edited(created(pod(SPEC)), spec={"ephemeralContainers": [first]})
    after = changes(pod({**SPEC, "ephemeralContainers": [first, second, third]}, generation=2), live, TARGET)
    env = [{"name": "HOSTNAME", "value": "web"}]
    translated = {**second, "env": env, "envFrom": [{"secretRef": {"name": physical_name("default", "key")}}]}
    assert after.ephemeral == {
        "two": {"metadata": UID, "spec": {"ephemeralContainers": [translated]}},
        "three": {"metadata": UID, "spec": {"ephemeralContainers": [{**third, "env": env}]}},
    }
    assert after.main == {"metadata": {**UID, "annotations": {"kubeocean.io/virtual-generation": "2"}}}


def test_ephemeral_container_with_an_unknown_reference_is_left_out_and_the_pod_lives() -> None:
    spy = {"name": "spy", "image": "d", "env": [{"name": "A", "valueFrom": {"vaultRef": {"name": "x"}}}]}
    after = changes(pod({**SPEC, "ephemeralContainers": [spy, {"name": "good"}]}, generation=2), created(pod(SPEC)), TARGET)
    assert list(after.ephemeral) == ["good"]


def test_refused_containers_leave_all_of_a_patch_but_the_word_that_it_is_complete() -> None:
    mark = {"kubeocean.io/virtual-generation": "2"}
    assert without_generation(None) is None
    assert without_generation({"metadata": {**UID, "annotations": mark}}) is None
    labelled = {"metadata": {**UID, "labels": {"a": "b"}, "annotations": {**mark, "note": "x"}}, "spec": {"tolerations": []}}
    rest = {"metadata": {**UID, "labels": {"a": "b"}, "annotations": {"note": "x"}}, "spec": {"tolerations": []}}
    assert without_generation(labelled) == rest
    assert without_generation({"metadata": {**UID, "annotations": mark}, "spec": {"a": 1}}) == {"metadata": UID, "spec": {"a": 1}}


def test_resize_sends_the_amounts_that_differ() -> None:
    after = pod(resized(requests={"cpu": "0.5", "memory": "2Gi"}, limits={"cpu": "2"}), generation=2)
    change = [{"name": "main", "resources": {"requests": {"memory": "2Gi"}, "limits": {"cpu": "2"}}}]
    assert changes(after, created(pod(SPEC)), TARGET).resize == {"metadata": UID, "spec": {"containers": change}}


def room(cpu: str, *, others: str = "0") -> Room:
    return Room(parse_resources({"cpu": cpu, "memory": "4Gi"}), parse_resources({"cpu": others}))


def test_resize_beyond_the_virtual_node_is_not_sent_and_stands_on_the_physical_pod() -> None:
    after, live = pod(resized(requests={"cpu": "3"}), generation=2), created(pod(SPEC))
    found = changes(after, live, TARGET, room=lambda: room("2"))
    pending = Pending("Infeasible", "the virtual node does not lease so much: cpu")
    assert found.resize is None and found.pending == pending and found.main is not None
    note = {"kubeocean.io/resize-pending": str(pending), "kubeocean.io/virtual-generation": "2"}
    assert found.main["metadata"] == {**UID, "annotations": note}
    sent = changes(after, live, TARGET, room=lambda: room("4"))
    assert sent.resize is not None and sent.pending is None
    assert sent.main == {"metadata": {**UID, "annotations": {"kubeocean.io/virtual-generation": "2"}}}


def test_resize_that_waited_is_sent_in_the_same_generation_when_there_is_room() -> None:
    after = pod(resized(requests={"cpu": "3"}), generation=2)
    note = {"kubeocean.io/resize-pending": "Deferred: other pods have too much of what the virtual node leases: cpu"}
    live = edited(created(pod(SPEC)), annotations={**note, "kubeocean.io/virtual-generation": "2"})
    assert not changes(after, live, TARGET, room=lambda: room("4", others="2"))
    found = changes(after, live, TARGET, room=lambda: room("4", others="1"))
    assert found.resize == {"metadata": UID, "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}}
    assert found.main == {"metadata": {**UID, "annotations": {"kubeocean.io/resize-pending": None}}}
    taken_back = changes(pod(SPEC, generation=2), live, TARGET, room=lambda: room("4"))
    assert taken_back.resize is None and taken_back.main == found.main


def test_refusal_of_a_resize_is_noted_once_and_holds_up_nothing_else() -> None:
    live, refusal = created(pod(SPEC)), Pending("Deferred", "no")
    noted = {"kubeocean.io/resize-pending": "Deferred: no"}
    assert with_pending(None, live, refusal) == {"metadata": {**UID, "annotations": noted}}
    assert with_pending(None, edited(live, annotations=noted), refusal) is None
    main = {"metadata": {**UID, "annotations": {"a": "b", "kubeocean.io/resize-pending": None}}, "spec": {"tolerations": []}}
    assert with_pending(main, live, refusal) == {**main, "metadata": {**UID, "annotations": {"a": "b", **noted}}}
    rest = {**main, "metadata": {**UID, "annotations": {"a": "b"}}}
    assert with_pending(main, edited(live, annotations=noted), refusal) == rest


def test_room_is_not_asked_for_without_a_resize() -> None:
    web = pod(SPEC)
    assert not changes(web, created(web), TARGET, room=lambda: pytest.fail("asked"))


def test_pod_of_kubeocean_go_is_marked_when_it_is_adopted() -> None:
    web = pod(SPEC, labels={"app": "web"})
    theirs = {
        "kubeocean.io/hub-uid": None,
        "kubeocean.io/cluster-id": None,
        "kubeocean.io/virtual-generation": None,
        "kubeocean.io/service-account": None,
    }
    main = changes(web, edited(created(web), labels={"kubeocean.io/owner": None}, annotations=theirs), TARGET).main
    assert main is not None
    assert main["metadata"]["labels"] == {"kubeocean.io/owner": OWNER.mark}
    assert main["metadata"]["annotations"].keys() == theirs.keys()
