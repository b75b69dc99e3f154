"""Pods that the worker does not let in, or not grow: its Pod Security level and its quota are its owner's word, told with the reason.

Each refused pod waits, and asks again ever more slowly.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime

import pytest

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.support.audit import Audit
from tests.support.bound import Body, apply, delete
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

LEVEL = "pod-security.kubernetes.io/enforce"
REFUSALS = 4


@pytest.fixture(scope="module")
def guarded(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("guarded")) as made:
        yield made


@pytest.fixture
async def stage(guarded: Scene) -> AsyncIterator[Stage]:
    """A mount namespace of level baseline in which two CPUs may be asked for."""
    made = await Stage.of(guarded.bound, guarded.nodes)
    await made.there.patch("namespaces", guarded.bound.mount, {"metadata": {"labels": {LEVEL: "baseline"}}})
    metadata = {"name": "two-cpus", "namespace": guarded.bound.mount}
    await apply(
        guarded.bound.worker,
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"requests.cpu": "2"}}},
    )

    async def in_force() -> bool:
        found = await made.there.get("resourcequotas", "two-cpus", guarded.bound.mount)
        return bool(found and found.get("status", {}).get("hard"))

    await eventually(in_force, "the quota is in force")
    await made.until_refused_there("exceeded quota: two-cpus", **GREEDY)
    await made.until_refused_there('violates PodSecurity "baseline', **PRIVILEGED)
    yield made
    await delete(guarded.bound.hub, "pods", "--all", "-n", made.namespace, "--wait=false")


def container(cpu: str, **more: object) -> Body:
    return {"name": "main", "image": "i", "command": ["sleep", "999"], "resources": {"requests": {"cpu": cpu}}, **more}


PRIVILEGED: Body = {"containers": [container("0", securityContext={"privileged": True})]}
HOST_PATH: Body = {
    "containers": [container("0", volumeMounts=[{"name": "root", "mountPath": "/host"}])],
    "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
}
GREEDY: Body = {"containers": [container("3")]}


@pytest.mark.parametrize(
    ("name", "spec", "reasons"),
    [
        ("privileged", PRIVILEGED, ('violates PodSecurity "baseline', "privileged")),
        ("host-path", HOST_PATH, ('violates PodSecurity "baseline', "hostPath volumes")),
        ("greedy", GREEDY, ("exceeded quota: two-cpus", "limited: requests.cpu=2")),
    ],
)
async def test_pod_that_the_worker_refuses_waits_with_its_reason_and_without_a_hot_loop(
    stage: Stage, name: str, spec: Body, reasons: tuple[str, ...]
) -> None:
    audit = Audit(stage.bound.worker, stage.bound.user)
    await stage.create(name, **spec)
    said = await stage.event(name, "FailedCreatePod")
    assert said["type"] == "Warning" and all(text in said["message"] for text in reasons), said["message"]
    assert f'"{name}"' in said["message"] and stage.physical_name(name) not in said["message"], said["message"]
    moments = await refusals(audit)
    waits = [(later - earlier).total_seconds() for earlier, later in zip(moments, moments[1:], strict=False)]
    print(f"{name} was refused {len(moments)} times, with waits of {[round(wait, 2) for wait in waits]} s")
    # Each wait is twice the one before; a busy machine only makes them longer.
    assert all(wait > 0.17 * 2**at for at, wait in enumerate(waits)), waits
    waiting = await stage.virtual(name)
    assert waiting is not None and waiting["status"]["phase"] == "Pending"
    assert [each["state"]["waiting"]["reason"] for each in waiting["status"]["containerStatuses"]] == ["WorkerRefused"]
    told = await stage.home.list("events", stage.namespace, fields=f"involvedObject.name={name},type=Warning")
    assert {each["reason"] for each in told} == {"FailedCreatePod"}
    assert await stage.physical(name) is None
    # One that keeps to the rules is let in beside it.
    await stage.create("modest", containers=[container("1")])
    await stage.running("modest")
    await stage.home.delete("pods", name, stage.namespace)
    await stage.absent(name)


async def test_resize_over_quota_waits_with_its_reason_and_holds_up_nothing_else(stage: Stage) -> None:
    """The containers wait: of running ones the API server wants to see that their kubelet can resize, and a simulated one can not."""
    await stage.create("grows", script={"start-delay": "600"}, containers=[container("1")])
    await stage.until_physical("grows", bool, "there")
    change = {"spec": {"containers": [container("3")]}}
    await stage.home.patch("pods", "grows", change, namespace=stage.namespace, subresource="resize")
    told = await stage.until("grows", lambda p: waits(p).get("reason") == "Deferred", "says that the resize waits")
    assert "exceeded quota: two-cpus" in waits(told)["message"] and stage.physical_name("grows") not in waits(told)["message"]
    await stage.event("grows", "ResizeDeferred")
    # A change that comes with a generation, and one that does not.
    change = {"metadata": {"labels": {"seen": "too"}}, "spec": {"activeDeadlineSeconds": 3000}}
    await stage.home.patch("pods", "grows", change, namespace=stage.namespace)
    there = await stage.until_physical("grows", lambda p: p["spec"].get("activeDeadlineSeconds") == 3000, "has its deadline")
    assert there["metadata"]["labels"]["seen"] == "too" and there["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    change = {"spec": {"containers": [container("2")]}}
    await stage.home.patch("pods", "grows", change, namespace=stage.namespace, subresource="resize")
    await stage.until_physical("grows", lambda p: p["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}, "fits")
    await stage.until("grows", lambda p: not waits(p), "does not wait any more")
    await stage.home.delete("pods", "grows", stage.namespace, grace=0)
    await stage.no_physical("grows")


def waits(body: Body) -> Body:
    found: list[Body] = [c for c in body["status"].get("conditions", ()) if c["type"] == "PodResizePending"]
    return found[0] if found else {}


async def refusals(audit: Audit) -> list[datetime]:
    """When the worker refused to make a pod, as soon as it did so often enough; only one is refused at a time here."""

    def check() -> list[datetime] | None:
        refused = [call.at for call in audit.calls() if (call.verb, call.what, call.code) == ("create", "pods", 403)]
        return refused if len(refused) >= REFUSALS else None

    found: list[datetime] = await eventually(check, f"{REFUSALS} refusals", seconds=60)
    return found
