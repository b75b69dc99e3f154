"""`imageRewrites`, `extraImagePullSecrets` and `podPatch` of a binding: what arrives in the worker, what stays at home, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.support.audit import Audit, Call
from tests.support.bound import Body, delete
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of
from vkubelet.testing.cluster import CommandFailed, ControlPlane

FIELDS: Body = {
    "imageRewrites": [{"match": "docker.io/", "replace": "mirror.local/hub/"}, {"match": "mine.example/", "replace": "mirror.local/"}],
    "extraImagePullSecrets": ["mirror-key"],
    "podPatch": {
        "metadata": {"labels": {"team": "worker", "app": "theirs"}, "annotations": {"worker.example.com/cost": "1"}},
        "spec": {"shareProcessNamespace": True, "dnsConfig": {"options": [{"name": "edns0"}]}},
    },
}


@pytest.fixture(scope="module")
def fields(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("fields"), spec=FIELDS) as made:
        yield made


async def change(scene: Scene, **spec: object) -> None:
    await scene.bound.hub.kubectl("patch", "clusterbinding", scene.bound.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def images(body: Body) -> dict[str, str]:
    spec = body["spec"]
    return {each["name"]: each["image"] for kind in ("initContainers", "containers") for each in spec.get(kind, ())}


async def test_pods_have_the_bindings_fields_in_the_worker_and_are_unchanged_in_the_hub(fields: Scene) -> None:
    """All three in one pod; the image shown in the hub, in spec and status, is the user's."""
    stage = await Stage.of(fields.bound, fields.nodes)
    main = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "9999"]}
    start = {"name": "start", "image": "mine.example/start", "command": ["true"]}
    other = {"name": "other", "image": "quay.example/other", "command": ["sleep", "9999"]}
    body = stage.body("dressed", labels={"app": "mine"}, containers=[main, other], initContainers=[start])
    body["spec"]["imagePullSecrets"] = [{"name": "own"}]
    await stage.home.create("secrets", {"metadata": {"name": "own", "namespace": stage.namespace}, "data": {}})
    await stage.home.create("pods", body)
    shown = await stage.running("dressed")
    below = await stage.until_physical("dressed", bool, "there")
    pulled = {"main": "mirror.local/hub/library/busybox:1.36", "start": "mirror.local/start", "other": "quay.example/other"}
    assert images(below) == pulled
    assert below["spec"]["imagePullSecrets"] == [{"name": stage.physical_name("own")}, {"name": "mirror-key"}]
    assert below["spec"]["shareProcessNamespace"] is True and {"name": "edns0"} in below["spec"]["dnsConfig"]["options"]
    assert below["metadata"]["labels"].items() >= {"team": "worker", "app": "theirs"}.items()
    assert {each["name"]: each["image"] for each in below["status"]["containerStatuses"]}["main"] == pulled["main"]
    written = {"main": "busybox:1.36", "start": "mine.example/start", "other": "quay.example/other"}
    assert images(shown) == written
    for kind in ("containerStatuses", "initContainerStatuses"):
        for status in shown["status"][kind]:
            assert status["image"] == written[status["name"]], status
    assert shown["metadata"]["labels"] == {"app": "mine"}
    assert "worker.example.com/cost" not in shown["metadata"]["annotations"] and "shareProcessNamespace" not in shown["spec"]

    # What the user changes later follows, but for what the binding says.
    note = {"metadata": {"labels": {"app": "mine2", "tier": "one"}}}
    await stage.home.patch("pods", "dressed", note, namespace=stage.namespace)
    below = await stage.until_physical("dressed", lambda p: p["metadata"]["labels"].get("tier") == "one", "has the new label")
    assert below["metadata"]["labels"]["app"] == "theirs"
    containers = [{**each, "image": each["image"].replace("1.36", "1.37")} for each in shown["spec"]["containers"]]
    await stage.home.patch("pods", "dressed", {"spec": {"containers": containers}}, namespace=stage.namespace)
    newer = "mirror.local/hub/library/busybox:1.37"
    await stage.until_physical("dressed", lambda p: images(p)["main"] == newer, "has the new image, rewritten")
    await stage.until("dressed", lambda p: p["status"]["containerStatuses"][0]["image"] == "busybox:1.37", "shows the user's image")
    debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", "command": ["sleep", "9"]}]}}
    await stage.home.patch("pods", "dressed", debugger, namespace=stage.namespace, subresource="ephemeralcontainers")
    below = await stage.until_physical("dressed", lambda p: p["spec"].get("ephemeralContainers"), "has the ephemeral container")
    assert below["spec"]["ephemeralContainers"][0]["image"] == "mirror.local/hub/library/busybox"
    await delete(stage.bound.hub, "pod", "dressed", "-n", stage.namespace, "--wait=false")


async def test_changed_fields_count_for_new_pods_only_and_restart_nothing(fields: Scene) -> None:
    stage = await Stage.of(fields.bound, fields.nodes)
    containers = [{"name": "main", "image": "busybox:1", "command": ["sleep", "9999"]}]
    await stage.create("before", containers=containers)
    await stage.running("before")
    old = await stage.until_physical("before", bool, "there")
    audit = Audit(stage.bound.worker, stage.bound.user)
    try:
        rewrites = [{"match": "docker.io/library/", "replace": "second.local/"}]
        await change(
            fields, imageRewrites=rewrites, extraImagePullSecrets=["second-key"], podPatch={"spec": {"shareProcessNamespace": None}}
        )

        async def new_pod() -> Body | None:
            """The first that is made after the process has heard of the change."""
            name = f"after-{len(await stage.home.list('pods', stage.namespace))}"
            await stage.create(name, containers=containers)
            below = await stage.until_physical(name, bool, "there")
            return below if images(below)["main"] == "second.local/busybox:1" else None

        new = await eventually(new_pod, "a new pod follows the change")
        assert new["spec"]["imagePullSecrets"] == [{"name": "second-key"}]
        # A change of its own passes through the old pod and takes nothing of the binding's along.
        await stage.home.patch("pods", "before", {"spec": {"activeDeadlineSeconds": 3000}}, namespace=stage.namespace)
        after = await stage.until_physical("before", lambda p: p["spec"].get("activeDeadlineSeconds") == 3000, "has its deadline")
        assert uid_of(after) == uid_of(old) and images(after) == images(old)
        assert (
            after["spec"]["imagePullSecrets"] == old["spec"]["imagePullSecrets"]
            and after["metadata"]["labels"] == old["metadata"]["labels"]
        )
        assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0]
        shown = await stage.running("before")
        assert shown["status"]["containerStatuses"][0]["image"] == "busybox:1"

        def patches() -> list[Call]:
            return [call for call in audit.writes() if (call.verb, call.what, call.name) == ("patch", "pods", old["metadata"]["name"])]

        await eventually(patches, "the audit log has it")
        assert len(patches()) == 1, patches()
    finally:
        await change(fields, **FIELDS)
        await delete(stage.bound.hub, "pods", "--all", "-n", stage.namespace, "--wait=false")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"podPatch": {"spec": {"nodeName": "x"}}}, "spec.podPatch.spec.nodeName"),
        ({"podPatch": {"spec": {"affinity": {"nodeAffinity": {}}}}}, "spec.podPatch.spec.affinity"),
        ({"podPatch": {"spec": {"serviceAccountName": "admin"}}}, "spec.podPatch.spec.serviceAccountName"),
        ({"podPatch": {"spec": {"automountServiceAccountToken": True}}}, "spec.podPatch.spec.automountServiceAccountToken"),
        ({"podPatch": {"spec": {"hostAliases": []}}}, "spec.podPatch.spec.hostAliases"),
        ({"podPatch": {"spec": {"containers": [{"name": "main"}]}}}, "spec.podPatch.spec.containers"),
        ({"podPatch": {"metadata": {"name": "x"}}}, "spec.podPatch.metadata.name"),
        ({"podPatch": {"metadata": {"namespace": "x"}}}, "spec.podPatch.metadata.namespace"),
        ({"podPatch": {"metadata": {"uid": "x"}}}, "spec.podPatch.metadata.uid"),
        ({"podPatch": {"metadata": {"ownerReferences": []}}}, "spec.podPatch.metadata.ownerReferences"),
        ({"podPatch": {"metadata": {"labels": {"kubeocean.io/owner": "x"}}}}, "spec.podPatch.metadata.labels"),
        ({"podPatch": {"metadata": {"annotations": {"sub.kubeocean.io/x": "x"}}}}, "spec.podPatch.metadata.annotations"),
        ({"imageRewrites": [{"match": "", "replace": "x"}]}, "spec.imageRewrites[0].match"),
        ({"imageRewrites": [{"match": "docker.io/"}]}, "spec.imageRewrites[0].replace"),
        ({"extraImagePullSecrets": ["Not A Name"]}, "spec.extraImagePullSecrets[0]"),
    ],
)
async def test_what_must_not_be_changed_is_refused_by_its_path(fields: Scene, spec: Body, said: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        await change(fields, **spec)
    assert said in refused.value.stderr
