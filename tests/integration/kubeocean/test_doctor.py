"""Mistakes of people, prepared in two real clusters at once: `doctor`, `status` and `explain` name each with its remedy."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeocean.commands import logs, status
from kubeocean.commands.bundle import Bundle
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.output import Format
from kubeocean.commands.top import By, Top, View
from tests.integration.kubeocean.conftest import lasting_scene
from tests.integration.kubeocean.mistakes import CANARY, Mistakes, admin, container, make_mistakes, policies, remove_mistakes
from tests.support.bound import SYSTEM, apply, items
from tests.support.program import eventually
from vkubelet.api.objects import Key
from vkubelet.commands import clusters
from vkubelet.commands.clusters import Choice
from vkubelet.commands.terminal import Terminal
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def mistakes(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mistakes]:
    directory = tmp_path_factory.mktemp("doctor")
    with lasting_scene(hub, worker, directory, nodes=2, policies=policies) as scene, closing(asyncio.new_event_loop()) as loop:
        try:
            yield loop.run_until_complete(make_mistakes(scene))
        finally:
            loop.run_until_complete(remove_mistakes(scene))


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
    "right is missing in the hub": ("doctor", "kubeocean-syncer-wrongport may not", "in the hub", " upgrade kubeocean "),
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
    "definition is old": ("doctor", "of ClusterBinding is old", "spec.directScheduling", "kubeocean/manifests/clusterbindings.yaml"),
}
STORY = {
    "binding is served": ("describe", "Name: SCENE ", "Type: Ready", "Type: Connected", "Reason: ConnectivityPassed"),
    "an optional right is missing": ("describe", "Name: SCENE ", "PolicyLabelForbidden", "may not patch nodes; grant that right"),
    "worker refuses a pod": ("describe", "Name: greedy ", "FailedCreatePod", "exceeded quota: two-cpus"),
    "node is closed": ("describe", "kubeocean.io/out-of-time-windows=true:NoSchedule", "kubeocean.io/policies-applied: closed-SCENE"),
    "node is named with its version and address": ("describe", "NAME STATUS ROLES AGE VERSION INTERNAL-IP", " Ready "),
    "window of a policy is closed": ("describe", "Name: closed-SCENE ", "no time window is open", "Next Edge:"),
    "policy decides about no node": ("describe", "Name: nothing-SCENE ", "Deciding Nodes: 0"),
}
"""What conditions, columns and events tell without a command of ours."""


@pytest.mark.parametrize("mistake", TABLE)
def test_mistake_is_named_with_its_remedy(mistakes: Mistakes, mistake: str) -> None:
    source, *words = TABLE[mistake]
    assert mistakes.named(source, tuple(words)), "\n".join(mistakes.texts(source))


@pytest.mark.parametrize("part", STORY)
def test_kubectl_alone_tells_the_story(mistakes: Mistakes, part: str) -> None:
    source, *words = STORY[part]
    assert mistakes.named(source, tuple(words)), "\n".join(mistakes.texts(source))


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
