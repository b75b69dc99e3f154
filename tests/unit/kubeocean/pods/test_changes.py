"""Tests of kubeocean.pods.changes."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import Target, digest_of_changes
from kubeocean.model.keys import ExpectedMetadata, Owner, physical_name
from kubeocean.pods.changes import (
    Changed,
    Current,
    Excluded,
    Missing,
    Pending,
    Room,
    Unconfirmed,
    changes,
    decide,
    is_current,
    resize_of,
    unmet_resize,
)
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import OWNER, TARGET, binding, physical, pod
from vkubelet.api.objects import Json, Pod
from vkubelet.api.quantity import parse_resources

SPEC: Json = {
    "initContainers": [{"name": "init", "image": "init:1"}],
    "containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}}}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
}
LABELS = {"app": "web", "tier": "front"}
UID = {"uid": "physical-uid"}
NEVER = Pending("Infeasible", "the virtual node leases less cpu than the pod requests; request less, or lease more by a policy")
NOT_NOW = Pending("Deferred", "other pods of the virtual node leave too little cpu; the resize is sent once they release it")


def created(web: Pod) -> Pod:
    return physical(physical_pod(web, TARGET))


def reflects(web: Pod) -> Json:
    """What is recorded on the physical pod about the generation of an edited pod."""
    return {"kubeocean.io/virtual-generation": str(web.metadata.generation), "kubeocean.io/virtual-spec": digest_of_changes(web)}


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


def with_resources(**resources: Json) -> Json:
    return {**SPEC, "containers": [{**SPEC["containers"][0], "resources": resources}]}


def test_nothing_differs_nothing_is_sent() -> None:
    web = pod(SPEC, labels=LABELS, annotations={"note": "x"})
    assert changes(web, created(web), TARGET) == Changed(physical=created(web))
    assert not changes(web, created(web), TARGET)


def test_label_changes_travel_down_and_dropped_keys_go() -> None:
    before = pod(SPEC, labels=LABELS, annotations={"note": "x", "old": "y"})
    after = pod(SPEC, labels={"app": "shop", "new": "1"}, annotations={"note": "x"})
    wanted = ExpectedMetadata({"app": "shop", "new": "1"}, {"note": "x"}).encode()
    assert changes(after, created(before), TARGET).main == (
        {
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


def test_image_that_the_worker_rewrote_at_creation_stays_when_other_fields_change() -> None:
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
    assert changes(web, lost, TARGET) == Changed(physical=lost, main={"metadata": {**UID, "labels": labels}})


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
    assert changes(after, live, TARGET).main == (
        {
            "metadata": {**UID, "annotations": reflects(after)},
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
    debugged = pod({**SPEC, "ephemeralContainers": [first, second, third]}, generation=2)
    after = changes(debugged, live, TARGET)
    env = [{"name": "HOSTNAME", "value": "web"}]
    translated = {**second, "env": env, "envFrom": [{"secretRef": {"name": physical_name("default", "key")}}]}
    assert after.ephemeral == {
        "two": {"metadata": UID, "spec": {"ephemeralContainers": [translated]}},
        "three": {"metadata": UID, "spec": {"ephemeralContainers": [{**third, "env": env}]}},
    }
    assert after.main == {"metadata": {**UID, "annotations": reflects(debugged)}}


def test_ephemeral_container_with_an_unknown_reference_is_left_out_and_the_pod_lives() -> None:
    spy = {"name": "spy", "image": "d", "env": [{"name": "A", "valueFrom": {"vaultRef": {"name": "x"}}}]}
    after = changes(pod({**SPEC, "ephemeralContainers": [spy, {"name": "good"}]}, generation=2), created(pod(SPEC)), TARGET)
    assert list(after.ephemeral) == ["good"] and list(after.untranslatable) == ["spy"]


def without_generation(main: Json | None) -> Json | None:
    return Changed(physical=created(pod(SPEC)), main=main).without_generation().main


def test_refused_containers_leave_all_of_a_patch_but_the_record_that_it_is_complete() -> None:
    mark = {"kubeocean.io/virtual-generation": "2"}
    assert without_generation(None) is None
    assert without_generation({"metadata": {**UID, "annotations": mark}}) is None
    labelled = {"metadata": {**UID, "labels": {"a": "b"}, "annotations": {**mark, "note": "x"}}, "spec": {"tolerations": []}}
    rest = {"metadata": {**UID, "labels": {"a": "b"}, "annotations": {"note": "x"}}, "spec": {"tolerations": []}}
    assert without_generation(labelled) == rest
    assert without_generation({"metadata": {**UID, "annotations": mark}, "spec": {"a": 1}}) == {"metadata": UID, "spec": {"a": 1}}


def test_resize_sends_the_amounts_that_differ() -> None:
    after = pod(with_resources(requests={"cpu": "0.5", "memory": "2Gi"}, limits={"cpu": "2"}), generation=2)
    change = [{"name": "main", "resources": {"requests": {"memory": "2Gi"}, "limits": {"cpu": "2"}}}]
    assert changes(after, created(pod(SPEC)), TARGET).resize == {"metadata": UID, "spec": {"containers": change}}


def test_resize_that_is_not_sent_is_recorded_on_the_physical_pod() -> None:
    after, live = pod(with_resources(requests={"cpu": "3"}), generation=2), created(pod(SPEC))
    found = changes(after, live, TARGET)
    assert found.resize is not None
    assert found.main == {"metadata": {**UID, "annotations": reflects(after)}}
    held = found.without_resize(NEVER)
    note = {"kubeocean.io/resize-pending": str(NEVER), **reflects(after)}
    assert held.resize is None and held.main == {"metadata": {**UID, "annotations": note}}


def test_resize_that_waited_is_sent_in_the_same_generation_when_there_is_room() -> None:
    after = pod(with_resources(requests={"cpu": "3"}), generation=2)
    live = edited(created(pod(SPEC)), annotations={"kubeocean.io/resize-pending": str(NOT_NOW), "kubeocean.io/virtual-generation": "2"})
    found = changes(after, live, TARGET)
    assert not found.without_resize(NOT_NOW), "it is recorded already"
    assert found.resize == {"metadata": UID, "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}}
    assert found.main == {"metadata": {**UID, "annotations": {"kubeocean.io/resize-pending": None}}}
    taken_back = changes(pod(SPEC, generation=2), live, TARGET)
    assert taken_back.resize is None and taken_back.main == found.main


def with_pending(main: Json | None, live: Pod, pending: Pending) -> Json | None:
    return Changed(physical=live, main=main).without_resize(pending).main


def test_refusal_of_a_resize_is_noted_once_and_holds_up_nothing_else() -> None:
    live, refusal = created(pod(SPEC)), Pending("Deferred", "no")
    noted = {"kubeocean.io/resize-pending": "Deferred: no"}
    assert with_pending(None, live, refusal) == {"metadata": {**UID, "annotations": noted}}
    assert with_pending(None, edited(live, annotations=noted), refusal) is None
    main = {"metadata": {**UID, "annotations": {"a": "b", "kubeocean.io/resize-pending": None}}, "spec": {"tolerations": []}}
    assert with_pending(main, live, refusal) == {**main, "metadata": {**UID, "annotations": {"a": "b", **noted}}}
    rest = {**main, "metadata": {**UID, "annotations": {"a": "b"}}}
    assert with_pending(main, edited(live, annotations=noted), refusal) == rest


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


def requesting(cpu: str, memory: str = "1Gi", **more: Json) -> Json:
    return {"containers": [{"name": "main", "image": "a", "resources": {"requests": {"cpu": cpu, "memory": memory}}}], **more}


@pytest.mark.parametrize(
    ("now", "wanted", "others", "expected"),
    [
        ("1", "2", "0", None),
        ("1", "4", "0", None),
        ("1", "4001m", "0", NEVER),
        ("1", "3", "1", None),
        ("1", "3", "1001m", NOT_NOW),
        # What shrinks always may, also where a lease shrank below it.
        ("9", "8", "5", None),
        ("2", "2", "5", None),
    ],
)
def test_pod_grows_within_what_its_virtual_node_leases(now: str, wanted: str, others: str, expected: Pending | None) -> None:
    room = Room(parse_resources({"cpu": "4", "memory": "4Gi"}), parse_resources({"cpu": others}))
    assert unmet_resize(requesting(wanted), requesting(now), room) == expected


def test_only_what_grows_is_looked_at() -> None:
    room = Room(parse_resources({"cpu": "4", "memory": "4Gi"}), parse_resources({"memory": "8Gi"}))
    assert unmet_resize(requesting("2"), requesting("1"), room) is None
    found = unmet_resize(requesting("2", "2Gi"), requesting("1"), room)
    assert found == Pending("Deferred", "other pods of the virtual node leave too little memory; the resize is sent once they release it")


def test_amounts_are_compared_by_value_and_sidecars_count() -> None:
    sidecar = {"name": "side", "image": "b", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1000m"}}}
    there = requesting("1", initContainers=[sidecar])
    same = requesting("1000m", "1024Mi", initContainers=[{**sidecar, "resources": {"limits": {"cpu": 1}}}])
    assert resize_of(same, there) == {}
    more = requesting("1", initContainers=[{**sidecar, "resources": {"limits": {"cpu": "2"}}}])
    assert resize_of(more, there) == {"initContainers": [{"name": "side", "resources": {"limits": {"cpu": "2"}}}]}


def test_what_stands_on_a_pod_is_read_as_it_was_written() -> None:
    note = {"kubeocean.io/resize-pending": str(NOT_NOW)}
    assert Pending.of(pod(annotations=note).metadata) == NOT_NOW
    assert Pending.of(pod().metadata) is None and Pending.of(pod(annotations={"kubeocean.io/resize-pending": "x"}).metadata) is None


# --- The decision -------------------------------------------------------------------------------------------------------------------------


def decision(web: Pod, live: Pod | None, *, bound: ClusterBinding | None = None) -> object:
    return decide(web, live, binding=bound or binding(), owner=OWNER, target=lambda found: TARGET)


def recorded(web: Pod) -> Pod:
    """The virtual pod after the name of its physical pod was published on it."""
    where = {"kubeocean.io/physical-pod-namespace": "mnt", "kubeocean.io/physical-pod-name": physical_name("default", "web")}
    return pod(web.spec, labels=dict(web.metadata.labels), annotations={**web.metadata.annotations, **where})


def test_pod_without_a_physical_pod_is_created_unless_one_is_recorded() -> None:
    assert decision(pod(SPEC), None) == Missing()
    assert decision(recorded(pod(SPEC)), None) == Unconfirmed()


def test_pods_of_system_namespaces_and_of_daemonsets_are_excluded() -> None:
    daemonset = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d"}
    assert decision(pod(SPEC, namespace="kube-system"), None) == Excluded()
    assert decision(pod(SPEC, ownerReferences=[daemonset]), None) == Excluded()
    assert decision(pod(SPEC, ownerReferences=[daemonset]), None, bound=binding({"runningDaemonsetByDefault": True})) == Missing()


def test_what_was_just_created_is_current_without_a_comparison_of_specs() -> None:
    web = pod(SPEC, labels=LABELS, annotations={"note": "x" * 100})

    def never(found: Pod) -> Target:
        raise AssertionError("the target is determined for a comparison only")

    assert decide(web, created(web), binding=binding(), owner=OWNER, target=never) == Current()
    published = recorded(web)
    assert decide(published, created(web), binding=binding(), owner=OWNER, target=never) == Current()


def test_nothing_is_sent_to_a_pod_that_ends_or_is_of_another_owner() -> None:
    changed, live = pod({**SPEC, "activeDeadlineSeconds": 60}, generation=2), created(pod(SPEC))
    assert isinstance(decision(changed, live), Changed)
    ending = physical({"metadata": {"name": "x"}, "spec": live.spec}, deletionTimestamp="2026-01-05T09:00:00Z")
    assert decision(changed, ending) == Current()
    assert decision(changed, physical({"metadata": {"name": "x"}, "spec": live.spec}, status={"phase": "Failed"})) == Current()
    assert decision(pod(SPEC, status={"phase": "Succeeded"}, generation=2), live) == Current()
    stranger = Owner("hub-uid-2", "demo")
    assert decision(changed, edited(live, labels=stranger.labels, annotations=stranger.annotations)) == Current()


@given(
    labels=st.dictionaries(st.sampled_from(["app", "tier", "new"]), st.sampled_from(["web", "front"])),
    lost=st.sets(st.sampled_from(["kubeocean.io/owner", "kubeocean.io/managed-by", "kubeocean.io/workload-type", "app"])),
    notes=st.sets(st.sampled_from(["kubeocean.io/hub-uid", "kubeocean.io/virtual-generation", "kubeocean.io/expected-metadata"])),
    image=st.sampled_from(["app:1", "app:2"]),
    generation=st.integers(1, 2),
)
@example(labels=LABELS, lost={"kubeocean.io/owner"}, notes=set(), image="app:1", generation=1)
@example(labels=LABELS, lost={"app"}, notes=set(), image="app:1", generation=1)
def test_what_counts_as_current_has_no_difference(labels: Json, lost: set[str], notes: set[str], image: str, generation: int) -> None:
    """`is_current` may miss that nothing differs, never that something does."""
    before = created(pod(SPEC, labels=LABELS))
    live = edited(before, labels=dict.fromkeys(lost), annotations=dict.fromkeys(notes))
    web = pod({**SPEC, "containers": [{**SPEC["containers"][0], "image": image}]}, labels=labels, generation=generation)
    if is_current(web, live, OWNER):
        assert not changes(web, live, TARGET)


@pytest.mark.parametrize(
    "change",
    [
        {"containers": [{**SPEC["containers"][0], "image": "app:3"}]},
        {"containers": [{**SPEC["containers"][0], "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2"}}}]},
        {"tolerations": [*SPEC["tolerations"], {"key": "c", "operator": "Exists"}]},
        {"activeDeadlineSeconds": 90},
    ],
    ids=["image", "resources", "tolerations", "deadline"],
)
def test_change_that_got_the_generation_of_another_in_a_restored_hub_is_sent(change: Json) -> None:
    """The hub was restored to before the edit to app:2, and the next edit got generation 2 again before anybody saw generation 1."""
    lost = pod({**SPEC, "containers": [{**SPEC["containers"][0], "image": "app:2"}]}, generation=2)
    live = created(lost)
    assert not changes(lost, live, TARGET)
    found = changes(pod({**SPEC, **change}, generation=2), live, TARGET)
    sent = [patch["spec"] for patch in (found.main, found.resize) if patch and "spec" in patch]
    (kind,) = change
    assert any(kind in spec for spec in sent), found


def test_physical_pod_of_an_earlier_version_without_a_digest_is_left_as_it_is() -> None:
    edited_once = pod({**SPEC, "activeDeadlineSeconds": 60}, generation=2)
    assert not changes(edited_once, edited(created(edited_once), annotations={"kubeocean.io/virtual-spec": None}), TARGET)
