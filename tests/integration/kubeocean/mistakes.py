"""Mistakes of people, prepared in two real clusters at once: what is wrong, and what each command and kubectl print about it.

Invariant: a mistake is made as a person makes it; where nothing runs containers, the status that a kubelet would report is written.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from kubeocean.commands import status
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.explain import Explainer
from kubeocean.commands.output import Format
from kubeocean.model.crds import CLUSTERBINDINGS, definition
from tests.integration.kubeocean.conftest import Scene
from tests.integration.kubeocean.leases import closed_now
from tests.support.bound import SYSTEM, Body, Bound, apply, get, items
from tests.support.program import eventually
from tests.support.stage import Stage
from tests.unit.kubeocean.doctor.test_mistakes import request
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Key
from vkubelet.clock import SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.clusters import Choice
from vkubelet.commands.terminal import Terminal
from vkubelet.testing.cluster import ControlPlane

CANARY = "c4nary-Vq8x-7731"
EXPIRED = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9.c2lnbmF0dXJl"
"""A JWT that expired in 2023."""
AHEAD = timedelta(minutes=2)


class FastClock(SystemClock):
    """The clock of a machine that is ahead."""

    def now(self) -> datetime:
        return super().now() + AHEAD


REAL = SystemClock()


@frozen(kw_only=True)
class Mistakes:
    """The clusters with all mistakes at once, and what the commands print about them."""

    scene: Scene
    stage: Stage
    hub: Choice
    doctor: list[str]
    """Each finding: subject, check, problem and commands in one text."""
    later: list[str]
    """The same after the process was killed, by a machine whose clock is ahead."""
    status: str
    explained: list[str]
    described: list[str]
    """What `kubectl describe` and `kubectl get -o wide` print of the objects."""

    def named(self, source: str, words: tuple[str, ...]) -> bool:
        filled = [word.replace("SCENE", self.scene.bound.name) for word in words]
        return any(all(word in text for word in filled) for text in self.texts(source))

    def texts(self, source: str) -> list[str]:
        found = {"doctor": self.doctor, "later": self.later, "status": [self.status], "explain": self.explained, "describe": self.described}
        return found[source]


def admin(cluster: ControlPlane) -> Path:
    return cluster.client_config("doctor", ["system:masters"])


def variant(kubeconfig: Path, *, server: str = "", user: Body | None = None, **cluster: Any) -> str:
    """A kubeconfig with other values; None removes one."""
    body = yaml.safe_load(kubeconfig.read_text())
    found = body["clusters"][0]["cluster"]
    found |= cluster | ({"server": server} if server else {})
    body["clusters"][0]["cluster"] = {key: value for key, value in found.items() if value is not None}
    body["users"][0]["user"] = user or body["users"][0]["user"]
    return yaml.safe_dump(body)


def kubeconfigs(scene: Scene) -> dict[str, dict[str, str]]:
    """The data of the Secret of each wrong binding."""
    hub, worker = scene.bound.hub, scene.bound.worker
    owner, powerless = admin(worker), worker.client_config("nobody")
    good = {"kubeconfig": owner.read_text()}
    return {
        "nokey": {"config": owner.read_text()},
        "garbage": {"kubeconfig": "a: [b"},
        "token": {"kubeconfig": variant(owner, user={"token": EXPIRED})},
        "port": {"kubeconfig": variant(owner, server=f"https://127.0.0.1:{hub.site.free_port()}")},
        "ca": {"kubeconfig": variant(owner, **{"certificate-authority-data": base64.b64encode(hub.ca.read_bytes()).decode()})},
        "insecure": {"kubeconfig": variant(owner, **{"certificate-authority-data": None, "insecure-skip-tls-verify": True})},
        "rights": {"kubeconfig": powerless.read_text()},
        **dict.fromkeys(("clash", "mount", "taken", "selector"), good),
    }


def wrong_binding(scene: Scene, name: str) -> Body:
    """A ClusterBinding that no process serves."""
    bound = scene.bound
    mounts = {"mount": "does-not-exist", "selector": "default"}
    spec: Body = {
        "clusterID": f"{bound.name}-x" if name == "clash" else f"wrong{name}",
        "secretRef": {"name": f"wrong-{name}", "namespace": SYSTEM},
        "mountNamespace": mounts.get(name, bound.mount),
    }
    if name == "selector":
        spec["nodeSelector"] = only("nowhere")
    return {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "metadata": {"name": f"wrong-{name}"}, "spec": spec}


def only(host: str) -> Body:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}
    return {"nodeSelectorTerms": [{"matchExpressions": [here]}]}


def policies(bound: Bound) -> list[Body]:
    open_, closed = (only(f"sim-{bound.name}-{at}") for at in (0, 1))
    return [
        bound.policy(f"open-{bound.name}", nodeSelector=open_),
        bound.policy(f"closed-{bound.name}", nodeSelector=closed, **closed_now()),
        bound.policy(f"nothing-{bound.name}", nodeSelector=only("nowhere")),
        bound.policy(f"gold-{bound.name}", nodeSelector=open_, resourceLimits=[{"resource": "gold", "percent": 50}]),
        bound.policy(f"stray-{bound.name}", cluster="nowhere"),
    ]


async def make_mistakes(scene: Scene) -> Mistakes:
    bound = scene.bound
    stage = await Stage.of(bound, scene.nodes)
    await asyncio.gather(prepare_bindings(scene), prepare_worker(stage))
    await prepare_pods(stage)
    hub = Choice("computing cluster", "--kubeconfig", admin(bound.hub))
    doctor = await examined(hub, bound.name, worker=Choice("worker cluster", "--worker-kubeconfig", admin(bound.worker)))
    doctor += [text for name in ("nosecret", *kubeconfigs(scene)) for text in await examined(hub, f"wrong-{name}")]
    async with clusters.opened(hub) as client:
        found = await status.summaries(client, [await client.get(CLUSTERBINDINGS, bound.name)])
    shown = "\n".join(status.lines(found, width=1000, nodes=True))
    explained = [await explain(hub, Key(stage.namespace, name)) for name in ("greedy", "intolerant", "late")]
    described = await describe(stage)
    doctor += await with_an_old_definition(bound.hub, hub)
    scene.program.kill()
    later = await examined(hub, bound.name, clock=FastClock())
    scene.program.start()
    await scene.ready()
    return Mistakes(scene=scene, stage=stage, hub=hub, doctor=doctor, later=later, status=shown, explained=explained, described=described)


async def examined(hub: Choice, binding: str, *, worker: Choice | None = None, clock: SystemClock = REAL) -> list[str]:
    made = Doctor(
        hub=hub, worker=worker, binding=binding, terminal=Terminal(io.StringIO()), output=Format.JSON, namespace=SYSTEM, clock=clock
    )
    return [
        " | ".join((each.subject, each.check, finding.level, finding.problem, *finding.commands))
        for each in await made.examine()
        for finding in each.findings
    ]


async def explain(hub: Choice, pod: Key) -> str:
    out = io.StringIO()
    await Explainer(hub=hub, worker=None, binding="", terminal=Terminal(out), output=Format.TABLE).pod(pod)
    return out.getvalue()


async def describe(stage: Stage) -> list[str]:
    """What people read who have kubectl alone."""
    bound = stage.bound
    hub = [
        ("describe", "clusterbinding", bound.name),
        ("describe", "pod", "greedy", "-n", stage.namespace),
        ("describe", "node", bound.vnode(stage.nodes[1])),
        ("get", "node", bound.vnode(stage.nodes[0]), "-o", "wide"),
    ]
    worker = [("describe", "resourceleasingpolicy", f"{name}-{bound.name}") for name in ("closed", "nothing")]
    texts = [await bound.hub.kubectl(*each) for each in hub] + [await bound.worker.kubectl(*each) for each in worker]
    return [" ".join(text.split()) for text in texts]


async def with_an_old_definition(cluster: ControlPlane, hub: Choice) -> list[str]:
    """What doctor finds while the definition lacks a field."""
    name = f"{CLUSTERBINDINGS.plural}.{CLUSTERBINDINGS.group}"
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/directScheduling"
    schema = decode_yaml(definition(CLUSTERBINDINGS))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    field = schema["properties"]["spec"]["properties"]["directScheduling"]
    await cluster.kubectl("patch", "crd", name, "--type=json", "-p", json.dumps([{"op": "remove", "path": path}]))
    try:
        return await examined(hub, "wrong-nosecret")
    finally:
        await cluster.kubectl("patch", "crd", name, "--type=json", "-p", json.dumps([{"op": "add", "path": path, "value": field}]))


# --- Preparations ---


async def prepare_bindings(scene: Scene) -> None:
    hub, bodies = scene.bound.hub, list[Body]()
    for name, data in kubeconfigs(scene).items():
        metadata = {"name": f"wrong-{name}", "namespace": SYSTEM}
        bodies.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    await apply(hub, *bodies, *(wrong_binding(scene, name) for name in ("nosecret", *kubeconfigs(scene))), *powerless_process())


def powerless_process() -> list[Body]:
    """A Deployment for one of the bindings, whose ServiceAccount has no rights; its pod has an image that does not exist."""
    name = "kubeocean-syncer-wrongport"
    labels = {"k8s-app": name}
    spec = {"serviceAccountName": name, "containers": [{"name": "syncer", "image": "localhost/none:1"}]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SYSTEM}}
    return [account, deployment]


async def prepare_worker(stage: Stage) -> None:
    """A mount namespace of level baseline in which two CPUs may be requested."""
    bound = stage.bound
    metadata = {"name": "two-cpus", "namespace": bound.mount}
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    await stage.there.patch("namespaces", bound.mount, label)
    await apply(bound.worker, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"requests.cpu": "2"}}})
    await stage.until_refused_there("exceeded quota: two-cpus", containers=[container("3")])
    await stage.until_refused_there('violates PodSecurity "baseline', containers=[container("0", securityContext={"privileged": True})])


def container(cpu: str, **more: object) -> Body:
    return {"name": "main", "image": "localhost/busybox:dev", "resources": {"requests": {"cpu": cpu}}, **more}


async def prepare_pods(stage: Stage) -> None:
    hub = stage.bound.hub
    await stage.create("runs", containers=[container("0", env=[{"name": "PASSWORD", "value": CANARY}])])
    await stage.create("greedy", containers=[container("3")])
    await stage.create("privileged", containers=[container("0", securityContext={"privileged": True})])
    pending = stage.body("intolerant", tolerations=[], nodeSelector={"kubernetes.io/hostname": stage.vnode})
    late = stage.body("late", nodeSelector={"kubernetes.io/hostname": stage.bound.vnode(stage.nodes[1])})
    for body in (pending, late):
        body["spec"].pop("nodeName")
        await stage.home.create("pods", body)
    await apply(hub, everywhere(stage))
    address = (await get(hub, "node", stage.vnode))["status"]["addresses"][0]["address"]
    csr = request(address).body
    await apply(hub, {**csr, "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", **waiting_csr(stage, csr)})
    await stage.running("runs")
    for name in ("greedy", "privileged"):
        await stage.event(name, "FailedCreatePod")
    await eventually(lambda: daemon_waits(stage), "the DaemonSet has a pod on the virtual node")
    await fake_image_failure(stage)


def waiting_csr(stage: Stage, csr: Body) -> Body:
    usages = ["digital signature", "server auth"]
    return {"metadata": {"name": f"csr-{stage.bound.name}"}, "spec": {**csr["spec"], "usages": usages}}


def everywhere(stage: Stage) -> Body:
    labels = {"app": "everywhere"}
    selector = {"kubeocean.io/cluster-binding": stage.bound.name}
    spec = {"nodeSelector": selector, "tolerations": [{"operator": "Exists"}], "containers": [container("0")]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    metadata = {"name": "exporter", "namespace": stage.namespace}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


async def daemon_waits(stage: Stage) -> bool:
    return any(pod["spec"].get("nodeName") for pod in await items(stage.bound.hub, "pods", "-n", stage.namespace, "-l", "app=everywhere"))


async def fake_image_failure(stage: Stage) -> None:
    """Reports, as a kubelet would, that the image of a process cannot be pulled."""
    selector = ("pods", "-n", SYSTEM, "-l", "k8s-app=kubeocean-syncer-wrongport")

    async def created() -> bool:
        return bool(await items(stage.bound.hub, *selector))

    await eventually(created, "the Deployment has a pod")
    (pod,) = await items(stage.bound.hub, *selector)
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "image localhost/none:1 not found"}}
    broken = {"name": "syncer", "image": "localhost/none:1", "imageID": "", "ready": False, "restartCount": 0, "state": waits}
    change = {"status": {"containerStatuses": [broken]}}
    await stage.home.patch("pods", pod["metadata"]["name"], change, namespace=SYSTEM, subresource="status")


async def remove_mistakes(scene: Scene) -> None:
    bound = scene.bound
    remove = ("--wait=false", "--ignore-not-found")
    await bound.hub.kubectl("delete", "clusterbinding", *(f"wrong-{name}" for name in ("nosecret", *kubeconfigs(scene))), *remove)
    await bound.hub.kubectl("delete", "deployment", "kubeocean-syncer-wrongport", "-n", SYSTEM, *remove)
    await bound.hub.kubectl("delete", "csr", f"csr-{bound.name}", *remove)
    named = [f"{name}-{bound.name}" for name in ("open", "closed", "nothing", "gold", "stray")]
    await bound.worker.kubectl("delete", "resourceleasingpolicies", *named, *remove)
