"""The definitions of the custom resources, judged by a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

import pytest

from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, definition
from tests.support.bound import established
from tests.support.program import eventually
from tests.support.tables import tables
from vkubelet.api.objects import Json
from vkubelet.testing.cluster import CommandFailed, ControlPlane

SAMPLE_BINDING: Json = {
    "clusterID": "c1",
    "secretRef": {"name": "k", "namespace": "kubeocean-system"},
    "mountNamespace": "kubeocean-worker",
}
SAMPLE_POLICY: Json = {
    "cluster": "demo",
    "forceReclaim": True,
    "gracefulReclaimPeriodSeconds": 0,
    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubeocean.io/role", "operator": "In", "values": ["worker"]}]}]},
    "timeWindows": [
        {"start": "18:00", "end": "08:00", "days": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]},
        {"start": "00:00", "end": "23:59", "days": ["Saturday", "Sunday"]},
        {"start": "08:01", "end": "08:00"},
    ],
    "resourceLimits": [
        {"resource": "cpu", "quantity": "96", "percent": 90},
        {"resource": "cpu", "quantity": 4},
        {"resource": "memory", "percent": 95},
        {"resource": "nvidia.com/gpu", "percent": 100},
    ],
}


@pytest.fixture(scope="module")
def cluster(bare_hub: ControlPlane) -> ControlPlane:
    async def define() -> None:
        both = (CLUSTERBINDINGS, POLICIES)
        await bare_hub.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(definition, both)))
        for resource in both:
            await eventually(partial(established, bare_hub, f"crd/{resource}"), f"{resource} is established")
            await eventually(partial(_served, bare_hub, str(resource)), f"discovery tells of {resource}")

    asyncio.run(define())
    return bare_hub


async def _served(cluster: ControlPlane, resource: str) -> bool:
    try:
        await cluster.kubectl("get", resource)
    except CommandFailed:
        return False
    return True


@pytest.fixture
async def stored(cluster: ControlPlane) -> AsyncIterator[ControlPlane]:
    """For tests that leave objects named "stored"."""
    yield cluster
    await cluster.kubectl("delete", "clusterbindings,resourceleasingpolicies", "stored", "--ignore-not-found")


def body(kind: str, spec: Json | None, name: str = "demo") -> str:
    full: Json = {"apiVersion": "cloud.tencent.com/v1beta1", "kind": kind, "metadata": {"name": name}}
    return json.dumps(full if spec is None else {**full, "spec": spec})


async def accepted(cluster: ControlPlane, kind: str, spec: Json | None) -> None:
    await cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=body(kind, spec))


async def refusal(cluster: ControlPlane, kind: str, spec: Json | None) -> str:
    with pytest.raises(CommandFailed) as refused:
        await accepted(cluster, kind, spec)
    return refused.value.stderr


async def test_upstream_manifests_apply_unchanged(cluster: ControlPlane) -> None:
    await accepted(cluster, "ClusterBinding", SAMPLE_BINDING)
    for optional in (
        {"nodeSelector": SAMPLE_POLICY["nodeSelector"], "serviceNamespaces": ["a"], "disableNodeDefaultTaint": True},
        {
            "podPriorityClassName": "x",
            "runningDaemonsetByDefault": True,
            "directScheduling": True,
            "nodeSelector": {"nodeSelectorTerms": []},
        },
    ):
        await accepted(cluster, "ClusterBinding", {**SAMPLE_BINDING, **optional})
    await accepted(cluster, "ResourceLeasingPolicy", SAMPLE_POLICY)
    await accepted(cluster, "ResourceLeasingPolicy", {"cluster": "demo"})


async def test_new_fields_are_accepted(cluster: ControlPlane) -> None:
    ours: Json = {
        "allowInsecureWorker": False,
        "timeZone": "America/Argentina/Buenos_Aires",
        "onUnreachable": {"mode": "FailOver", "afterSeconds": 120},
        "forceUnbindAfter": 0,
        "apiServerAccess": {"host": "10.0.0.1", "port": 6443, "caBundle": "UEVN"},
        "dns": {"servers": ["10.0.0.2", "fd00::2"], "domain": "hub.example"},
    }
    await accepted(cluster, "ClusterBinding", {**SAMPLE_BINDING, **ours})
    policy = {
        **SAMPLE_POLICY,
        "allowOutOfWindowPods": True,
        "priority": -3,
        "timeZone": "UTC",
        "timeWindows": [{"start": "18:00", "end": "24:00", "days": ["MONDAY"]}],
    }
    await accepted(cluster, "ResourceLeasingPolicy", policy)
    await accepted(
        cluster, "ResourceLeasingPolicy", {**SAMPLE_POLICY, "resourceLimits": [{"resource": "cpu", "quantity": 0, "percent": 0}]}
    )


async def test_binding_without_mount_namespace_is_accepted_by_the_schema(cluster: ControlPlane) -> None:
    await accepted(cluster, "ClusterBinding", {key: value for key, value in SAMPLE_BINDING.items() if key != "mountNamespace"})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"clusterID": None}, "spec.clusterID"),
        ({"clusterID": ""}, "spec.clusterID"),
        ({"clusterID": "c" * 25}, "spec.clusterID"),
        ({"clusterID": "Upper"}, "spec.clusterID"),
        ({"clusterID": "c-"}, "spec.clusterID"),
        ({"secretRef": None}, "spec.secretRef"),
        ({"secretRef": {"name": "x"}}, "spec.secretRef.namespace"),
        ({"secretRef": {"namespace": "x", "name": ""}}, "spec.secretRef.name"),
        ({"mountNamespace": "a.b"}, "spec.mountNamespace"),
        ({"serviceNamespaces": [""]}, "spec.serviceNamespaces[0]"),
        ({"timeZone": "/etc/passwd"}, "spec.timeZone"),
        ({"onUnreachable": {"mode": "Panic"}}, "spec.onUnreachable.mode"),
        ({"onUnreachable": {"mode": "Hold", "afterSeconds": 60}}, "spec.onUnreachable.afterSeconds is allowed for mode FailOver only"),
        ({"onUnreachable": {"mode": "FailOver", "afterSeconds": 1}}, "spec.onUnreachable.afterSeconds"),
        ({"forceUnbindAfter": -1}, "spec.forceUnbindAfter"),
        ({"apiServerAccess": {"port": 6443}}, "spec.apiServerAccess.host"),
        ({"dns": {"servers": []}}, "spec.dns.servers"),
        ({"dns": {"servers": ["dns.example"]}}, "spec.dns.servers[0]"),
    ],
)
async def test_bad_bindings_are_refused(cluster: ControlPlane, change: Json, field: str) -> None:
    spec = {key: value for key, value in {**SAMPLE_BINDING, **change}.items() if value is not None}
    assert field in await refusal(cluster, "ClusterBinding", spec)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cluster": None}, "spec.cluster"),
        ({"timeWindows": [{"end": "08:00"}]}, "spec.timeWindows[0].start"),
        ({"timeWindows": [{"start": "08:00"}]}, "spec.timeWindows[0].end"),
        ({"timeWindows": [{"start": "8:00", "end": "09:00"}]}, "spec.timeWindows[0].start"),
        ({"timeWindows": [{"start": "24:00", "end": "09:00"}]}, "spec.timeWindows[0].start"),
        ({"timeWindows": [{"start": "08:00", "end": "24:01"}]}, "spec.timeWindows[0].end"),
        ({"timeWindows": [{"start": "08:00", "end": "09:00", "days": ["Fri"]}]}, "spec.timeWindows[0].days[0]"),
        ({"resourceLimits": [{"percent": 5}]}, "spec.resourceLimits[0].resource"),
        ({"resourceLimits": [{"resource": "cpu"}]}, "limits nothing; set quantity, percent, or both"),
        ({"resourceLimits": [{"resource": "cpu", "percent": 101}]}, "spec.resourceLimits[0].percent"),
        ({"resourceLimits": [{"resource": "cpu", "percent": -1}]}, "spec.resourceLimits[0].percent"),
        ({"resourceLimits": [{"resource": "cpu", "quantity": -1}]}, "spec.resourceLimits[0].quantity"),
        ({"resourceLimits": [{"resource": "cpu", "quantity": "-1"}]}, "spec.resourceLimits[0].quantity"),
        ({"resourceLimits": [{"resource": "cpu", "quantity": "much"}]}, "spec.resourceLimits[0].quantity"),
        ({"gracefulReclaimPeriodSeconds": -1}, "spec.gracefulReclaimPeriodSeconds"),
        ({"priority": "high"}, "spec.priority"),
        ({"allowOutOfWindowPods": "yes"}, "spec.allowOutOfWindowPods"),
    ],
)
async def test_bad_policies_are_refused(cluster: ControlPlane, change: Json, field: str) -> None:
    spec = {key: value for key, value in {**SAMPLE_POLICY, **change}.items() if value is not None}
    assert field in await refusal(cluster, "ResourceLeasingPolicy", spec)


async def test_objects_without_spec_are_refused(cluster: ControlPlane) -> None:
    assert "spec" in await refusal(cluster, "ClusterBinding", None)
    assert "spec" in await refusal(cluster, "ResourceLeasingPolicy", None)


async def test_cluster_id_and_mount_namespace_can_be_set_once(stored: ControlPlane) -> None:
    bare = {key: value for key, value in SAMPLE_BINDING.items() if key != "mountNamespace"}
    await stored.kubectl("create", "-f", "-", stdin=body("ClusterBinding", bare, "stored"))
    await stored.kubectl("patch", "cb", "stored", "--type=merge", "-p", json.dumps({"spec": {"mountNamespace": "first"}}))
    await stored.kubectl("patch", "cb", "stored", "--type=merge", "-p", json.dumps({"spec": {"directScheduling": True}}))
    for change in ({"mountNamespace": "second"}, {"mountNamespace": None}, {"clusterID": "other"}):
        with pytest.raises(CommandFailed) as refused:
            await stored.kubectl("patch", "cb", "stored", "--type=merge", "-p", json.dumps({"spec": change}))
        assert "cannot be changed" in refused.value.stderr


@pytest.mark.parametrize(
    ("short", "kind", "spec", "phase"),
    [("cb", "ClusterBinding", SAMPLE_BINDING, "Ready"), ("rlp", "ResourceLeasingPolicy", SAMPLE_POLICY, "Inactive")],
)
async def test_status_is_a_subresource_with_known_phases(stored: ControlPlane, short: str, kind: str, spec: Json, phase: str) -> None:
    await stored.kubectl("create", "-f", "-", stdin=body(kind, spec, "stored"))
    patch = ("patch", short, "stored", "--subresource=status", "--type=merge", "-p")
    await stored.kubectl(*patch, json.dumps({"status": {"phase": phase, "observedGeneration": 1}}))
    with pytest.raises(CommandFailed) as refused:
        await stored.kubectl(*patch, json.dumps({"status": {"phase": "Confused"}}))
    assert "status.phase" in refused.value.stderr


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}


async def columns(cluster: ControlPlane, kind: str, *options: str) -> dict[str, str]:
    """The cells of the object "stored" by their heads, as kubectl prints them."""
    return dict(tables(await cluster.kubectl("get", kind, "stored", *options))["stored"])


async def test_columns_of_a_binding_show_whether_it_works_and_why_not(stored: ControlPlane) -> None:
    await stored.kubectl("create", "-f", "-", stdin=body("ClusterBinding", SAMPLE_BINDING, "stored"))
    assert list(await columns(stored, "cb")) == ["NAME", "CLUSTERID", "PHASE", "READY", "CONNECTED", "AGE"]
    why = "Secret kubeocean-system/k does not exist"
    conditions = [condition("Connected", "Unknown", "Initializing", ""), condition("Ready", "False", "ValidationFailed", why)]
    status = json.dumps({"status": {"phase": "Failed", "conditions": conditions}})
    await stored.kubectl("patch", "cb", "stored", "--subresource=status", "--type=merge", "-p", status)
    found = await columns(stored, "cb", "-o", "wide")
    del found["AGE"]
    assert found == {
        "NAME": "stored",
        "CLUSTERID": "c1",
        "PHASE": "Failed",
        "READY": "False",
        "CONNECTED": "Unknown",
        "MOUNT NAMESPACE": "kubeocean-worker",
        "SECRET": "k",
        "REASON": "ValidationFailed",
        "MESSAGE": why,
    }


async def test_columns_of_a_policy_show_what_it_leases_and_until_when(stored: ControlPlane) -> None:
    await stored.kubectl("create", "-f", "-", stdin=body("ResourceLeasingPolicy", SAMPLE_POLICY, "stored"))
    assert list(await columns(stored, "rlp")) == ["NAME", "CLUSTER", "PHASE", "ACTIVE", "NODES", "NEXT EDGE", "AGE"]
    status: Json = {"phase": "Active", "activeTimeWindow": True, "decidingNodes": 3, "nextEdge": "2026-01-05T17:00:00Z"}
    status |= {"leased": {"cpu": "20", "memory": "8Gi"}, "timeZone": "UTC"}
    active, valid = condition("Active", "True", "ActiveTimeWindow", "open"), condition("Valid", "True", "ValidationPassed", "valid")
    status["conditions"] = [active, valid]
    await stored.kubectl("patch", "rlp", "stored", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    found = await columns(stored, "rlp", "-o", "wide")
    del found["AGE"]
    assert found == {
        "NAME": "stored",
        "CLUSTER": "demo",
        "PHASE": "Active",
        "ACTIVE": "true",
        "NODES": "3",
        "NEXT EDGE": "2026-01-05T17:00:00Z",
        "PRIORITY": "0",
        "LEASED CPU": "20",
        "LEASED MEMORY": "8Gi",
        "ZONE": "UTC",
        "MESSAGE": "valid",
    }


async def test_the_api_server_shows_descriptions_and_defaults(cluster: ControlPlane) -> None:
    explained = await cluster.kubectl("explain", "clusterbinding.status.conditions.message")
    assert "with the field and the remedy" in explained
    made = await cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=body("ClusterBinding", SAMPLE_BINDING))
    flags = ("disableNodeDefaultTaint", "runningDaemonsetByDefault", "directScheduling", "allowInsecureWorker")
    assert json.loads(made)["spec"] == {**SAMPLE_BINDING, **dict.fromkeys(flags, False)}
    made = await cluster.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=body("ResourceLeasingPolicy", {"cluster": "demo"})
    )
    numbers = dict.fromkeys(("priority", "gracefulReclaimPeriodSeconds"), 0)
    assert json.loads(made)["spec"] == {"cluster": "demo", "forceReclaim": False, "allowOutOfWindowPods": False, **numbers}
