"""Rule `at-most-one-copy`: a force delete in the hub leaves the worker's kubelet time to stop the containers, if there is a kubelet."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.support.audit import Audit, Call
from tests.support.program import eventually, holds
from tests.support.stage import Stage
from tests.support.witness import watching

LESS_THAN_ITS_OWN_GRACE = 25.0
"""Seconds; thirty would mean that nobody told the worker of a shorter one."""


def deletions(audit: Audit, name: str) -> list[Call]:
    return [call for call in audit.writes() if call.verb == "delete" and call.what == "pods" and call.name == name]


async def test_force_delete_at_home_is_a_delete_with_one_second_in_the_worker(stage: Stage) -> None:
    await stage.create("forced", script={"stop-delay": "600"})
    await stage.running("forced")
    audit = Audit(stage.bound.worker, stage.bound.user)
    with watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as seen:
        await stage.home.delete("pods", "forced", stage.namespace, grace=0)
        await stage.no_physical("forced", seconds=LESS_THAN_ITS_OWN_GRACE)
    ending = seen.where(lambda event: event.deleting and event.object["metadata"]["name"] == stage.physical_name("forced"))
    # The last word, without grace, is that of its kubelet.
    assert ending[0].object["metadata"]["deletionGracePeriodSeconds"] == 1
    asked = await eventually(lambda: deletions(audit, stage.physical_name("forced")), "the audit log has it")
    assert [call.body["gracePeriodSeconds"] for call in asked] == [1]


async def test_grace_of_the_user_goes_down_and_a_shorter_one_follows(stage: Stage) -> None:
    await stage.create("patient", script={"stop-delay": "60"})
    await stage.running("patient")
    audit = Audit(stage.bound.worker, stage.bound.user)
    await stage.home.delete("pods", "patient", stage.namespace, grace=40)
    ending = await stage.until_physical("patient", lambda p: p["metadata"].get("deletionGracePeriodSeconds"), "is ending")
    # A machine that is busy takes some of it.
    assert 31 <= ending["metadata"]["deletionGracePeriodSeconds"] <= 40
    await stage.home.delete("pods", "patient", stage.namespace, grace=2)
    await stage.no_physical("patient", seconds=LESS_THAN_ITS_OWN_GRACE)
    await stage.absent("patient")

    def graces() -> None:
        found = [call.body["gracePeriodSeconds"] for call in deletions(audit, stage.physical_name("patient"))]
        assert found and 31 <= found[0] <= 40 and found[-1] <= 2 and min(found) >= 1 and found == sorted(found, reverse=True)

    # The line of the last one may come a moment later.
    await holds(graces)


async def _says_not_ready(scene: Scene, stage: Stage, *, since: timedelta) -> None:
    """Make the node controller's word about a silent kubelet `since` old."""
    moment = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
    node = await stage.there.get("nodes", scene.nodes[0])
    assert node is not None
    others = [c for c in node["status"]["conditions"] if c["type"] != "Ready"]
    ready = {"type": "Ready", "status": "False", "reason": "KubeletSilent", "message": "made by a test", "lastTransitionTime": moment}
    change = {"status": {"conditions": [*others, ready]}}
    await stage.there.patch("nodes", scene.nodes[0], change, subresource="status")

    async def known_at_home() -> bool:
        virtual = await stage.home.get("nodes", stage.vnode)
        return any(c["type"] == "Ready" and c["status"] == "False" for c in virtual["status"]["conditions"]) if virtual else False

    await eventually(known_at_home, "the virtual node is not ready either")


async def test_grace_zero_goes_down_only_when_the_node_was_not_ready_for_a_minute(scene: MakeScene) -> None:
    made = await scene()
    stage = await Stage.of(made.bound, made.nodes)
    for name in ("early", "late"):
        await stage.create(name)
        await stage.running(name)
    audit = Audit(made.bound.worker, made.bound.user)
    made.kubelet.process.send_signal(signal.SIGSTOP)
    try:
        await _says_not_ready(made, stage, since=timedelta(seconds=5))
        await stage.home.delete("pods", "early", stage.namespace, grace=0)
        await stage.until_physical("early", lambda p: p["metadata"].get("deletionGracePeriodSeconds") == 1, "waits for its kubelet")
        await _says_not_ready(made, stage, since=timedelta(seconds=90))
        await stage.home.delete("pods", "late", stage.namespace, grace=0)
        await stage.no_physical("late")
        still = await stage.physical("early")
        assert still is not None and still["metadata"]["deletionGracePeriodSeconds"] == 1
    finally:
        made.kubelet.process.send_signal(signal.SIGCONT)
    # It is gone with the call itself, whose line is written a moment after.
    asked = await eventually(lambda: deletions(audit, stage.physical_name("late")), "the audit log has it")
    assert [call.body["gracePeriodSeconds"] for call in asked] == [0]
    await stage.no_physical("early")
