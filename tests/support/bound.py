"""A worker cluster bound to a hub, as its two owners would do it, with the rights of `deploy/samples` and nothing more.

Invariant: every name carries the scenario's own, so that scenarios share clusters without meeting.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

from tests.support.objects import Deletion, Question, objects_of
from tests.support.program import PATIENCE, Program, eventually
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.cluster.processes import CommandFailed
from vkubelet.testing.fixtures import run_apart

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "samples"
CRDS = ROOT / "kubeocean" / "manifests"
SYSTEM = "kubeocean-system"
FAKE = "kubeocean-fake"

CLUSTER_BINDING = "kubeocean.io/cluster-binding"
"""Label of the virtual nodes of a binding."""
_LINES = 30
"""Lines of each part of the state of a pod in the message of a failed test."""
_BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_ROLES = ("Role", "ClusterRole")

Body = dict[str, Any]


async def apply(cluster: ControlPlane, *bodies: Mapping[str, Any]) -> None:
    """`kubectl apply` of bodies."""
    left = [body for body in bodies if not await objects_of(cluster).apply(body)]
    if left:
        await cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": left}))


async def get(cluster: ControlPlane, *args: str) -> Any:
    """`kubectl get ARGS` decoded; a missing object is None."""
    question = Question.of(args)
    if question is not None:
        return await objects_of(cluster).get(question)
    out = await cluster.kubectl("get", *args, "-o", "json", "--ignore-not-found")
    return json.loads(out) if out.strip() else None


async def delete(cluster: ControlPlane, *args: str) -> None:
    """`kubectl delete ARGS`."""
    deletions = [Deletion.of((kind, *args[1:])) for kind in args[0].split(",")]
    known = [each for each in deletions if each is not None]
    if len(known) < len(deletions):
        await cluster.kubectl("delete", *args)
        return
    for each in known:
        await objects_of(cluster).delete(each)


_OWNERS_OF_PODS = "horizontalpodautoscalers,cronjobs,jobs,deployments,statefulsets,daemonsets,replicasets"


async def vacate(cluster: ControlPlane, namespace: str, *, workloads: bool = False) -> None:
    """Delete at once the pods of a namespace, and before them the `workloads` that would create others. It stays itself until its cluster
    ends: to delete it takes 150 requests, two for each kind of object, twice that while pods end in it; of a control plane with real nodes
    these were two in five."""
    kinds = f"{_OWNERS_OF_PODS},pods" if workloads else "pods"
    await delete(cluster, kinds, "--all", "-n", namespace, "--force", "--grace-period=0", "--wait=false")


async def items(cluster: ControlPlane, *args: str) -> list[Any]:
    """The items of `kubectl get ARGS`, as a list that may be empty."""
    found = await get(cluster, *args)
    return list(found["items"]) if found else []


def roles_for(user: str, sample: str, *, name: str, namespaces: Mapping[str, str]) -> list[Body]:
    """The roles of a sample file, bound to a user instead of the ServiceAccount, under a name of its own."""
    bodies: list[Body] = []
    for body in decode_yaml_documents((SAMPLES / sample).read_text()):
        if body["kind"] not in (*_BINDINGS, *_ROLES):
            continue
        body = json.loads(_renamed(json.dumps(body), namespaces))
        body["metadata"]["name"] = f"{body['metadata']['name']}-{name}"
        if body["kind"] in _BINDINGS:
            body["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
            if body["roleRef"]["name"].startswith("kubeocean"):
                body["roleRef"]["name"] += f"-{name}"
        bodies.append(body)
    return bodies


def _renamed(text: str, namespaces: Mapping[str, str]) -> str:
    for old, new in namespaces.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return text


@frozen(kw_only=True)
class Bound:
    """One binding. `name` is that of the ClusterBinding, the clusterID, and part of everything else."""

    hub: ControlPlane
    worker: ControlPlane
    name: str
    directory: Path
    spec: Mapping[str, Any] = field(factory=dict)
    settings: Mapping[str, Any] = field(factory=dict)
    """Settings of the process, laid over the harness' own."""
    shows_usage: bool = False
    """The worker's owner has granted the optional right to read usage."""
    through: int = 0
    """Port of a line to the worker's API server; 0: without one."""
    way: Callable[[ControlPlane, str], Path] = lambda plane, user: plane.client_config(user)
    """Makes the kubeconfig by which our user reaches a cluster."""

    @property
    def mount(self) -> str:
        return f"mount-{self.name}"

    @property
    def user(self) -> str:
        """Our user in either cluster, by which the audit logs know us."""
        return f"kubeocean-{self.name}"

    @property
    def secret(self) -> str:
        return f"{self.name}-kubeconfig"

    def vnode(self, node: str) -> str:
        return f"vnode-{self.name}-{node}"

    def binding(self) -> Body:
        spec = {
            "clusterID": self.name,
            "secretRef": {"name": self.secret, "namespace": SYSTEM},
            "mountNamespace": self.mount,
            "apiServerAccess": {"host": self.hub.host_address, "port": self.hub.port},
            **self.spec,
        }
        return {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "metadata": {"name": self.name}, "spec": spec}

    def policy(self, name: str = "", **spec: Any) -> Body:
        metadata = {"name": name or f"all-of-{self.name}"}
        body = {"cluster": self.name, **spec}
        return {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "metadata": metadata, "spec": body}

    def kubeconfig_secret(self, kubeconfig: str | None = None) -> Body:
        text = kubeconfig if kubeconfig is not None else self.way(self.worker, self.user).read_text()
        if self.through and kubeconfig is None:
            text = text.replace(f":{self.worker.port}", f":{self.through}")
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.secret, "namespace": SYSTEM},
            "stringData": {"kubeconfig": text},
        }

    async def install_rights(self) -> None:
        """CRDs, namespaces and the narrow roles on both sides."""
        samples = ["worker-rbac.yaml", *(["worker-metrics-rbac.yaml"] if self.shows_usage else [])]
        mount = {"kubeocean-worker": self.mount}
        there = [role for sample in samples for role in roles_for(self.user, sample, name=self.name, namespaces=mount)]
        at_home = roles_for(self.user, "hub-rbac.yaml", name=self.name, namespaces={})
        await asyncio.gather(
            _define(self.hub, "clusterbindings.yaml", _namespace(SYSTEM), _namespace(FAKE), *at_home),
            _define(self.worker, "resourceleasingpolicies.yaml", _namespace(self.mount), *there),
        )

    async def install(self, *policies: Body) -> None:
        """Everything the two owners do; without a policy given, one that leases everything."""
        await self.install_rights()
        await asyncio.gather(apply(self.hub, self.kubeconfig_secret()), _apply_once_served(self.worker, *(policies or (self.policy(),))))
        await _apply_once_served(self.hub, self.binding())

    async def remove(self) -> None:
        """Take away what is cluster-wide once its process has ended; namespaces go with the cluster.

        A Node that stays is Ready until its Lease is old, and pods of later tests would be scheduled to it and never run.
        """
        await delete(self.worker, "resourceleasingpolicies", f"all-of-{self.name}", "--ignore-not-found", "--wait=false")
        await delete(self.hub, "clusterbinding", self.name, "--ignore-not-found", "--wait=false")
        left = await get(self.hub, "clusterbinding", self.name)
        if left is not None and left["metadata"].get("finalizers"):
            # Its process may just have removed it.
            await objects_of(self.hub).patch(Question("clusterbinding", self.name), {"metadata": {"finalizers": None}})
        await delete(self.hub, "nodes", "-l", f"{CLUSTER_BINDING}={self.name}", "--wait=false")

    @contextmanager
    def served(self, node: str) -> Iterator[Program]:
        """`kubeocean run` of an installed binding, from when the virtual node of `node` is Ready. Removes the binding at the end."""
        program = self.program()
        try:
            with program:
                run_apart(self.node_ready(node, by=[program]))
                yield program
        finally:
            run_apart(self.remove())

    def program(self) -> Program:
        """`kubeocean run`, not started."""
        settings = {
            "server": {"node_address": self.hub.host_address, "main_port": 0, "approve_own_csr": True},
            "health": {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"},
            "log": {"level": "DEBUG"},
            **self.settings,
            # Simulated pods have addresses that nothing answers, and tests send nothing to other machines.
            "provider": {"pod_network_probe_interval": 0.0, **self.settings.get("provider", {})},
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / f"{self.name}.yaml"
        config.write_text(yaml.safe_dump(settings))
        kubeconfig = self.way(self.hub, self.user)
        arguments = ("run", "--binding", self.name, "--config", str(config), "--kubeconfig", str(kubeconfig))
        return Program("kubeocean", *arguments, log=self.directory / f"{self.name}.log")

    async def node_ready(self, node: str, *, seconds: float = PATIENCE, by: Iterable[Program] = ()) -> Body:
        """Wait until the virtual node of a physical one is Ready, `by` these programs; its Node."""

        async def ready() -> Body | None:
            found: Body | None = await get(self.hub, "node", self.vnode(node))
            return found if found and condition(found, "Ready") == "True" else None

        out: Body = await eventually(ready, f"virtual node {self.vnode(node)} Ready", seconds=seconds, every=0.3, by=by)
        return out


async def established(cluster: ControlPlane, *crd: str) -> bool:
    """Whether `kubectl get CRD` shows an established one; `kubectl wait` gives up on one that has no conditions yet."""
    return condition(await get(cluster, *crd), "Established") == "True"


async def _define(cluster: ControlPlane, definition: str, *bodies: Body) -> None:
    """A definition of custom resources, and other objects."""
    wanted = decode_yaml((CRDS / definition).read_text())
    await apply(cluster, wanted)
    await eventually(lambda: established(cluster, "crd", wanted["metadata"]["name"]), f"{definition} is established")
    await apply(cluster, *bodies)


async def _apply_once_served(cluster: ControlPlane, *bodies: Mapping[str, Any]) -> None:
    """`kubectl apply` of custom resources: where their definition is new, discovery tells of it a moment after it is established."""

    async def applied() -> bool:
        try:
            await apply(cluster, *bodies)
        except CommandFailed as error:
            if "no matches for kind" in error.stderr or "could not find the requested resource" in error.stderr:
                return False
            raise
        return True

    await eventually(applied, "custom resources are served", every=0.2)


def _namespace(name: str) -> Body:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def condition(body: Mapping[str, Any], kind: str) -> str:
    """Status of a condition, or ""."""
    for entry in body.get("status", {}).get("conditions") or ():
        if entry["type"] == kind:
            return str(entry["status"])
    return ""


async def running(bound: Bound, namespace: str, name: str, *, seconds: float = PATIENCE) -> Body:
    """Wait until a pod of the hub is Running and has an IP; its body."""

    async def check() -> Body | None:
        found: Body | None = await get(bound.hub, "pod", name, "-n", namespace)
        return found if found and found["status"]["phase"] == "Running" and found["status"].get("podIP") else None

    try:
        out: Body = await eventually(check, f"pod {name} Running", seconds=seconds, every=0.3)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await _state_of_pod(bound, namespace, name)}") from error
    return out


async def _state_of_pod(bound: Bound, namespace: str, name: str) -> str:
    """The state of a pod of the hub in both clusters, for the message of a failed test: status, claims, Events, and the mount namespace."""
    found = await get(bound.hub, "pod", name, "-n", namespace)
    events = [bound.hub.kubectl("events", "-n", namespace), bound.worker.kubectl("events", "-n", bound.mount)]
    claims = await bound.hub.kubectl("get", "pvc", "-n", namespace)
    pods = await bound.worker.kubectl("get", "pods", "-n", bound.mount, "-o", "wide")
    spec, status = (found or {}).get("spec", {}), (found or {}).get("status")
    parts = [f"on node {spec.get('nodeName')!r}, status {json.dumps(status)}", claims, pods, *await asyncio.gather(*events)]
    return "\n".join("\n".join(text.splitlines()[-_LINES:]) for text in parts)


async def physical(bound: Bound, virtual: Mapping[str, Any]) -> Body:
    """The pod in the worker, by the annotations of the virtual one."""
    notes = virtual["metadata"]["annotations"]
    found = await get(bound.worker, "pod", notes["kubeocean.io/physical-pod-name"], "-n", notes["kubeocean.io/physical-pod-namespace"])
    assert found is not None and found["metadata"]["uid"] == notes["kubeocean.io/physical-pod-uid"]
    out: Body = found
    return out


def pod(name: str, namespace: str, *, node: str = "", **spec: Any) -> Body:
    """A pod that tolerates virtual nodes and sleeps until it is told to end."""
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 30,
            "tolerations": [{"key": "kubeocean.io/vnode", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "localhost/busybox:dev",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.2; done"],
                }
            ],
            **spec,
        },
    }
    if node:
        body["spec"]["nodeName"] = node
    return body
