"""Mistakes of people, prepared in two real clusters at once: `doctor`, `status` and `explain` name each with its remedy."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import frozen

from kubeocean.commands import clusters, logs, status
from kubeocean.commands.bundle import Bundle
from kubeocean.commands.clusters import Choice
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.explain import Explainer
from kubeocean.commands.output import Format
from kubeocean.commands.terminal import Terminal
from kubeocean.commands.top import By, Top, View
from kubeocean.model.crds import CLUSTERBINDINGS
from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.integration.kubeocean.leases import closed_now
from tests.support.bound import SYSTEM, Body, Bound, apply, get, items
from tests.support.program import eventually
from tests.support.stage import Stage
from tests.unit.kubeocean.doctor.test_mistakes import request
from vkubelet.api.objects import Key
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.timeout(1800)

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

    def named(self, source: str, words: tuple[str, ...]) -> bool:
        texts = {"doctor": self.doctor, "later": self.later, "status": [self.status], "explain": self.explained}[source]
        filled = [word.replace("SCENE", self.scene.bound.name) for word in words]
        return any(all(word in text for word in filled) for text in texts)


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


@pytest.fixture(scope="module")
def mistakes(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mistakes]:
    directory = tmp_path_factory.mktemp("doctor")
    with lasting_scene(hub, worker, directory, nodes=2, policies=policies) as scene, closing(asyncio.new_event_loop()) as loop:
        try:
            yield loop.run_until_complete(make_mistakes(scene))
        finally:
            loop.run_until_complete(remove_mistakes(scene))


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
    scene.program.kill()
    later = await examined(hub, bound.name, clock=FastClock())
    scene.program.start()
    await scene.ready()
    return Mistakes(scene=scene, stage=stage, hub=hub, doctor=doctor, later=later, status=shown, explained=explained)


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


# --- The table ---

TABLE = {
    "Secret is missing": ("doctor", "wrong-nosecret does not exist", "create secret generic wrong-nosecret"),
    "Secret has another key": ("doctor", "wrong-nokey has nothing under the key `kubeconfig`", "kubeocean bind wrong-nokey"),
    "kubeconfig is no YAML": ("doctor", "wrong-garbage is no usable kubeconfig", "kubeocean bind wrong-garbage"),
    "token has expired": ("doctor", "wrong-token expired at 2023-11-14T22:13:20Z", "kubeocean bind wrong-token"),
    "credentials are rejected": ("doctor", "ClusterBinding wrong-token", "rejects the credentials", "kubeocean bind wrong-token"),
    "port is blocked": ("doctor", "ClusterBinding wrong-port", "requests to the worker cluster fail", "check the server"),
    "CA is of another cluster": ("doctor", "ClusterBinding wrong-ca", "requests to the worker cluster fail", "certificate"),
    "certificate is not verified": ("doctor", "ClusterBinding wrong-insecure", "spec.allowInsecureWorker: true"),
    "clusterID clashes": ("doctor", "SCENE-x conflicts with the clusterID of the older", "edit clusterbinding wrong-clash"),
    "namespace is missing": ("doctor", "has no namespace does-not-exist", "edit clusterbinding wrong-mount"),
    "namespace is taken": ("doctor", "ClusterBinding wrong-taken", "belongs to binding", "name another namespace"),
    "right is missing in the worker": ("doctor", "ClusterBinding wrong-rights", "may not get nodes", "kubeocean bind wrong-rights"),
    "right is missing in the hub": ("doctor", "kubeocean-syncer-wrongport may not", "in the hub", "helm upgrade kubeocean"),
    "image of the process is missing": ("doctor", "ClusterBinding wrong-port", "ImagePullBackOff", "kubeocean logs wrong-port"),
    "no process serves": ("doctor", "ClusterBinding wrong-selector", "no process serves", "kubeocean run --binding wrong-selector"),
    "no policy": ("doctor", "no ResourceLeasingPolicy of the worker names ClusterBinding wrong-selector", "apply -f"),
    "binding selects no node": ("doctor", "spec.nodeSelector of ClusterBinding wrong-selector selects none", "--show-labels"),
    "policy selects no node": ("doctor", "nothing-SCENE: spec.nodeSelector: it selects no node", "edit resourceleasingpolicy"),
    "policy limits an unknown resource": ("doctor", "gold-SCENE: spec.resourceLimits: no node has the resource gold", "correct the name"),
    "policy names an unknown binding": ("doctor", "stray-SCENE: spec.cluster names ClusterBinding nowhere", "edit resourceleasingpolicy"),
    "quota is full": ("doctor", "exceeded quota: two-cpus", "raise the ResourceQuota", "describe resourcequota"),
    "Pod Security refuses": ("doctor", 'violates PodSecurity "baseline', "level of the mount namespace", "--show-labels"),
    "DaemonSet stalls": ("doctor", "/exporter:", "rollout stops", "patch daemonset exporter"),
    "DNS is absent": ("doctor", "ClusterBinding SCENE", "spec.dns", "patch clusterbinding SCENE"),
    "API server access is absent": ("doctor", "spec.apiServerAccess", "patch clusterbinding wrong-selector"),
    "certificate request waits": ("doctor", "csr-SCENE", "waits for approval", "certificate approve csr-SCENE"),
    "clock is wrong": ("later", "s behind that of this machine", "timedatectl"),
    "process has died": ("later", "no process renews the Leases of vnode-SCENE", "kubeocean run --binding SCENE"),
    "kubelet port is closed": ("later", "cannot use the kubelet port", "open this port from the API server", "/proxy/healthz"),
    "window is closed": ("status", "is closed: no time window of its policies is open", "kubeocean plan"),
    "pod waits for a window": ("explain", "late", "no time window is open, see `kubeocean plan`"),
    "pod does not tolerate": ("explain", "does not tolerate kubeocean.io/vnode:NoSchedule", "add the toleration to the pod"),
    "pod is refused": ("explain", "exceeded quota: two-cpus"),
}


@pytest.mark.parametrize("mistake", TABLE)
def test_mistake_is_named_with_its_remedy(mistakes: Mistakes, mistake: str) -> None:
    source, *words = TABLE[mistake]
    shown = mistakes.explained if source == "explain" else [mistakes.status] if source == "status" else getattr(mistakes, source)
    assert mistakes.named(source, tuple(words)), "\n".join(shown)


def test_a_binding_without_mistakes_has_no_error_of_a_wrong_one(mistakes: Mistakes) -> None:
    own = [text for text in mistakes.doctor if text.startswith(f"ClusterBinding {mistakes.scene.bound.name} |")]
    for check in ("connection", "kubelet port", "nodes", "process"):
        assert not [text for text in own if f"| {check} | error" in text], own


async def test_a_support_bundle_contains_no_canary_and_all_parts(mistakes: Mistakes, tmp_path: Path) -> None:
    """The canary is in a Secret, an environment, an annotation, the settings, and a log."""
    stage, bound = mistakes.stage, mistakes.scene.bound
    settings = yaml.safe_dump({"provider": {"kubeconfig": f"token: {CANARY}"}})
    encoded = base64.b64encode(CANARY.encode()).decode()
    space = {"namespace": stage.namespace}
    await apply(
        bound.hub,
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", **space}, "stringData": {"password": CANARY}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **space}, "data": {"settings.yaml": settings}},
    )
    body = stage.body("logs", labels={"k8s-app": f"kubeocean-syncer-{bound.name}"}, containers=[container("0")])
    body["metadata"]["annotations"] |= {"example.com/password": CANARY, "mock.vkubelet.io/log-text": f"cannot log in as {CANARY}"}
    await stage.home.create("pods", body)
    await stage.running("logs")
    terminal, path = Terminal(io.StringIO()), tmp_path / "bundle.tar.gz"
    doctor = Doctor(hub=mistakes.hub, worker=None, binding=bound.name, terminal=terminal, output=Format.JSON, namespace=stage.namespace)
    await Bundle(doctor, path).run()
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        files = {entry.name: (archive.extractfile(entry) or io.BytesIO()).read().decode() for entry in archive}
    for name, text in files.items():
        assert CANARY not in text and encoded not in text, name
    for part in ("hub/pods.json", f"worker-{bound.name}/resourceleasingpolicies.json", "doctor.json", "status.json", "logs/logs.log"):
        assert files[f"bundle/{part}"].strip(), part
    assert "(removed)" in files["bundle/logs/logs.log"] and not any("secrets.json" in name for name in files)
    names = {each["metadata"]["name"] for each in json.loads(files["bundle/hub/pods.json"])}
    assert {"greedy", "runs"} <= names


async def test_the_log_of_a_process_is_printed_or_where_it_is(mistakes: Mistakes) -> None:
    out, stage, name = io.StringIO(), mistakes.stage, mistakes.scene.bound.name
    with pytest.raises(clusters.CommandFailed, match=r"has no pod of Deployment .*kubeocean run --binding"):
        await logs.show(mistakes.hub, name, Terminal(out), namespace=SYSTEM, asked=logs.Asked())
    body = stage.body("replica", labels={"k8s-app": f"kubeocean-syncer-{name}"}, containers=[container("0")])
    body["metadata"]["annotations"] |= {"mock.vkubelet.io/log-text": "serving", "mock.vkubelet.io/log-lines": "3"}
    await stage.home.create("pods", body)
    await stage.running("replica")
    (pod,) = [each for each in await items(stage.bound.hub, "pods", "-n", stage.namespace) if each["metadata"]["name"] == "replica"]
    async with clusters.opened(mistakes.hub) as client:
        lines = [line async for line in logs.lines(client, Key(stage.namespace, pod["metadata"]["name"]), logs.Asked(tail=2))]
    assert len(lines) == 2 and all("serving" in line for line in lines)


async def test_usage_is_read_from_kubelets_and_what_is_missing_is_named(mistakes: Mistakes) -> None:
    worker = Choice("worker cluster", "--worker-kubeconfig", admin(mistakes.scene.bound.worker))

    async def top(view: View) -> Any:
        out = io.StringIO()
        made = Top(
            hub=mistakes.hub,
            worker=worker,
            binding=mistakes.scene.bound.name,
            by=By.NODES,
            view=view,
            terminal=Terminal(out),
            output=Format.JSON,
        )
        try:
            await made.run()
        except SystemExit as ended:
            return ended.code, json.loads(out.getvalue())
        return 0, json.loads(out.getvalue())

    code, shown = await top(View.WORKER)
    assert code == 0 and shown["missing"] == [] and [row["name"] for row in shown["rows"]] == sorted(mistakes.scene.nodes)
    assert all(row["cpu"] and row["memory"] for row in shown["rows"]), shown
    code, shown = await top(View.HUB)
    assert code == 1 and "kubeocean bind NAME --metrics" in shown["missing"][0], shown
    assert all(row["cpu"] is None and row["requested"] for row in shown["rows"][:1])


async def test_status_is_printed_again_when_it_changes(mistakes: Mistakes) -> None:
    out, name = io.StringIO(), mistakes.scene.bound.name
    watching = asyncio.create_task(status.watch(mistakes.hub, name, Terminal(out), output=Format.TABLE))
    await eventually(lambda: out.getvalue().count("POLICIES") == 1, "the first table")
    await mistakes.scene.bound.hub.kubectl("cordon", mistakes.scene.vnodes[0])
    await eventually(lambda: f"Node {mistakes.scene.vnodes[0]} is cordoned" in out.getvalue(), "the second table")
    watching.cancel()
    await asyncio.wait([watching])
    await mistakes.scene.bound.hub.kubectl("uncordon", mistakes.scene.vnodes[0])
