"""What pods refer to is in the worker before they are, follows its original, and goes after its last user."""

from __future__ import annotations

import base64
import itertools
import time
from typing import Any

from tests.integration.tries import best_within
from tests.support.audit import Audit
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of

SOON = 2.0
ASKED_AGAIN_WITHIN = 10.0
"""Seconds: what is missing is asked for every five, and a back-off that doubles would have come to ten at the second time."""


def configmap(stage: Stage, name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": stage.namespace}, "data": data}


def secret(stage: Stage, name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": stage.namespace}, "type": "Opaque", "data": {k: encoded(v) for k, v in data.items()}}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def volumes(*sources: tuple[str, str], optional: bool = False) -> list[dict[str, Any]]:
    fields = {"configMap": "name", "secret": "secretName"}
    return [{"name": f"v{i}", kind: {fields[kind]: name, "optional": optional}} for i, (kind, name) in enumerate(sources)]


async def test_changes_reach_the_copies_within_two_seconds_and_removed_keys_vanish(stage: Stage) -> None:
    binary = {"icon": encoded("old"), "spare": encoded("x")}
    await stage.home.create("configmaps", {**configmap(stage, "settings", color="red", size="9"), "binaryData": binary})
    await stage.home.create("secrets", {**secret(stage, "keys", one="1", two="2"), "type": "example.com/keys"})
    await stage.create("user", volumes=volumes(("configMap", "settings"), ("secret", "keys")))
    await stage.running("user")
    copies = {}
    for kind, name in (("configmaps", "settings"), ("secrets", "keys")):
        copies[kind] = await stage.until_physical(name, bool, "there", kind=kind)
    assert copies["configmaps"]["data"] == {"color": "red", "size": "9"} and copies["configmaps"]["binaryData"] == binary
    assert copies["secrets"]["type"] == "example.com/keys"
    for kind, name, wanted in (
        ("configmaps", "settings", {"data": {"color": "blue"}, "binaryData": {"icon": encoded("new")}}),
        ("secrets", "keys", {"data": {"one": encoded("11")}}),
    ):
        change = {part: {**dict.fromkeys(copies[kind][part]), **entries} for part, entries in wanted.items()}
        back = {part: {**dict.fromkeys(entries), **copies[kind][part]} for part, entries in wanted.items()}
        original = {part: copies[kind][part] for part in wanted}

        async def followed(change: dict[str, Any], wanted: dict[str, Any], *, kind: str = kind, name: str = name) -> float:
            await stage.home.patch(kind, name, change, namespace=stage.namespace)
            changed = time.monotonic()
            after = await stage.until_physical(name, lambda c: c.items() >= wanted.items(), "is equal again", kind=kind)
            assert uid_of(after) == uid_of(copies[kind])
            return time.monotonic() - changed

        # How soon it is as a rule: test_freshness.py. Who looks every so often would be late each time: each change follows a look.
        tries = [await followed(change, wanted), await followed(back, original), await followed(change, wanted)]
        assert min(tries) < SOON, tries


async def test_copy_deleted_or_edited_by_hand_is_made_good(stage: Stage) -> None:
    await stage.home.create("configmaps", configmap(stage, "settings", color="red"))
    await stage.create("user", volumes=volumes(("configMap", "settings")))
    await stage.running("user")
    copy = await stage.until_physical("settings", bool, "there", kind="configmaps")
    await stage.there.delete("configmaps", copy["metadata"]["name"], stage.bound.mount)
    again = await stage.until_physical("settings", lambda c: uid_of(c) != uid_of(copy), "is back", kind="configmaps")
    assert again["data"] == {"color": "red"}
    spoilt = {"data": {"color": "green", "extra": "x"}}
    await stage.there.patch("configmaps", copy["metadata"]["name"], spoilt, namespace=stage.bound.mount)
    mended = await stage.until_physical("settings", lambda c: c["data"] == {"color": "red"}, "is equal again", kind="configmaps")
    assert uid_of(mended) == uid_of(again)


async def test_copy_goes_after_its_last_user_and_not_before(stage: Stage) -> None:
    await stage.home.create("secrets", secret(stage, "keys", one="1"))
    for name in ("first", "last"):
        await stage.create(name, volumes=volumes(("secret", "keys")))
        await stage.running(name)
    copy = await stage.until_physical("keys", bool, "there", kind="secrets")
    marked = await stage.home.get("secrets", "keys", stage.namespace)
    assert marked is not None and f"kubeocean.io/finalizer-{stage.bound.name}" in marked["metadata"]["finalizers"]
    await stage.home.delete("pods", "first", stage.namespace)
    await stage.no_physical("first")
    # Another copy that is released later, and is gone, shows that the first one's time had come and it was kept.
    await stage.home.create("configmaps", configmap(stage, "brief", a="b"))
    await stage.create("brief", volumes=volumes(("configMap", "brief")))
    await stage.running("brief")
    await stage.home.delete("pods", "brief", stage.namespace)
    await stage.no_physical("brief", kind="configmaps")
    assert uid_of(await stage.until_physical("keys", bool, "there", kind="secrets")) == uid_of(copy)
    await stage.home.delete("pods", "last", stage.namespace)
    await stage.no_physical("keys", kind="secrets")

    async def unmarked() -> bool:
        found = await stage.home.get("secrets", "keys", stage.namespace)
        assert found is not None
        meta = found["metadata"]
        marks = [*meta.get("labels", {}), *meta.get("annotations", {}), *meta.get("finalizers", ())]
        return not [mark for mark in marks if mark.startswith("kubeocean.io/")]

    await eventually(unmarked, "the original bears no marks of ours any more")


async def test_original_deleted_while_used_is_let_go_and_followed_when_it_returns(stage: Stage) -> None:
    await stage.home.create("configmaps", configmap(stage, "settings", color="red"))
    await stage.create("user", volumes=volumes(("configMap", "settings")))
    await stage.running("user")
    await stage.home.delete("configmaps", "settings", stage.namespace)
    await stage.no_physical("settings", kind="configmaps")

    async def let_go() -> bool:
        return await stage.home.get("configmaps", "settings", stage.namespace) is None

    await eventually(let_go, "the original is gone")
    assert (await stage.running("user"))["status"]["phase"] == "Running"
    await stage.home.create("configmaps", configmap(stage, "settings", color="blue"))
    await stage.until_physical("settings", lambda c: c["data"] == {"color": "blue"}, "is there again", kind="configmaps")


async def test_missing_mandatory_object_keeps_the_pod_pending_with_an_event(stage: Stage) -> None:
    audit = Audit(stage.bound.worker, stage.bound.user)
    await stage.create("waiting", volumes=volumes(("configMap", "absent")))
    said = await stage.event("waiting", "MandatoryConfigMapNotFound")
    assert f"ConfigMap {stage.namespace}/absent does not exist" in said["message"]
    await stage.until("waiting", lambda p: waiting_for(p) == "CreateContainerConfigError" and p["status"]["phase"] == "Pending", "waits")
    await stage.home.create("configmaps", configmap(stage, "absent", now="here"))
    await stage.running("waiting")
    creates = [call for call in audit.writes() if call.verb == "create" and call.what == "pods"]
    assert len([call for call in creates if call.name in ("", stage.physical_name("waiting"))]) == 1


def waiting_for(pod: dict[str, Any]) -> str:
    statuses = pod["status"].get("containerStatuses", ())
    return next((str(each["state"]["waiting"]["reason"]) for each in statuses if "waiting" in each["state"]), "")


async def test_missing_mandatory_secret_shows_the_kubelets_reason_until_it_is_created(stage: Stage) -> None:
    variable = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "one"}}}

    names = (f"keyless-{number}" for number in itertools.count())

    async def started_after() -> float:
        """Seconds from the answer to the creation of the Secret."""
        name = next(names)
        await stage.create(name, containers=[{"name": "main", "image": "busybox", "env": [variable]}])
        await stage.event(name, "MandatorySecretNotFound")
        await stage.until(name, lambda p: waiting_for(p) == "CreateContainerConfigError", "waits")
        await stage.home.create("secrets", secret(stage, "absent", one="1"))
        came = time.monotonic()
        await stage.running(name)
        took = time.monotonic() - came
        await stage.home.delete("secrets", "absent", stage.namespace)
        return took

    await best_within(ASKED_AGAIN_WITHIN, started_after, "the start after a missing Secret")


async def test_missing_optional_object_does_not_block_and_arrives_later(stage: Stage) -> None:
    sources = [("configMap", "later"), ("secret", "later")]
    await stage.create("easy", volumes=volumes(*sources, optional=True))
    await stage.running("easy")
    for kind in ("ConfigMap", "Secret"):
        assert "does not exist" in (await stage.event("easy", f"Optional{kind}NotFound"))["message"]
    below = await stage.until_physical("easy", bool, "there")
    assert [v["configMap"]["name"] for v in below["spec"]["volumes"] if "configMap" in v] == [stage.physical_name("later")]
    assert await stage.physical("later", "configmaps") is None
    await stage.home.create("configmaps", configmap(stage, "later", a="b"))
    await stage.home.create("secrets", secret(stage, "later", a="b"))
    await stage.until_physical("later", lambda c: c["data"] == {"a": "b"}, "there", kind="configmaps")
    await stage.until_physical("later", lambda c: c["data"] == {"a": encoded("b")}, "there", kind="secrets")


async def test_labels_and_annotations_follow_and_foreign_ones_stay(stage: Stage) -> None:
    body = stage.body("labelled", labels={"app": "one", "old": "yes"})
    body["metadata"]["annotations"]["example.com/old"] = "yes"
    await stage.home.create("pods", body)
    await stage.running("labelled")
    theirs = {
        "metadata": {
            "labels": {"worker.example.com/team": "a", "app": "theirs", "unnamed": "yes"},
            "annotations": {"worker.example.com/cost": "1", "worker.example.com/unnamed": "yes"},
        }
    }
    await stage.there.patch("pods", stage.physical_name("labelled"), theirs, namespace=stage.bound.mount)
    await stage.until("labelled", lambda p: p["metadata"].get("labels", {}).get("worker.example.com/team") == "a", "has the worker's label")
    meta = (await stage.until("labelled", lambda p: "worker.example.com/cost" in p["metadata"]["annotations"], "has the annotation"))[
        "metadata"
    ]
    assert meta["labels"]["app"] == "one" and "unnamed" not in meta["labels"], "the worker adds what the binding names, and changes nothing"
    assert "worker.example.com/unnamed" not in meta["annotations"]
    change = {
        "metadata": {"labels": {"app": "two", "old": None, "new": "yes"}, "annotations": {"example.com/old": None, "example.com/new": "1"}}
    }
    await stage.home.patch("pods", "labelled", change, namespace=stage.namespace)
    below = await stage.until_physical("labelled", lambda p: p["metadata"]["labels"].get("app") == "two", "has the new value")
    labels, annotations = below["metadata"]["labels"], below["metadata"]["annotations"]
    assert "old" not in labels and labels["new"] == "yes" and labels["worker.example.com/team"] == "a"
    assert "example.com/old" not in annotations and annotations["example.com/new"] == "1" and annotations["worker.example.com/cost"] == "1"
    ours, _ = await stage.marks()
    assert ours.items() <= labels.items()


async def test_image_tolerations_deadline_and_ephemeral_containers_follow(stage: Stage) -> None:
    await stage.create("changing")
    await stage.running("changing")
    before = await stage.until_physical("changing", bool, "there")
    virtual = await stage.until("changing", bool, "there")
    container = {**virtual["spec"]["containers"][0], "image": "localhost/agnhost:dev"}
    tolerations = [*virtual["spec"]["tolerations"], {"key": "added", "operator": "Exists"}]
    change = {"spec": {"containers": [container], "tolerations": tolerations, "activeDeadlineSeconds": 3000}}
    await stage.home.patch("pods", "changing", change, namespace=stage.namespace)
    after = await stage.until_physical(
        "changing", lambda p: p["spec"]["containers"][0]["image"] == "localhost/agnhost:dev", "has the new image"
    )
    assert after["spec"]["activeDeadlineSeconds"] == 3000
    assert {"key": "added", "operator": "Exists"} in after["spec"]["tolerations"]
    debugger = {"name": "debugger", "image": "localhost/busybox:dev", "env": [{"name": "POD", "value": "x"}]}
    ephemeral = {"spec": {"ephemeralContainers": [debugger]}}
    await stage.home.patch("pods", "changing", ephemeral, namespace=stage.namespace, subresource="ephemeralcontainers")
    there = await stage.until_physical("changing", lambda p: p["spec"].get("ephemeralContainers"), "has the ephemeral container")
    assert [each["name"] for each in there["spec"]["ephemeralContainers"]] == ["debugger"]
    assert uid_of(there) == uid_of(before)


async def test_ephemeral_container_waits_for_what_it_names_and_brings_it_along(stage: Stage) -> None:
    await stage.create("curious")
    await stage.running("curious")
    debugger = {"name": "debugger", "image": "localhost/busybox:dev", "envFrom": [{"secretRef": {"name": "for-debug"}}]}
    change = {"spec": {"ephemeralContainers": [debugger]}}
    await stage.home.patch("pods", "curious", change, namespace=stage.namespace, subresource="ephemeralcontainers")
    told = await stage.event("curious", "FailedEphemeralContainer")
    assert f"ephemeral container debugger: Secret {stage.namespace}/for-debug does not exist" in told["message"]
    labels = {"metadata": {"labels": {"looked": "at"}}}
    await stage.home.patch("pods", "curious", labels, namespace=stage.namespace)
    await stage.until_physical("curious", lambda p: p["metadata"]["labels"].get("looked") == "at", "has its label all the same")
    shown = await stage.until("curious", lambda p: p["status"].get("ephemeralContainerStatuses"), "shows what the container waits for")
    (status,) = shown["status"]["ephemeralContainerStatuses"]
    assert status["name"] == "debugger" and "does not exist" in status["state"]["waiting"]["message"]
    await stage.home.create("secrets", secret(stage, "for-debug", key="value"))
    there = await stage.until_physical("curious", lambda p: p["spec"].get("ephemeralContainers"), "has the ephemeral container")
    assert there["spec"]["ephemeralContainers"][0]["envFrom"] == [{"secretRef": {"name": stage.physical_name("for-debug")}}]
    assert (await stage.physical("for-debug", "secrets") or {})["data"] == {"key": encoded("value")}
    await stage.until("curious", lambda p: "does not exist" not in str(p["status"].get("ephemeralContainerStatuses")), "waits no more")
