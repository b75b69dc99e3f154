"""What runs in the worker is seen at home as it is, and what must not run there does not."""

from __future__ import annotations

import json
from typing import Any

from tests.support.audit import Audit
from tests.support.bound import apply, delete
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name, uid_of
from tests.support.witness import watching


async def test_status_addresses_and_restarts_go_up(stage: Stage) -> None:
    await stage.create("crashing", script={"run-for": "0.5", "restart-delay": "0.2", "exit-code": "3"})
    seen = await stage.until("crashing", lambda p: _restarts(p) >= 2, "two restarts are seen")
    container = seen["status"]["containerStatuses"][0]
    assert container["lastState"]["terminated"]["exitCode"] == 3
    below = await stage.until_physical("crashing", bool, "there")
    assert seen["status"]["podIP"] == below["status"]["podIP"]
    assert seen["status"]["podIPs"] == below["status"]["podIPs"]
    assert seen["metadata"]["annotations"]["kubeocean.io/physical-pod-uid"] == uid_of(below)
    assert seen["metadata"]["annotations"]["kubeocean.io/physical-pod-name"] == below["metadata"]["name"]
    assert seen["metadata"]["annotations"]["kubeocean.io/physical-pod-namespace"] == stage.bound.mount


def _restarts(body: dict[str, Any]) -> int:
    return sum(int(each["restartCount"]) for each in body["status"].get("containerStatuses", ()))


async def test_readiness_goes_up(stage: Stage) -> None:
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        # Long enough for a process to tell of it that stands still for a while.
        await stage.create("slow", script={"start-delay": "0.5", "ready-delay": "6"})
        await stage.until("slow", lambda p: _ready(p) == "True", "Ready")
        await eventually(lambda: seen.where(lambda event: event.condition("Ready") == "True"), "the watch tells of it")
    states = [(event.phase, event.condition("Ready")) for event in seen.events if event.condition("Ready")]
    assert ("Running", "False") in states and states[-1] == ("Running", "True")
    assert ("Pending", "True") not in states


def _ready(body: dict[str, Any]) -> str:
    return next((str(c["status"]) for c in body["status"].get("conditions", ()) if c["type"] == "Ready"), "")


async def test_labels_and_conditions_of_users_survive_our_writes(stage: Stage) -> None:
    await stage.create("shared", script={"run-for": "1.5", "restart-delay": "0.2"})
    await stage.running("shared")
    await stage.home.patch("pods", "shared", {"metadata": {"labels": {"user": "label"}}}, namespace=stage.namespace)
    virtual = await stage.until("shared", bool, "there")
    gate = {"type": "example.com/Gate", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    change = {"metadata": {"resourceVersion": virtual["metadata"]["resourceVersion"]}}
    for _ in range(20):
        virtual = await stage.until("shared", bool, "there")
        change = {
            "metadata": {"resourceVersion": virtual["metadata"]["resourceVersion"]},
            "status": {"conditions": [*virtual["status"]["conditions"], gate]},
        }
        try:
            await stage.home.patch("pods", "shared", change, namespace=stage.namespace, subresource="status")
            break
        except Exception as error:
            assert getattr(error, "status", 0) == 409, error
    before = _restarts(virtual)
    after = await stage.until("shared", lambda p: _restarts(p) >= before + 2, "its status was written again")
    assert after["metadata"]["labels"]["user"] == "label"
    assert [c["status"] for c in after["status"]["conditions"] if c["type"] == "example.com/Gate"] == ["True"]


async def test_terminal_phase_stays_when_the_physical_pod_is_removed(stage: Stage) -> None:
    await stage.create("done", restartPolicy="Never", script={"run-for": "0.2"})
    await stage.create("broken", restartPolicy="Never", script={"run-for": "0.2", "exit-code": "1"})
    ends = {"done": "Succeeded", "broken": "Failed"}
    for name, phase in ends.items():
        await stage.until(name, lambda p, phase=phase: p["status"]["phase"] == phase, phase)
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        for name in ends:
            await stage.there.delete("pods", stage.physical_name(name), stage.bound.mount)
            await stage.no_physical(name)
        # The ends were looked at before this later pod's start.
        await stage.create("later")
        await stage.running("later")
        for name, phase in ends.items():
            body = await stage.until(name, bool, "there")
            assert body["status"]["phase"] == phase and body["status"].get("reason") != "PhysicalPodLost"
    assert not seen.where(lambda e: e.object["metadata"]["name"] in ends and (e.deleting or e.phase != ends[e.object["metadata"]["name"]]))
    for name in ends:
        await stage.home.delete("pods", name, stage.namespace)
        await stage.absent(name)


async def test_pods_of_system_namespaces_stay_at_home(stage: Stage) -> None:
    body = stage.body(f"system-{stage.namespace}")
    body["metadata"]["namespace"] = "kube-system"
    name = body["metadata"]["name"]
    audit = Audit(stage.bound.worker, stage.bound.user)
    await stage.home.create("pods", body)
    await stage.create("ordinary")
    await stage.running("ordinary")
    assert await stage.there.get("pods", physical_name("kube-system", name), stage.bound.mount) is None
    await stage.home.delete("pods", name, "kube-system")

    async def gone() -> bool:
        return await stage.home.get("pods", name, "kube-system") is None

    await eventually(gone, "it can be deleted all the same")
    assert not [call for call in audit.writes() if call.name == physical_name("kube-system", name)]


def daemonset(stage: Stage, name: str, **annotations: str) -> dict[str, Any]:
    spec = stage.body("unused")["spec"]
    spec.pop("nodeName")
    spec["nodeSelector"] = {"kubernetes.io/hostname": stage.vnode}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {k.replace("__", "/"): v for k, v in annotations.items()}},
                "spec": spec,
            },
        },
    }


async def _run_daemonsets(stage: Stage, wanted: bool | None) -> None:
    change = json.dumps({"spec": {"runningDaemonsetByDefault": wanted}})
    await stage.bound.hub.kubectl("patch", "clusterbinding", stage.bound.name, "--type=merge", "-p", change)


async def test_daemonset_pods_run_only_where_somebody_asked_for_it(stage: Stage) -> None:
    node = await stage.home.get("nodes", stage.vnode)
    assert node is not None and node["metadata"]["labels"]["kubernetes.io/hostname"] == stage.vnode
    quiet, asked = daemonset(stage, "quiet"), daemonset(stage, "asked")
    asked["spec"]["template"]["metadata"]["annotations"]["kubeocean.io/running-daemonset"] = "true"
    await apply(stage.bound.hub, quiet, asked)

    async def of(name: str) -> dict[str, Any] | None:
        found = await stage.home.list("pods", stage.namespace)
        mine = (p for p in found if p["metadata"]["labels"].get("app") == name and p["spec"].get("nodeName") == stage.vnode)
        return next(mine, None)

    quiet_pod = await eventually(lambda: of("quiet"), "the pod of `quiet` is bound")
    asked_pod = await eventually(lambda: of("asked"), "the pod of `asked` is bound")
    await stage.running(asked_pod["metadata"]["name"])
    await stage.create("later")
    await stage.running("later")
    assert await stage.physical(quiet_pod["metadata"]["name"]) is None
    still = await stage.until(quiet_pod["metadata"]["name"], bool, "there")
    assert still["status"]["phase"] == "Pending"
    told = await stage.event(still["metadata"]["name"], "NotStarted")
    assert f"set spec.runningDaemonsetByDefault of ClusterBinding {stage.bound.name}" in told["message"]
    await _run_daemonsets(stage, True)
    try:
        await stage.running(still["metadata"]["name"])
    finally:
        await _run_daemonsets(stage, None)
    await delete(stage.bound.hub, "daemonset", "quiet", "asked", "-n", stage.namespace, "--wait=false")
    await stage.absent(quiet_pod["metadata"]["name"])


async def _refusals(stage: Stage, audit: Audit, name: str, count: int) -> list[float]:
    """When the worker refused to make the pod, as soon as it did `count` times."""

    def check() -> list[float] | None:
        names = ("", stage.physical_name(name))
        refused = [c for c in audit.calls() if (c.verb, c.what, c.code) == ("create", "pods", 403) and c.name in names]
        return [call.at.timestamp() for call in refused] if len(refused) >= count else None

    found: list[float] = await eventually(check, f"{count} refusals")
    return found


def _slows_down(moments: list[float]) -> bool:
    """Each wait is twice the one before; a busy machine only makes them longer."""
    return all(moments[i + 1] - moments[i] > 0.17 * 2**i for i in range(len(moments) - 1))


async def test_pod_refused_by_a_quota_waits_without_a_hot_loop_and_starts_when_it_may(stage: Stage) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": stage.bound.mount},
        "spec": {"hard": {"pods": "0"}, "scopes": ["Terminating"]},
    }
    await apply(stage.bound.worker, quota)

    async def counted() -> bool:
        found = await stage.there.get("resourcequotas", "small", stage.bound.mount)
        return bool(found and found.get("status", {}).get("hard"))

    await eventually(counted, "the quota is in force")
    await stage.until_refused_there("exceeded quota: small", activeDeadlineSeconds=3000)
    audit = Audit(stage.bound.worker, stage.bound.user)
    # The quota counts only pods with a deadline, so that it disturbs nobody else.
    await stage.create("greedy", activeDeadlineSeconds=3000)
    said = await stage.event("greedy", "FailedCreatePod")
    assert "the worker cluster refuses the pod" in said["message"] and "exceeded quota: small" in said["message"]
    assert _slows_down(await _refusals(stage, audit, "greedy", 4))
    waiting = await stage.virtual("greedy")
    assert waiting is not None and waiting["status"]["phase"] == "Pending"
    await stage.bound.worker.kubectl("delete", "resourcequota", "small", "-n", stage.bound.mount)
    await stage.running("greedy")


async def test_pod_refused_by_pod_security_waits_with_the_workers_reason(stage: Stage) -> None:
    level = "pod-security.kubernetes.io/enforce"
    await stage.there.patch("namespaces", stage.bound.mount, {"metadata": {"labels": {level: "baseline"}}})
    try:
        await stage.until_refused_there("violates PodSecurity", hostNetwork=True, hostPID=True)
        audit = Audit(stage.bound.worker, stage.bound.user)
        await stage.create("privileged", hostNetwork=True, hostPID=True)
        said = await stage.event("privileged", "FailedCreatePod")
        assert 'violates PodSecurity "baseline' in said["message"]
        assert _slows_down(await _refusals(stage, audit, "privileged", 3))
        waiting = await stage.virtual("privileged")
        assert waiting is not None and waiting["status"]["phase"] == "Pending"
        await stage.home.delete("pods", "privileged", stage.namespace)
        await stage.absent("privileged")
    finally:
        await stage.there.patch("namespaces", stage.bound.mount, {"metadata": {"labels": {level: None}}})


async def test_deleted_pod_that_never_started_is_gone_at_once(stage: Stage) -> None:
    volume = {"name": "v", "configMap": {"name": "never"}}
    await stage.create("unborn", volumes=[volume])
    await stage.event("unborn", "MandatoryConfigMapNotFound")
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        await stage.bound.hub.kubectl("delete", "pod", "unborn", "-n", stage.namespace, "--timeout=30s")
        await eventually(lambda: seen.where(lambda event: event.kind == "DELETED"), "the watch tells of the end")
