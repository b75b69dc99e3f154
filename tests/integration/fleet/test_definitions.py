"""The definitions of the kinds of a fleet, judged by a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import pytest

from fleet.api.resources import CLUSTER_GROUP, FLEET_GROUP, INVENTORY_GROUP
from vkubelet.api.objects import Json
from vkubelet.testing.cluster import CommandFailed, ControlPlane

MANAGED, SET = f"{CLUSTER_GROUP}/v1", f"{CLUSTER_GROUP}/v1beta2"
IDENTITY = {"kind": "User", "name": "agent"}
SELECTOR = {"matchLabels": {"env": "prod"}}
CONFIG = {"resourceIdentifier": {"group": "", "resource": "configmaps", "namespace": "default", "name": "*"}}
AMOUNTS = ("AVAILABLE-CPU", "AVAILABLE-MEMORY", "ALLOCATABLE-CPU", "ALLOCATABLE-MEMORY")
CEL_RULE = {"condition": "Ready", "type": "CEL", "celExpressions": ["object.data.a == 'b'"], "message": "it is"}


def body(version: str, kind: str, name: str, spec: object, **metadata: object) -> Json:
    made: Json = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}}
    return made if spec is None else {**made, "spec": spec}


def managed(name: str, spec: object) -> Json:
    return body(MANAGED, "ManagedCluster", name, spec)


def member(name: str, spec: object, version: str = "v1beta1") -> Json:
    return body(f"{FLEET_GROUP}/{version}", "MemberCluster", name, spec)


def work(name: str, spec: object) -> Json:
    return body("work.open-cluster-management.io/v1", "ManifestWork", name, spec, namespace="default")


def addon(name: str, spec: object) -> Json:
    return body("addon.open-cluster-management.io/v1alpha1", "ManagedClusterAddOn", name, spec, namespace="default")


def profile(name: str, spec: object) -> Json:
    return body(f"{INVENTORY_GROUP}/v1alpha1", "ClusterProfile", name, spec, namespace="default")


def cluster_set(name: str, spec: object) -> Json:
    return body(SET, "ManagedClusterSet", name, spec)


ACCEPTED = [
    managed("empty", None),
    managed(
        "full",
        {
            "hubAcceptsClient": True,
            "leaseDurationSeconds": 30,
            "managedClusterClientConfigs": [{"url": "https://w1.example:6443", "caBundle": "QQ=="}],
            "taints": [
                {"key": "gpu", "value": "yes", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}
                for effect in ("NoSelect", "PreferNoSelect", "NoSelectIfNew")
            ],
        },
    ),
    cluster_set("plain", None),
    cluster_set(
        "chosen", {"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": SELECTOR}, "managedNamespaces": [{"name": "a"}]}
    ),
    body(SET, "ManagedClusterSetBinding", "plain", {"clusterSet": "plain"}, namespace="default"),
    body(f"{CLUSTER_GROUP}/v1alpha1", "ClusterClaim", "id.k8s.io", {"value": "abc"}),
    work("empty", {}),
    work(
        "full",
        {
            "workload": {"manifests": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b"}}]},
            "deleteOption": {"propagationPolicy": "SelectivelyOrphan", "ttlSecondsAfterFinished": 60},
            "executor": {"subject": {"type": "ServiceAccount", "serviceAccount": {"name": "a", "namespace": "b"}}},
            "manifestConfigs": [
                {
                    **CONFIG,
                    "conditionRules": [CEL_RULE, {"condition": "Available", "type": "WellKnownConditions"}],
                    "feedbackRules": [{"type": "JSONPaths", "jsonPaths": [{"name": "a", "path": ".data.a"}]}],
                    "updateStrategy": {"type": "ServerSideApply", "serverSideApply": {"ignoreFields": [{"condition": "OnSpokeChange"}]}},
                }
            ],
        },
    ),
    addon("tunnel", {"configs": [{"resource": "addondeploymentconfigs", "name": "a"}]}),
    member("user", {"identity": IDENTITY}),
    member("taints", {"identity": IDENTITY, "taints": [{"key": "a", "effect": "NoSchedule"}], "heartbeatPeriodSeconds": 600}),
    member("newer", {"identity": {"kind": "ServiceAccount", "name": "a", "namespace": "b"}}, "v1"),
    body(f"{FLEET_GROUP}/v1beta1", "InternalMemberCluster", "w1", {"state": "Join"}, namespace="default"),
    profile("w1", {"clusterManager": {"name": "KubeFleet"}, "displayName": "w1"}),
]
REFUSED = [
    (managed("effect", {"taints": [{"key": "a", "effect": "NoSchedule"}]}), "spec.taints[0].effect"),
    (managed("key", {"taints": [{"effect": "NoSelect"}]}), "spec.taints[0].key"),
    (managed("long-value", {"taints": [{"key": "a", "effect": "NoSelect", "value": "v" * 1025}]}), "spec.taints[0].value"),
    (managed("no-url", {"managedClusterClientConfigs": [{"caBundle": "QQ=="}]}), "spec.managedClusterClientConfigs[0].url"),
    (cluster_set("selector", {"clusterSelector": {"selectorType": "Other"}}), "spec.clusterSelector.selectorType"),
    (body(SET, "ManagedClusterSetBinding", "no-set", {"clusterSet": ""}, namespace="default"), "spec.clusterSet"),
    (body(f"{CLUSTER_GROUP}/v1alpha1", "ClusterClaim", "long-claim", {"value": "v" * 1025}), "spec.value"),
    (work("strategy", {"manifestConfigs": [{**CONFIG, "updateStrategy": {"type": "Replace"}}]}), "updateStrategy.type"),
    (work("rule", {"manifestConfigs": [{**CONFIG, "conditionRules": [{**CEL_RULE, "condition": ""}]}]}), "must name its condition"),
    (work("twice", {"manifestConfigs": [{**CONFIG, "conditionRules": [CEL_RULE, CEL_RULE]}]}), "Duplicate value"),
    (addon("long-namespace", {"installNamespace": "n" * 64}), "spec.installNamespace"),
    (member("no-identity", {}), "spec.identity"),
    (member("no-name", {"identity": {"kind": "User"}}), "spec.identity.name"),
    (member("m" * 64, {"identity": IDENTITY}), "fewer than 64 characters"),
    (member("period", {"identity": IDENTITY, "heartbeatPeriodSeconds": 601}), "spec.heartbeatPeriodSeconds"),
    (member("no-period", {"identity": IDENTITY, "heartbeatPeriodSeconds": 0}), "spec.heartbeatPeriodSeconds"),
    (member("taint", {"identity": IDENTITY, "taints": [{"key": "a", "effect": "NoSelect"}]}), "spec.taints[0].effect"),
    (member("many", {"identity": IDENTITY, "taints": [{"key": f"k{at}", "effect": "NoSchedule"} for at in range(101)]}), "spec.taints"),
    (body(f"{FLEET_GROUP}/v1beta1", "InternalMemberCluster", "stateless", {}, namespace="default"), "spec.state"),
    (profile("no-manager", {}), "spec.clusterManager"),
]


def listed(bodies: Sequence[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)})


@pytest.fixture
async def hub(fleet_hub: ControlPlane) -> AsyncIterator[ControlPlane]:
    """For tests that store objects named "stored"."""
    yield fleet_hub
    await fleet_hub.kubectl("delete", "managedclusters,memberclusters", "stored", "--ignore-not-found")
    await fleet_hub.kubectl("delete", "-n", "default", "clusterprofiles", "stored", "--ignore-not-found")


async def create(hub: ControlPlane, *bodies: Json, dry: bool = False) -> list[Json]:
    """Creates objects; returns them as stored."""
    flags = ["--dry-run=server"] if dry else []
    text, decoder, made = await hub.kubectl("create", *flags, "-o", "json", "-f", "-", stdin=listed(bodies)), json.JSONDecoder(), []
    # kubectl prints one document after the other.
    while text := text.strip():
        found, end = decoder.raw_decode(text)
        made.append(found)
        text = text[end:]
    return made


async def test_f_11_objects_of_other_clients_are_accepted(fleet_hub: ControlPlane) -> None:
    made = await create(fleet_hub, *ACCEPTED, dry=True)
    assert [(each["kind"], each["metadata"]["name"]) for each in made] == [(each["kind"], each["metadata"]["name"]) for each in ACCEPTED]


async def test_f_11_no_field_of_these_objects_is_dropped(fleet_hub: ControlPlane) -> None:
    def kept(sent: object, stored: object, path: str) -> None:
        if isinstance(sent, dict) and isinstance(stored, dict):
            for key, value in sent.items():
                kept(value, stored.get(key), f"{path}.{key}")
        elif isinstance(sent, list) and isinstance(stored, list):
            assert len(sent) == len(stored), path
            for at, (one, other) in enumerate(zip(sent, stored, strict=True)):
                kept(one, other, f"{path}[{at}]")
        else:
            assert sent == stored, path

    for sent, stored in zip(ACCEPTED, await create(fleet_hub, *ACCEPTED, dry=True), strict=True):
        kept(sent, stored, f"{sent['kind']}/{sent['metadata']['name']}")


async def test_f_11_objects_that_the_api_does_not_have_are_refused_by_their_field(fleet_hub: ControlPlane) -> None:
    flags = ("--dry-run=server", "--validate=false")
    with pytest.raises(CommandFailed) as refused:
        await fleet_hub.kubectl("create", *flags, "-f", "-", stdin=listed([each for each, _ in REFUSED]))
    lines = [line for line in refused.value.stderr.splitlines() if line.strip()]
    for sent, field in REFUSED:
        name = f'"{sent["metadata"]["name"]}" is invalid'
        assert any(sent["kind"] in line and name in line and field in line for line in lines), (sent["kind"], name, field, lines)


async def test_f_11_absent_fields_get_the_defaults_of_the_api(fleet_hub: ControlPlane) -> None:
    bodies = (
        managed("a", {}),
        cluster_set("a", {}),
        member("a", {"identity": IDENTITY, "deleteOptions": {}}),
        addon("a", {}),
        work("a", {"deleteOption": {}}),
    )
    one, group, joined, added, prescribed = await create(fleet_hub, *bodies, dry=True)
    assert one["spec"] == {"leaseDurationSeconds": 60}
    assert group["spec"] == {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"}}
    assert joined["spec"] == {"identity": IDENTITY, "heartbeatPeriodSeconds": 60, "deleteOptions": {"validationMode": "Strict"}}
    assert added["spec"] == {"installNamespace": "open-cluster-management-agent-addon"}
    assert prescribed["spec"] == {"deleteOption": {"propagationPolicy": "Foreground"}}


async def test_f_11_a_member_of_either_version_is_the_same_in_the_other(hub: ControlPlane) -> None:
    spec = {"identity": IDENTITY, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}], "heartbeatPeriodSeconds": 15}
    for version, other in (("v1", "v1beta1"), ("v1beta1", "v1")):
        (made,) = await create(hub, member("stored", spec, version))
        found = json.loads(await hub.kubectl("get", f"memberclusters.{other}.{FLEET_GROUP}", "stored", "-o", "json"))
        assert found["apiVersion"] == f"{FLEET_GROUP}/{other}" and found["spec"] == made["spec"]
        assert found["metadata"]["uid"] == made["metadata"]["uid"]
        await hub.kubectl("delete", f"memberclusters.{other}.{FLEET_GROUP}", "stored")


async def test_f_11_conditions_of_several_managers_are_merged_by_their_type(hub: ControlPlane) -> None:
    await create(hub, managed("stored", {}))
    for type_ in ("HubAcceptedManagedCluster", "ManagedClusterJoined"):
        condition = {"type": type_, "status": "True", "reason": "Some", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        applied = {**managed("stored", None), "status": {"conditions": [condition]}}
        flags = ("--server-side", "--subresource=status", f"--field-manager={type_.lower()}")
        await hub.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(applied))
    found = json.loads(await hub.kubectl("get", "managedclusters", "stored", "-o", "json"))
    assert {each["type"] for each in found["status"]["conditions"]} == {"HubAcceptedManagedCluster", "ManagedClusterJoined"}


async def test_f_11_the_manager_of_a_profile_is_final(hub: ControlPlane) -> None:
    await create(hub, profile("stored", {"clusterManager": {"name": "KubeFleet"}}))
    with pytest.raises(CommandFailed) as refused:
        patch = json.dumps({"spec": {"clusterManager": {"name": "other"}}})
        await hub.kubectl("patch", "-n", "default", "clusterprofiles", "stored", "--type=merge", f"--patch={patch}")
    assert "spec.clusterManager cannot be changed" in refused.value.stderr


async def test_f_11_columns_show_what_the_records_report(hub: ControlPlane) -> None:
    await create(hub, member("stored", {"identity": IDENTITY}))
    usage = {"available": {"cpu": "3", "memory": "4Gi"}, "allocatable": {"cpu": "5", "memory": "6Gi"}}
    status = {
        "properties": {"kubernetes-fleet.io/node-count": {"value": "7", "observationTime": "2026-01-01T00:00:00Z"}},
        "resourceUsage": {**usage, "observationTime": "2026-01-01T00:00:00Z"},
    }
    patch = json.dumps({"status": status})
    await hub.kubectl("patch", "memberclusters", "stored", "--subresource=status", "--type=merge", f"--patch={patch}")
    header, row = (await hub.kubectl("get", "memberclusters", "stored")).splitlines()
    assert header.split() == ["NAME", "JOINED", "AGE", "MEMBER-AGENT-LAST-SEEN", "NODE-COUNT", *AMOUNTS]
    assert row.split()[-5:] == ["7", "3", "4Gi", "5", "6Gi"]
