"""Rule `same-name-new-uid`: each incarnation of a name has a physical pod of its own, one after another, and none is left behind."""

from __future__ import annotations

import uuid
from collections import Counter

from tests.integration.kubeocean.conftest import Scene
from tests.support.audit import Audit
from tests.support.stage import Stage, away, uid_of, virtual_uid
from tests.support.witness import watching

ROUNDS = 20


async def test_twenty_quick_rounds_of_one_name_make_twenty_physical_pods_one_after_another(stage: Stage) -> None:
    wanted = []
    with watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as seen:
        for number in range(ROUNDS):
            made = await stage.create("again", script={"stop-delay": "0.1"})
            wanted.append(uid_of(made))
            below = await stage.until_physical("again", lambda p, uid=wanted[-1]: virtual_uid(p) == uid, f"that of round {number}")
            # By force every other time: then the new pod exists before the old one has ended.
            await stage.home.delete("pods", "again", stage.namespace, grace=0 if number % 2 else 5)
            await stage.absent("again")
        await stage.no_physical("again")
    events = seen.where(lambda event: event.object["metadata"]["name"] == below["metadata"]["name"])
    assert [virtual_uid(event.object) for event in events if event.kind == "ADDED"] == wanted
    alive = 0
    for event in events:
        alive += {"ADDED": 1, "DELETED": -1}.get(event.kind, 0)
        assert 0 <= alive <= 1


async def test_physical_pod_of_an_earlier_uid_is_deleted_before_the_new_one_is_created(stage: Stage) -> None:
    labels, annotations = await stage.marks()
    # Just after the sixth attempt of a back-off that doubles from 0.2 s on; the next would come at 11 s.
    annotations["mock.vkubelet.io/stop-delay"] = "6.5"
    audit = Audit(stage.bound.worker, stage.bound.user)
    old = await stage.there.create("pods", stage.twin("name", str(uuid.uuid4()), labels=labels, annotations=annotations))
    await stage.until_physical("name", lambda p: p["status"]["phase"] == "Running", "the old one runs")
    with watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as seen:
        new = await stage.create("name")
        virtual = await stage.running("name")
    assert virtual["metadata"]["annotations"]["kubeocean.io/physical-pod-uid"] != uid_of(old)
    gone = seen.where(lambda event: event.uid == uid_of(old) and event.kind == "DELETED")[0]
    made = seen.where(lambda event: virtual_uid(event.object) == uid_of(new) and event.kind == "ADDED")[0]
    assert seen.events.index(gone) < seen.events.index(made)
    assert made.at - gone.at < 4, "its end wakes the new one, no back-off"
    deletions = [call for call in audit.writes() if call.verb == "delete" and call.name == stage.physical_name("name")]
    assert {call.body["preconditions"]["uid"] for call in deletions} == {uid_of(old)}


async def test_name_taken_by_somebody_else_is_an_error_and_theirs_is_left_alone(stage: Stage) -> None:
    stranger = {"kubeocean.io/hub-uid": str(uuid.uuid4()), "kubeocean.io/cluster-id": stage.bound.name}
    theirs = stage.twin("taken", str(uuid.uuid4()), labels={"kubeocean.io/managed-by": "kubeocean"}, annotations=stranger)
    before = await stage.there.create("pods", theirs)
    local = stage.twin("mine", str(uuid.uuid4()), labels={"app": "local"}, annotations={})
    local["metadata"].pop("annotations")
    also = await stage.there.create("pods", local)
    audit = Audit(stage.bound.worker, stage.bound.user)
    for name, there in (("taken", before), ("mine", also)):
        await stage.create(name)
        said = await stage.event(name, "FailedCreatePod")
        assert there["metadata"]["name"] in said["message"] and "belongs to another owner" in said["message"]
        virtual = await stage.virtual(name)
        assert virtual is not None and virtual["status"]["phase"] == "Pending"
        after = await stage.until_physical(name, bool, "there")
        assert uid_of(after) == uid_of(there) and "deletionTimestamp" not in after["metadata"]
        for part in ("labels", "annotations"):
            assert after["metadata"].get(part) == there["metadata"].get(part)
        await stage.home.delete("pods", name, stage.namespace)
        await stage.absent(name)
        assert uid_of(await stage.until_physical(name, bool, "there")) == uid_of(there)
    names = {before["metadata"]["name"], also["metadata"]["name"]}
    assert not [call for call in audit.writes() if call.name in names and call.code < 300]
    for name in names:
        await stage.there.delete("pods", name, stage.bound.mount, grace=0)


async def test_physical_pod_made_before_a_crash_is_adopted(common: Scene, stage: Stage) -> None:
    labels, annotations = await stage.marks()
    with watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as seen:
        with away(common.program):
            virtual = await stage.create("adopted")
            body = stage.twin("adopted", uid_of(virtual), labels=labels, annotations=annotations)
            made = await stage.there.create("pods", body)
        found = await stage.running("adopted")
    assert found["metadata"]["annotations"]["kubeocean.io/physical-pod-uid"] == uid_of(made)
    made_for = Counter(virtual_uid(event.object) for event in seen.where(lambda event: event.kind == "ADDED"))
    assert made_for[uid_of(virtual)] == 1
    assert not seen.where(lambda event: event.uid == uid_of(made) and (event.deleting or event.kind == "DELETED"))
