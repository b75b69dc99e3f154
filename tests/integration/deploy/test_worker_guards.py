"""The identity in a worker cluster, by its real token: its rights are enough for what it does, and no lender's limit can be lifted by them.

Invariant: every write here is a dry run but those of the fixture; each refusal is one of an admission policy, not of RBAC.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from kubeocean.commands.identity import Credentials, connection_from_here
from kubeocean.manager.checks import accepted_trials, unguarded
from kubeocean.model import keys
from kubeocean.model.crds import POLICIES, definition
from kubeocean.policies.reconciler import claimed
from kubeocean.rbac import permissions
from kubeocean.rbac.guards import trials
from tests.support.bound import delete, established
from tests.support.program import eventually
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.objects import NAMESPACES, NODES, PODS, PRIORITYCLASSES, PVS, SECRETS
from vkubelet.client.connection import load_connection
from vkubelet.client.rest import Client, PatchKind
from vkubelet.errors import Forbidden
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.cluster.processes import run
from vkubelet.testing.fixtures import run_apart

CHART = Path(__file__).parents[3] / "deploy" / "charts" / "kubeocean-worker"
Body = dict[str, Any]
GUARDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@frozen
class Lender:
    """A worker with the chart installed for `space`; `hub` is a client with the token that goes to the computing cluster."""

    plane: ControlPlane
    space: str
    hub: Client

    async def refuses(self, write: Any) -> str:
        """The message of the admission policy. Raises AssertionError when the write is accepted or refused by something else."""
        with pytest.raises(Forbidden) as refused:
            await write
        assert "ValidatingAdmissionPolicy" in refused.value.message, refused.value
        return str(refused.value.message)


async def chart(plane: ControlPlane, space: str, *values: str) -> list[Body]:
    helm = (await plane.site.binaries.ensure(["helm"]))["helm"]
    flags = (f"namespace.name={space}", "crds.install=false", "priorityClass.create=false", "policyLabel.enabled=true", *values)
    text = await run(str(helm), "template", space, str(CHART), *(f"--set={flag}" for flag in flags))
    return [body for body in decode_yaml_documents(text) if body]


async def apply(plane: ControlPlane, bodies: list[Body]) -> str:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    await plane.kubectl("apply", "--filename", "-", stdin=text)
    return text


def policy(space: str) -> Body:
    limits = [{"resource": "cpu", "percent": 50}]
    spec = {"cluster": "nobody", "resourceLimits": limits}
    return {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": {"name": space}, "spec": spec}


@frozen
class Installed:
    """The chart in a worker; `applied` is all that was made."""

    space: str
    token: str
    applied: str

    @classmethod
    async def on(cls, plane: ControlPlane) -> Installed:
        space = await plane.namespace("lender")
        await plane.kubectl("apply", "-f", "-", stdin=definition(POLICIES))
        await eventually(lambda: established(plane, f"crd/{POLICIES}"), "the CRD is established")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": space}}
        applied = await apply(plane, [*await chart(plane, space), policy(space), node])
        return cls(space, (await plane.kubectl("create", "token", permissions.SYNCER, "-n", space)).strip(), applied)

    async def remove_from(self, plane: ControlPlane) -> None:
        await plane.kubectl("delete", "--ignore-not-found", "--wait=false", "--filename", "-", stdin=self.applied)


@asynccontextmanager
async def in_force(plane: ControlPlane, installed: Installed) -> AsyncIterator[Lender]:
    connection = await load_connection(kubeconfig=plane.kubeconfig)
    identity, space = Credentials(installed.token, plane.ca.read_bytes()), installed.space
    async with Client(connection_from_here(connection, identity, namespace=space)) as hub:
        made = Lender(plane, space, hub.dry_run())

        async def holds() -> bool:
            return not await accepted_trials(made.hub, trials(space)) and not await any_label(made)

        await eventually(holds, "the admission policies are in force", seconds=60, every=0.3)
        yield made


@pytest.fixture(scope="module")
def installed(worker: ControlPlane) -> Iterator[Installed]:
    made = run_apart(Installed.on(worker))
    yield made
    run_apart(made.remove_from(worker))


@pytest.fixture
async def lender(worker: ControlPlane, installed: Installed) -> AsyncIterator[Lender]:
    """For tests that leave it as it was."""
    async with in_force(worker, installed) as made:
        yield made


@pytest.fixture
async def lender_to_change(worker: ControlPlane) -> AsyncIterator[Lender]:
    installed = await Installed.on(worker)
    async with in_force(worker, installed) as made:
        yield made
    await installed.remove_from(worker)


async def any_label(lender: Lender) -> bool:
    """A guard that has no trial of its own is not in force yet: an API server learns of each at a time of its own."""
    accepted = 0
    for resource in (NODES, POLICIES):
        with suppress(Forbidden):
            await lender.hub.patch(resource, lender.space, {"metadata": {"labels": {"other": "label"}}}, kind=PatchKind.MERGE)
            accepted += 1
    return accepted > 0


POLICY_CHANGES: dict[str, Body] = {
    "amount": {"spec": {"resourceLimits": [{"resource": "cpu", "percent": 100}]}},
    "no-limit": {"spec": {"resourceLimits": None}},
    "out-of-window": {"spec": {"allowOutOfWindowPods": True}},
    "window": {"spec": {"timeWindows": [{"start": "00:00", "end": "24:00"}]}},
    "cluster": {"spec": {"cluster": "another"}},
    "label": {"metadata": {"labels": {"a": "b"}}},
    "annotation": {"metadata": {"annotations": {"a": "b"}}},
    "owner": {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "1"}]}},
    "finalizer": {"metadata": {"finalizers": ["example.com/theirs"]}},
}
NAMESPACE_CHANGES: dict[str, Body] = {
    "pod-security": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    "no-pod-security": {"labels": {"pod-security.kubernetes.io/enforce": None}},
    "volume-sources": {"annotations": {keys.ALLOWED_VOLUMES: "hostPath"}},
    "finalizer": {"finalizers": ["example.com/theirs"]},
}


async def test_a_policy_keeps_what_its_owner_wrote_and_takes_claims_and_status(lender: Lender) -> None:
    for name, change in POLICY_CHANGES.items():
        said = await lender.refuses(lender.hub.patch(POLICIES, lender.space, change, kind=PatchKind.MERGE))
        assert "only finalizers" in said, name
    ours = claimed([], keys.Owner("hub", "one"))
    claim = {"metadata": {"finalizers": ours}}
    assert (await lender.hub.patch(POLICIES, lender.space, claim, kind=PatchKind.MERGE)).metadata.finalizers == ours
    status = {"status": {"phase": "Active"}}
    await lender.hub.patch(POLICIES, lender.space, status, subresource="status", kind=PatchKind.MERGE)


async def test_the_mount_namespace_keeps_its_limits_and_takes_the_owner_mark(lender: Lender) -> None:
    for change in NAMESPACE_CHANGES.values():
        said = await lender.refuses(lender.hub.patch(NAMESPACES, lender.space, {"metadata": change}, kind=PatchKind.MERGE))
        assert keys.MOUNT_OWNER in said
    mark = {"metadata": {"annotations": {keys.MOUNT_OWNER: "one-abc"}}}
    assert (await lender.hub.patch(NAMESPACES, lender.space, mark, kind=PatchKind.MERGE)).metadata.annotations[keys.MOUNT_OWNER]


async def test_a_node_takes_the_policy_label_alone(lender: Lender) -> None:
    for change in (
        {"metadata": {"labels": {"pool": "x"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    ):
        await lender.refuses(lender.hub.patch(NODES, lender.space, change))
    await lender.hub.patch(NODES, lender.space, {"metadata": {"labels": {keys.POLICY_APPLIED: "half"}}})


def pod(space: str, **spec: Any) -> Body:
    body = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "example.invalid/x"}], **spec}
    return {"metadata": {"generateName": "p-", "namespace": space}, "spec": body}


async def test_pods_have_no_token_of_the_worker_and_do_not_preempt(lender: Lender) -> None:
    token = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    for spec in ({"automountServiceAccountToken": True}, {"volumes": [token]}, {"priorityClassName": "system-cluster-critical"}):
        await lender.refuses(lender.hub.create(PODS, pod(lender.space, **spec)))
    for spec in ({"hostNetwork": True}, {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}):
        with pytest.raises(Forbidden, match="PodSecurity"):
            await lender.hub.create(PODS, pod(lender.space, **spec))
    await lender.hub.create(PODS, pod(lender.space))


async def test_secrets_of_the_mount_namespace_become_no_tokens(lender: Lender) -> None:
    account = {keys.OWNER: "x", "kubernetes.io/service-account.name": permissions.SYNCER}
    metadata = {"generateName": "s-", "namespace": lender.space, "annotations": account}
    await lender.refuses(lender.hub.create(SECRETS, {"metadata": metadata, "type": "kubernetes.io/service-account-token"}))
    await lender.hub.create(SECRETS, {"metadata": metadata, "type": "Opaque", "stringData": {"a": "b"}})
    await lender.hub.create(SECRETS, {"metadata": metadata, "stringData": {"a": "b"}})


async def test_a_mount_namespace_that_is_deleted_leaves_nobody_elses_volumes_refused(lender_to_change: Lender) -> None:
    lender = lender_to_change
    await lender.plane.kubectl("delete", "namespace", lender.space, "--wait=true")
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"of-{lender.space}"}}
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "hostPath": {"path": "/srv"}}
    text = json.dumps({**volume, "spec": spec})
    # The API server learns of the end of the namespace at a time of its own.
    for _ in range(20):
        await lender.plane.kubectl("create", "--dry-run=server", "--filename", "-", stdin=text)
        await asyncio.sleep(0.1)


def priority_class(name: str = keys.DEFAULT_PRIORITY_CLASS, **fields: Any) -> Body:
    return {"metadata": {"name": name}, "value": keys.DEFAULT_PRIORITY, "globalDefault": False, **fields}


async def test_no_priority_class_but_the_one_of_leased_pods_is_created(lender: Lender) -> None:
    for body in (priority_class("other"), priority_class(value=5), priority_class(globalDefault=True)):
        await lender.refuses(lender.hub.create(PRIORITYCLASSES, body))
    await lender.hub.create(PRIORITYCLASSES, priority_class())


def volume(space: str, *, claim: str = "", labels: Body | None = None, reclaim: str = "Retain", **source: Any) -> Body:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": reclaim,
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim or space, "name": "data"},
        **(source or {"nfs": {"server": "nfs", "path": "/"}}),
    }
    marks = {keys.MANAGED_BY: keys.MANAGED} if labels is None else labels
    return {"metadata": {"generateName": "v-", "labels": marks}, "spec": spec}


def csi(namespace: str) -> Body:
    return {"driver": "d", "volumeHandle": "h", "nodePublishSecretRef": {"name": "s", "namespace": namespace}}


async def test_volumes_are_for_claims_of_the_mount_namespace_and_lead_to_no_machine(lender: Lender) -> None:
    space = lender.space
    for body in (
        volume(space, claim="default"),
        volume(space, labels={}),
        volume(space, reclaim="Delete"),
        volume(space, hostPath={"path": "/"}),
        volume(space, csi=csi("kube-system")),
        volume(space, azureFile={"shareName": "s", "secretName": "x", "secretNamespace": "kube-system"}),
    ):
        await lender.refuses(lender.hub.create(PVS, body))
    await lender.hub.create(PVS, volume(space))
    await lender.hub.create(PVS, volume(space, csi=csi(space)))


async def test_volumes_of_others_are_neither_changed_nor_deleted(lender: Lender) -> None:
    name = f"pv-{lender.space}"
    theirs = {"apiVersion": "v1", "kind": "PersistentVolume", **volume(lender.space, labels={}, claim="default")}
    theirs["metadata"] = {"name": name}
    await apply(lender.plane, [theirs])
    try:
        await lender.refuses(lender.hub.delete(PVS, name))
        take = {"metadata": {"labels": {keys.MANAGED_BY: keys.MANAGED}}, "spec": {"claimRef": {"namespace": lender.space}}}
        await lender.refuses(lender.hub.patch(PVS, name, take, kind=PatchKind.MERGE))
    finally:
        await delete(lender.plane, "pv", name, "--wait=false")


@asynccontextmanager
async def there_already(lender: Lender, body: Body) -> AsyncIterator[str]:
    """A volume that the worker's owner sees; its name."""
    name = f"pv-{lender.space}"
    await apply(lender.plane, [{"apiVersion": "v1", "kind": "PersistentVolume", **body, "metadata": {**body["metadata"], "name": name}}])
    try:
        yield name
    finally:
        await delete(lender.plane, "pv", name, "--wait=false")


async def test_volumes_of_another_binding_are_neither_taken_nor_deleted(lender: Lender) -> None:
    theirs = volume(lender.space, claim="default")
    del theirs["metadata"]["generateName"]
    async with there_already(lender, theirs) as name:
        await lender.refuses(lender.hub.delete(PVS, name))
        take = {"spec": {"claimRef": {"namespace": lender.space}}}
        await lender.refuses(lender.hub.patch(PVS, name, take, kind=PatchKind.MERGE))


@pytest.mark.parametrize("source", ["csi", "hostPath"])
async def test_volumes_of_an_earlier_kubeocean_are_taken_over_and_deleted(lender: Lender, source: str) -> None:
    """It copied them without a claim, with Secrets of the hub's namespaces, and from paths of machines."""
    earlier = volume(lender.space, **({"csi": csi("shop")} if source == "csi" else {"hostPath": {"path": "/srv"}}))
    del earlier["metadata"]["generateName"], earlier["spec"]["claimRef"]
    async with there_already(lender, earlier) as name:
        mark = {"metadata": {"labels": {keys.OWNER: "one-abc"}}}
        await lender.hub.patch(PVS, name, mark, kind=PatchKind.MERGE)
        await lender.hub.patch(PVS, name, {"spec": {"capacity": {"storage": "2Gi"}}}, kind=PatchKind.MERGE)
        await lender.refuses(
            lender.hub.patch(PVS, name, {"spec": {"claimRef": {"namespace": "default", "name": "c"}}}, kind=PatchKind.MERGE)
        )
        await lender.hub.delete(PVS, name)


async def test_the_owner_allows_a_source_by_the_annotation_of_the_namespace(lender: Lender) -> None:
    where = ("annotate", "namespace", lender.space, "--overwrite")
    await lender.plane.kubectl(*where, f"{keys.ALLOWED_VOLUMES}=local, hostPath")

    async def allowed() -> bool:
        try:
            await lender.hub.create(PVS, volume(lender.space, hostPath={"path": "/srv"}))
        except Forbidden:
            return False
        return True

    await eventually(allowed, "the annotation is in force", every=0.3)
    await lender.plane.kubectl(*where, f"{keys.ALLOWED_VOLUMES}=local")

    async def refused() -> bool:
        return not await allowed()

    await eventually(refused, "the annotation without the source is in force", every=0.3)


async def test_webhook_of_the_worker_that_fails_leaves_open_what_is_refused(lender: Lender) -> None:
    """It is no failure of the connection, which would keep the binding from being served."""
    hook: Body = {
        "name": "broken.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": lender.space}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    body = {**kind, "metadata": {"name": lender.space}, "webhooks": [hook]}
    await apply(lender.plane, [body])
    try:

        async def open_question() -> bool:
            return await unguarded(lender.hub, lender.space) is None

        await eventually(open_question, "the webhook is called", every=0.3)
    finally:
        await lender.plane.kubectl("delete", "mutatingwebhookconfiguration", lender.space)
    assert not await unguarded(lender.hub, lender.space)


async def test_without_the_policies_each_trial_says_what_the_hub_gains(lender_to_change: Lender) -> None:
    lender = lender_to_change
    bodies = [body for body in await chart(lender.plane, lender.space) if body["kind"] in GUARDS]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    await lender.plane.kubectl("delete", "--filename", "-", stdin=text)
    await lender.plane.kubectl("label", "namespace", lender.space, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    expected = {trial.gains for trial in trials(lender.space)}

    async def gained() -> bool:
        return set(await accepted_trials(lender.hub, trials(lender.space))) == expected

    await eventually(gained, "each trial is accepted", seconds=60, every=0.3)
