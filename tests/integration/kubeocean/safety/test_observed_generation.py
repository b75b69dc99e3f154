"""Rule `observed-generation`: the hub's generation is observed when the physical kubelet has observed what was sent for it."""

from __future__ import annotations

import signal

from tests.integration.kubeocean.conftest import Scene
from tests.support.program import eventually
from tests.support.stage import Stage
from tests.support.witness import Seen, watching

AGNHOST = "localhost/agnhost:dev"


def observed(body: dict[str, object]) -> int:
    status = body["status"]
    assert isinstance(status, dict)
    return int(status.get("observedGeneration", 0))


def _is_noted(event: Seen) -> bool:
    return bool(event.object["metadata"]["annotations"].get("worker.example.com/there"))


async def test_observed_generation_follows_when_the_physical_kubelet_has_seen_the_change(common: Scene, stage: Stage) -> None:
    await stage.create("changed")
    before = await stage.until("changed", lambda p: p["status"]["phase"] == "Running" and observed(p) == 1, "generation 1 observed")
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as above:
        common.kubelet.process.send_signal(signal.SIGSTOP)
        try:
            containers = [{**each, "image": AGNHOST} for each in before["spec"]["containers"]]
            changed = await stage.home.patch("pods", "changed", {"spec": {"containers": containers}}, namespace=stage.namespace)
            assert changed["metadata"]["generation"] == 2
            below = await stage.until_physical("changed", lambda p: p["spec"]["containers"][0]["image"] == AGNHOST, "has the new image")
            assert below["status"]["observedGeneration"] < below["metadata"]["generation"]
            # A change of a label passes through all our hands meanwhile, and must not take the generation along.
            await stage.home.patch("pods", "changed", {"metadata": {"labels": {"seen": "too"}}}, namespace=stage.namespace)
            await stage.until_physical("changed", lambda p: p["metadata"]["labels"].get("seen") == "too", "has the label")
            noted = {"metadata": {"annotations": {"worker.example.com/there": "yes"}}}
            await stage.there.patch("pods", stage.physical_name("changed"), noted, namespace=stage.bound.mount)
            await stage.until("changed", lambda p: p["metadata"]["annotations"].get("worker.example.com/there"), "was published once more")
            # The watch may be behind.
            await eventually(lambda: above.where(_is_noted), "the watch has it")
            assert {observed(event.object) for event in above.where(lambda e: e.object["metadata"]["generation"] == 2)} == {1}
        finally:
            common.kubelet.process.send_signal(signal.SIGCONT)
        await stage.until("changed", lambda p: observed(p) == 2, "generation 2 observed")
    conditions = (await stage.until("changed", bool, "there"))["status"]["conditions"]
    assert all(c.get("observedGeneration", 2) <= 2 for c in conditions)


async def test_generation_of_the_physical_pod_is_never_copied(stage: Stage) -> None:
    await stage.create("local-edit")
    await stage.until("local-edit", lambda p: p["status"]["phase"] == "Running" and observed(p) == 1, "generation 1 observed")
    for number in (1, 2, 3):
        below = await stage.until_physical("local-edit", bool, "there")
        extra = {"key": f"added-there-{number}", "operator": "Exists"}
        change = {"spec": {"tolerations": [*below["spec"]["tolerations"], extra]}}
        await stage.there.patch("pods", stage.physical_name("local-edit"), change, namespace=stage.bound.mount)
    below = await stage.until_physical("local-edit", lambda p: p["status"].get("observedGeneration") == 4, "the worker counts 4")
    assert below["metadata"]["generation"] == 4
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as above:
        noted = {"metadata": {"annotations": {"worker.example.com/there": "yes"}}}
        await stage.there.patch("pods", stage.physical_name("local-edit"), noted, namespace=stage.bound.mount)
        after = await stage.until(
            "local-edit", lambda p: p["metadata"]["annotations"].get("worker.example.com/there"), "was published again"
        )
        assert after["metadata"]["generation"] == 1 and observed(after) == 1
        # The hub's next change is 2 at home, whatever it is there.
        await stage.home.patch("pods", "local-edit", {"spec": {"activeDeadlineSeconds": 3000}}, namespace=stage.namespace)
        await stage.until("local-edit", lambda p: observed(p) == 2, "generation 2 observed")
    assert {observed(event.object) for event in above.events} <= {1, 2}


async def test_labels_and_annotations_travel_without_a_generation(stage: Stage) -> None:
    await stage.create("labelled")
    await stage.until("labelled", lambda p: p["status"]["phase"] == "Running" and observed(p) == 1, "generation 1 observed")
    change = {"metadata": {"labels": {"tier": "front"}, "annotations": {"example.com/note": "1"}}}
    await stage.home.patch("pods", "labelled", change, namespace=stage.namespace)
    below = await stage.until_physical("labelled", lambda p: p["metadata"]["labels"].get("tier") == "front", "has the label")
    assert below["metadata"]["annotations"]["example.com/note"] == "1"
    virtual = await stage.until("labelled", bool, "there")
    assert virtual["metadata"]["generation"] == 1 and observed(virtual) == 1
