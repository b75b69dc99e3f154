"""What a binding changes on its pods: image names, pull Secrets, a patch; and what a patch may not touch."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.overrides import KEPT, ImageRewrite, Overrides
from kubeocean.pods.changes import changes
from kubeocean.pods.translate import physical_pod
from kubeocean.pods.virtual_status import virtual_annotations, virtual_labels, virtual_status
from tests.unit.kubeocean.builders import TARGET, binding, named, physical, pod
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json

MANIFEST = Path(__file__).parents[4] / "kubeocean" / "manifests" / "clusterbindings.yaml"
MIRROR = Overrides(rewrites=(ImageRewrite("docker.io/", "mirror.local/hub/"), ImageRewrite("mine.example/", "mirror.local/mine/")))


def patched(patch: Json) -> Overrides:
    return Overrides(patch=patch)


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ("busybox", "mirror.local/hub/library/busybox"),
        ("busybox:1.36", "mirror.local/hub/library/busybox:1.36"),
        ("team/app@sha256:00", "mirror.local/hub/team/app@sha256:00"),
        ("docker.io/library/busybox", "mirror.local/hub/library/busybox"),
        ("mine.example/app:2", "mirror.local/mine/app:2"),
        # The first part is a registry if it looks like one.
        ("localhost/app", "localhost/app"),
        ("registry:5000/app", "registry:5000/app"),
        ("other.example/docker.io/app", "other.example/docker.io/app"),
    ],
)
def test_image_is_rewritten_by_its_beginning_and_short_names_by_their_full_ones(image: str, pulled: str) -> None:
    assert MIRROR.image(image) == pulled


def test_the_first_rewrite_that_fits_counts_and_an_empty_replacement_removes() -> None:
    ordered = Overrides(rewrites=(ImageRewrite("a.example/b/", "first/"), ImageRewrite("a.example/")))
    assert (ordered.image("a.example/b/c"), ordered.image("a.example/c")) == ("first/c", "c")


def test_containers_of_every_kind_get_the_image_and_home_shows_the_users() -> None:
    target = evolve(TARGET, overrides=MIRROR)
    spec: Json = {
        "initContainers": [{"name": "start", "image": "busybox"}],
        "containers": [{"name": "main", "image": "mine.example/app"}, {"name": "side", "image": "quay.example/x"}],
    }
    web = pod(spec)
    body = physical_pod(web, target)
    images = {each["name"]: each["image"] for kind in ("initContainers", "containers") for each in body["spec"][kind]}
    assert images == {"start": "mirror.local/hub/library/busybox", "main": "mirror.local/mine/app", "side": "quay.example/x"}
    there = physical(
        body,
        status={
            "containerStatuses": [
                {"name": "main", "image": "mirror.local/mine/app:latest", "imageID": "id"},
                {"name": "side", "image": "x"},
            ],
            "initContainerStatuses": [{"name": "start", "image": "mirror.local/hub/library/busybox:latest", "imageID": "id"}],
        },
    )
    status = virtual_status(web, there)
    assert named(status["containerStatuses"], "main") == {"name": "main", "image": "mine.example/app", "imageID": "id"}
    assert named(status["containerStatuses"], "side")["image"] == "x"
    assert status["initContainerStatuses"][0]["image"] == "busybox"


def test_changed_rewrites_restart_nothing_and_a_changed_image_follows_the_new_ones() -> None:
    target = evolve(TARGET, overrides=MIRROR)
    body = physical_pod(pod({"containers": [{"name": "main", "image": "busybox:1"}]}), target)
    there = physical(body)
    others = evolve(TARGET, overrides=Overrides(rewrites=(ImageRewrite("docker.io/", "elsewhere/"),)))
    same_image = pod({"containers": [{"name": "main", "image": "busybox:1"}], "activeDeadlineSeconds": 9}, generation=2)
    main = changes(same_image, there, others).main
    assert main is not None and main["spec"] == {"activeDeadlineSeconds": 9}
    new_image = pod({"containers": [{"name": "main", "image": "busybox:2"}]}, generation=2)
    main = changes(new_image, there, others).main
    assert main is not None and main["spec"] == {"containers": [{"name": "main", "image": "elsewhere/library/busybox:2"}]}
    assert main["metadata"]["annotations"]["kubeocean.io/virtual-images"] == '{"main":"busybox:2"}'
    # Without rewrites the note goes with the image that needed it.
    main = changes(new_image, there, TARGET).main
    assert main is not None and main["metadata"]["annotations"]["kubeocean.io/virtual-images"] is None


def test_ephemeral_containers_are_pulled_by_the_rewrites_too() -> None:
    target = evolve(TARGET, overrides=MIRROR)
    there = physical(physical_pod(pod(), target))
    debug = pod({"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}, generation=2)
    found = changes(debug, there, target)
    assert found.ephemeral["debug"]["spec"]["ephemeralContainers"][0]["image"] == "mirror.local/hub/library/busybox"
    assert found.main is not None and '"debug":"busybox"' in found.main["metadata"]["annotations"]["kubeocean.io/virtual-images"]


def test_pull_secrets_are_added_to_the_copies_of_the_pods_own() -> None:
    target = evolve(TARGET, overrides=Overrides(pull_secrets=("mirror", "second")))
    spec = physical_pod(pod({"imagePullSecrets": [{"name": "mine"}]}), target)["spec"]
    first, *others = spec["imagePullSecrets"]
    assert first["name"].startswith("mine-") and others == [{"name": "mirror"}, {"name": "second"}]


def test_patch_comes_last_and_the_virtual_pod_stays_as_it_is() -> None:
    patch: Json = {
        "metadata": {"labels": {"app": "patched", "extra": "1", "gone": None}},
        "spec": {"runtimeClassName": "sandboxed", "dnsConfig": {"options": [{"name": "edns0"}]}, "terminationGracePeriodSeconds": None},
    }
    web = pod({"terminationGracePeriodSeconds": 9, "dnsConfig": {"searches": ["x"]}}, labels={"app": "web", "gone": "soon"})
    body = physical_pod(web, evolve(TARGET, overrides=patched(patch)))
    assert body["spec"]["runtimeClassName"] == "sandboxed" and "terminationGracePeriodSeconds" not in body["spec"]
    assert body["spec"]["dnsConfig"] == {"searches": ["x"], "options": [{"name": "edns0"}]}
    assert (body["metadata"]["labels"]["app"], body["metadata"]["labels"]["extra"]) == ("patched", "1")
    assert "gone" not in body["metadata"]["labels"]
    # Neither does the patch go home, nor the user's value down again, also after the binding dropped the patch.
    there = physical(body)
    assert virtual_labels(web, there, allowed=["*"]) == {} and "extra" not in virtual_annotations(web, there, allowed=["*"])
    assert not changes(web, there, TARGET)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"imageRewrites": [{"match": "", "replace": "x"}]}, "spec.imageRewrites[0].match: must be the beginning"),
        ({"imageRewrites": [{"match": "a b", "replace": "x"}]}, "spec.imageRewrites[0].match: must be the beginning"),
        ({"imageRewrites": [{"match": "a", "replace": "x y"}]}, "spec.imageRewrites[0].replace: must be the beginning"),
        ({"imageRewrites": {"match": "a"}}, "spec.imageRewrites: must be a list"),
        ({"extraImagePullSecrets": ["A"]}, "spec.extraImagePullSecrets[0]: is no valid name"),
        ({"podPatch": []}, "spec.podPatch: must be an object"),
        ({"podPatch": {"status": {}}}, "spec.podPatch.status: cannot be patched"),
        ({"podPatch": {"spec": None}}, "spec.podPatch.spec: must be an object"),
        ({"podPatch": {"metadata": {"name": "x"}}}, "spec.podPatch.metadata.name: cannot be patched"),
        ({"podPatch": {"metadata": {"ownerReferences": []}}}, "spec.podPatch.metadata.ownerReferences: cannot be patched"),
        ({"podPatch": {"metadata": {"labels": None}}}, "spec.podPatch.metadata.labels: must be an object"),
        ({"podPatch": {"metadata": {"labels": {"kubeocean.io/owner": "x"}}}}, "spec.podPatch.metadata.labels[kubeocean.io/owner]"),
        ({"podPatch": {"metadata": {"annotations": {"a.kubeocean.io/b": None}}}}, "spec.podPatch.metadata.annotations[a.kubeocean.io/b]"),
        ({"podPatch": {"metadata": {"labels": {"a": 1}}}}, "spec.podPatch.metadata.labels[a]: must be a string"),
        *(({"podPatch": {"spec": {name: None}}}, f"spec.podPatch.spec.{name}: cannot be patched") for name in KEPT),
    ],
)
def test_what_would_change_whose_a_pod_is_is_a_problem_of_the_binding(spec: Json, problem: str) -> None:
    assert any(str(found).startswith(problem) for found in binding(spec).validate())
    assert binding(spec).overrides.problems()


def test_definition_refuses_the_same_fields_of_a_patch() -> None:
    (version,) = decode_yaml(MANIFEST.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["podPatch"]["properties"]["spec"]
    assert {rule["fieldPath"].removeprefix(".") for rule in schema["x-kubernetes-validations"]} == set(schema["properties"]) == set(KEPT)


entries = st.dictionaries(st.sampled_from(["a", "b/c", "kubeocean.io/owner"]), st.none() | st.text(max_size=3), max_size=3)
patches = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": entries, "annotations": entries, "name": st.text(max_size=2)}),
        "spec": st.dictionaries(
            st.sampled_from([*KEPT, "runtimeClassName", "tolerations"]), st.none() | st.just([]) | st.just({}), max_size=3
        ),
    },
)


@given(patches)
def test_a_patch_without_problems_leaves_identity_node_and_references_alone(patch: Json) -> None:
    overrides = patched(patch)
    if overrides.problems():
        return
    web = pod({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, labels={"a": "1"})
    plain, made = physical_pod(web, TARGET), physical_pod(web, evolve(TARGET, overrides=overrides))
    assert {name: made["spec"].get(name) for name in KEPT} == {name: plain["spec"].get(name) for name in KEPT}
    ours = {kind: {k: v for k, v in plain["metadata"][kind].items() if k.startswith("kubeocean.io/")} for kind in ("labels", "annotations")}
    for kind, marks in ours.items():
        assert marks.items() <= made["metadata"][kind].items()
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (plain["metadata"]["name"], plain["metadata"]["namespace"])
