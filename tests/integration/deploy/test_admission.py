"""The admission policies of the chart confine the process of a binding, also where its roles would let it.

Invariant: the identities here may do everything by RBAC, so whatever is refused is refused by the policies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from kubeocean.rbac import permissions
from tests.support.bound import delete
from tests.support.program import eventually
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.testing.cluster import CommandFailed, ControlPlane
from vkubelet.testing.cluster.processes import run
from vkubelet.testing.fixtures import run_apart

CHART = Path(__file__).parents[3] / "deploy" / "charts" / "kubeocean"
FAKE = permissions.keys.FAKE_NAMESPACE
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
ACCOUNTS, MAPS, ROOT = ("serviceaccounts", FAKE), "configmaps", "kube-root-ca.crt"
Body = dict[str, Any]


@frozen
class Confined:
    """A cluster with the policies for bindings whose processes run in `space`."""

    plane: ControlPlane
    space: str

    def identity(self, cluster: str) -> str:
        return f"system:serviceaccount:{self.space}:{permissions.syncer_name(cluster)}"

    async def may(self, *command: str, as_: str, body: Body | None = None) -> bool:
        """Whether the policies let it pass. Raises CommandFailed for any other refusal."""
        stdin = None if body is None else json.dumps(body)
        try:
            await self.plane.kubectl(f"--as={as_}", *command, *(["--filename", "-"] if body else []), stdin=stdin)
        except CommandFailed as error:
            if "ValidatingAdmissionPolicy" not in error.stderr:
                raise
            assert "the process of a binding" in error.stderr
            return False
        return True


@pytest.fixture(scope="module")
def confined(bare_hub: ControlPlane) -> Iterator[Confined]:
    """Two identities, `one` and `two`, with all rights, and the policies in force."""

    async def install() -> tuple[Confined, str]:
        made = Confined(bare_hub, await bare_hub.namespace("confined"))
        helm = (await bare_hub.site.binaries.ensure(["helm"]))["helm"]
        values = (f"--set=namespace.name={made.space}", "--set=image.repository=kubeocean", "--set=admissionPolicy.daemonSets=Deny")
        text = await run(str(helm), "template", "x", str(CHART), *values)
        policies = [body for body in decode_yaml_documents(text) if body and body["kind"] in POLICIES]
        stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": policies})
        await bare_hub.kubectl("apply", "--filename", "-", stdin=stdin)
        users = [f"--user={made.identity(name)}" for name in ("one", "two")]
        await bare_hub.kubectl("create", "clusterrolebinding", made.space, "--clusterrole=cluster-admin", *users)
        await bare_hub.kubectl("apply", "--filename", "-", stdin=json.dumps({**node(FAKE), "kind": "Namespace"}))

        async def usable() -> bool:
            names = "jsonpath={.items[*].metadata.name}"
            accounts, maps = [
                await bare_hub.kubectl("get", what, "-n", where, "-o", names) for what, where in (ACCOUNTS, (MAPS, made.space))
            ]
            return "default" in accounts and ROOT in maps

        await eventually(usable, "the namespaces have what every namespace has", every=0.3)
        await eventually(lambda: in_force(made), "the policies are in force", seconds=60, every=0.3)
        return made, stdin

    made, stdin = run_apart(install())
    yield made
    run_apart(bare_hub.kubectl("delete", "--ignore-not-found", "--filename", "-", stdin=stdin))
    run_apart(bare_hub.kubectl("delete", "clusterrolebinding", made.space, "--ignore-not-found"))


async def in_force(confined: Confined) -> bool:
    """Each of the policies: the API server need not learn of all at once."""
    one, dry = confined.identity("one"), "--dry-run=server"
    bodies = (node("other"), lease("other"), pod("port", FAKE, "real-1"))
    let = [await confined.may("create", dry, as_=one, body=body) for body in bodies]
    let.append(await confined.may("create", "token", "default", "-n", confined.space, as_=one))
    let.append(await confined.may("patch", MAPS, ROOT, "-n", confined.space, dry, '--patch={"data":{"a":"b"}}', as_=one))
    return not any(let)


def node(name: str) -> Body:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def lease(name: str, namespace: str = "kube-node-lease") -> Body:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": namespace}}


def pod(name: str, namespace: str, on: str) -> Body:
    """Bound to a node that does not exist; another one for each that is made, as the cluster collects pods of nodes that it has missed for
    some time.
    """
    containers = [{"name": "main", "image": "example.invalid/never-pulled"}]
    spec = {"nodeName": on, "containers": containers, "automountServiceAccountToken": False, "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


LABEL = '--patch={"metadata":{"labels":{"touched":"yes"}}}'
PHASE = '--patch={"status":{"phase":"Running"}}'


async def test_nodes_of_others_are_not_written(confined: Confined) -> None:
    one, two = confined.identity("one"), confined.identity("two")
    assert await confined.may("create", as_=one, body=node("vnode-one-a"))
    try:
        for other in ("real-1", "vnode-two-a", "vnode-onetwo-a"):
            assert not await confined.may("create", "--dry-run=server", as_=one, body=node(other))
        for command in (("patch", "node", "vnode-one-a", LABEL), ("patch", "node", "vnode-one-a", "--subresource=status", LABEL)):
            assert await confined.may(*command, as_=one) and not await confined.may(*command, as_=two)
        assert not await confined.may("delete", "node", "vnode-one-a", as_=two)
        assert await confined.may("delete", "node", "vnode-one-a", as_=one)
    finally:
        await confined.plane.kubectl("delete", "node", "vnode-one-a", "--ignore-not-found")
    drivers = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "real-1"}, "spec": {"drivers": []}}
    assert not await confined.may("create", "--dry-run=server", as_=one, body=drivers)


async def test_leases_of_others_are_not_written(confined: Confined) -> None:
    one, dry = confined.identity("one"), ("create", "--dry-run=server")
    for name, namespace, fits in (
        ("vnode-one-a", "kube-node-lease", True),
        ("real-1", "kube-node-lease", False),
        ("vnode-two-a", "kube-node-lease", False),
        (permissions.syncer_name("one"), confined.space, True),
        (permissions.syncer_name("two"), confined.space, False),
        (f"{permissions.syncer_name('one')}.shard-3", confined.space, True),
        (f"{permissions.syncer_name('two')}.shard-3", confined.space, False),
        (f"{permissions.syncer_name('one')}-2", confined.space, False),
        ("vnode-one-a", "default", False),
    ):
        assert await confined.may(*dry, as_=one, body=lease(name, namespace)) is fits, (name, namespace)


async def test_pods_on_nodes_of_others_are_not_written(confined: Confined) -> None:
    one, two, space = confined.identity("one"), confined.identity("two"), confined.space
    await confined.plane.kubectl("create", "--filename", "-", stdin=json.dumps(pod("web", space, "vnode-one-web")))
    for command in (("patch", "pod", "web", LABEL), ("patch", "pod", "web", "--subresource=status", PHASE), ("delete", "pod", "web")):
        where = ("-n", space, "--dry-run=server")
        assert await confined.may(*command, *where, as_=one) and not await confined.may(*command, *where, as_=two)
    dry = ("create", "--dry-run=server")
    assert await confined.may(*dry, as_=one, body=pod("port", FAKE, "vnode-one-a"))
    assert not await confined.may(*dry, as_=one, body=pod("port", FAKE, "real-1"))
    assert not await confined.may(*dry, as_=one, body=pod("port", space, "vnode-one-a"))
    await confined.plane.kubectl("delete", "pod", "web", "-n", space, "--ignore-not-found", "--grace-period=0", "--force")


async def test_tokens_are_bound_to_pods_and_data_is_left_alone(confined: Confined) -> None:
    one, space = confined.identity("one"), confined.space
    await confined.plane.kubectl("create", "--filename", "-", stdin=json.dumps(pod("bound", space, "vnode-one-bound")))
    assert not await confined.may("create", "token", "default", "-n", space, as_=one)
    assert await confined.may("create", "token", "default", "-n", space, "--bound-object-kind=Pod", "--bound-object-name=bound", as_=one)
    await confined.plane.kubectl("delete", "pod", "bound", "-n", space, "--ignore-not-found", "--grace-period=0", "--force")
    await confined.plane.kubectl("create", "configmap", "settings", "-n", space, "--from-literal=a=b")
    await confined.plane.kubectl("create", "secret", "generic", "password", "-n", space, "--from-literal=a=b")
    for kind, name, value in (("configmap", "settings", "c"), ("secret", "password", "Yw==")):
        assert await confined.may("patch", kind, name, "-n", space, LABEL, as_=one)
        assert not await confined.may("patch", kind, name, "-n", space, f'--patch={{"data":{{"a":"{value}"}}}}', as_=one)


async def test_no_part_of_what_pods_refer_to_is_changed_but_its_marks(confined: Confined) -> None:
    one, space = confined.identity("one"), confined.space
    # No volume fits the claim: the spec of a bound one is immutable for everybody.
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    volume = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "nfs": {"server": "s", "path": "/"}}
    bodies: list[Body] = [
        {"kind": "ConfigMap", "metadata": {"name": "all", "namespace": space}, "data": {"a": "b"}},
        {"kind": "Secret", "metadata": {"name": "all", "namespace": space}, "stringData": {"a": "b"}},
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "all", "namespace": space}, "spec": claim},
        {"kind": "PersistentVolume", "metadata": {"name": f"all-{space}"}, "spec": volume},
    ]
    for body in bodies:
        await confined.plane.kubectl("create", "--filename", "-", stdin=json.dumps({"apiVersion": "v1", **body}))
    owner = {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "1"}]}}
    changes: list[tuple[str, Body]] = [
        ("configmap", {"binaryData": {"c": "ZA=="}}),
        ("configmap", {"immutable": True}),
        ("configmap", owner),
        ("secret", {"immutable": True}),
        ("secret", owner),
        ("pvc", {"spec": {"volumeName": "another"}}),
        ("pv", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        ("pv", {"spec": {"capacity": {"storage": "9Gi"}}}),
    ]
    try:
        for kind, change in changes:
            where = (kind, f"all-{space}") if kind == "pv" else (kind, "all", "-n", space)
            assert not await confined.may("patch", *where, "--type=merge", "-p", json.dumps(change), as_=one), (kind, change)
            assert await confined.may("patch", *where, LABEL, as_=one), kind
    finally:
        await delete(confined.plane, "pv", f"all-{space}", "--wait=false")


EXCLUDED = {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}
OTHER = {"key": "zone", "operator": "In", "values": ["a"]}
ALL = {"operator": "Exists"}


def required(*terms: list[Body]) -> Body:
    selector = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}}


@pytest.mark.parametrize(
    ("spec", "annotations", "accepted"),
    [
        ({}, {}, True),
        ({"tolerations": [{"key": "other", "operator": "Exists"}]}, {}, True),
        ({"tolerations": [ALL]}, {}, False),
        ({"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}, {}, False),
        ({"tolerations": [{"key": "kubeocean.io/vnode", "operator": "Exists"}]}, {}, False),
        ({"tolerations": [ALL], **required([EXCLUDED])}, {}, True),
        ({"tolerations": [ALL], **required([OTHER], [EXCLUDED])}, {}, False),
        ({"tolerations": [ALL], **required([OTHER, EXCLUDED])}, {}, True),
        ({"tolerations": [ALL], "nodeSelector": {"type": "real"}}, {}, True),
        ({"tolerations": [ALL], "nodeSelector": {"pool": "real"}}, {}, False),
        ({"tolerations": [ALL]}, {"kubeocean.io/running-daemonset": "true"}, True),
        ({"tolerations": [ALL]}, {"kubeocean.io/running-daemonset": "false"}, False),
    ],
)
async def test_a_daemonset_that_would_stall_on_virtual_nodes_is_refused(
    confined: Confined, spec: Body, annotations: Body, accepted: bool
) -> None:
    labels = {"app": "d"}
    pod_spec = {"containers": [{"name": "main", "image": "example.invalid/x"}], **spec}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod_spec}
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d", "namespace": confined.space},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }

    async def accepts() -> bool:
        try:
            await confined.plane.kubectl("create", "--dry-run=server", "--filename", "-", stdin=json.dumps(body))
        except CommandFailed as error:
            assert "type NotIn [virtual-kubelet]" in error.stderr
            return False
        return True

    async def as_expected() -> bool:
        return await accepts() is accepted

    await eventually(as_expected, f"accepted: {accepted}", seconds=30, every=0.3)


async def test_everybody_else_writes_as_before(confined: Confined) -> None:
    await confined.plane.kubectl("create", "--dry-run=server", "--filename", "-", stdin=json.dumps(node("real-1")))
    manager = f"system:serviceaccount:{confined.space}:kubeocean-manager"
    with pytest.raises(CommandFailed, match="forbidden") as refused:
        await confined.may("create", as_=manager, body=node("real-1"))
    assert "ValidatingAdmissionPolicy" not in refused.value.stderr
