"""What pages show works on real API servers: every YAML document is accepted, commands run, and a provider needs no other rights.

Invariant: documents and commands are those of the pages; only contexts and names of images come from here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.shipped import pod_on
from tests.support.bound import apply
from tests.support.pages import Shell, block
from tests.support.program import KUBECTL_TIMEOUT, eventually
from tests.unit.kubeocean.doctor.test_mistakes import request
from vkubelet.testing.cluster import ControlPlane

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [page for name in ("start", "lease", "use", "operate", "build") for page in sorted((DOCS / name).glob("*.md"))]
EXECUTED: Mapping[str, Mapping[int, Mapping[str, str]]] = {
    "lease/install.md": {4: {"NAME": "everywhere"}, 6: {"NAME": "demo"}},
    "lease/lend-safely.md": {0: {}},
    "lease/tenants.md": {1: {"kubeocean-worker-team-a": "kubeocean-worker"}},
    "lease/migrate.md": {0: {}, 1: {}, 2: {"NAME": "demo"}},
    "operate/credentials.md": {1: {}},
    "operate/outages.md": {0: {}},
    "operate/reach-the-nodes.md": {0: {"csr-xxxxx": "waits"}},
    "use/network.md": {0: {}, 1: {}},
    "use/volumes.md": {0: {}},
}
"""Blocks of pages that are run with one cluster as hub and worker, and what is put in the place of their placeholders."""
SAMPLES = ("binding.yaml", "policy.yaml", "worker-rbac.yaml", "hub-rbac.yaml")

pytestmark = pytest.mark.timeout(300)


def documents(page: Path) -> Iterator[dict[str, Any]]:
    """Objects in the YAML blocks of a page; a block with another content, such as settings, has none."""
    for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        yield from (body for body in yaml.safe_load_all(text) if isinstance(body, dict) and "apiVersion" in body)


@pytest.fixture
async def both(bare_hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Shell]:
    """A shell whose contexts `hub` and `worker` are one cluster with the definitions, the samples, and what else the pages act on."""
    definitions = [str(path) for path in (ROOT / "kubeocean" / "manifests").glob("*.yaml")]
    for path in definitions:
        await bare_hub.kubectl("apply", "--filename", path)
    await bare_hub.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    for name in SAMPLES:
        await bare_hub.kubectl("apply", "--filename", str(ROOT / "deploy" / "samples" / name))
    await apply(bare_hub, *others())
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "new.kubeconfig").write_text("a kubeconfig")
    yield await Shell.of(tmp_path / "shell", {"hub": bare_hub, "worker": bare_hub})
    for path in definitions:
        await bare_hub.kubectl("delete", "--filename", path, "--wait=false")


def others() -> Iterator[dict[str, Any]]:
    """Deployments of Kubeocean (Go), a DaemonSet, and a certificate request that waits."""
    for name in ("manager", "syncer", "proxier"):
        yield {**workload("Deployment", f"kubeocean-{name}", "kubeocean-system"), "apiVersion": "apps/v1"}
    yield {**workload("DaemonSet", "everywhere", "kube-system"), "apiVersion": "apps/v1"}
    spec = {**request("192.0.2.1").body["spec"], "usages": ["digital signature", "server auth"]}
    yield {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "waits"}, "spec": spec}


def workload(kind: str, name: str, namespace: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"kind": kind, "metadata": metadata, "spec": {"selector": {"matchLabels": labels}, "template": template}}


async def test_documents_are_accepted_and_commands_run(both: Shell, bare_hub: ControlPlane) -> None:
    bodies = [body for page in PAGES for body in documents(page)]
    assert len(bodies) > 15
    for name in sorted({str(body["metadata"]["name"]) for body in bodies if body["kind"] == "Namespace"}):
        await bare_hub.kubectl("create", "namespace", name)
    text = "\n---\n".join(yaml.safe_dump(body) for body in bodies)
    await bare_hub.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-", stdin=text
    )
    for page, numbers in EXECUTED.items():
        for number, replaced in numbers.items():
            await both.run(block(page, number), replaced)
    scaled = json.loads(await bare_hub.kubectl("get", "deployments", "-n", "kubeocean-system", "--output=json"))["items"]
    assert {each["metadata"]["name"]: each["spec"]["replicas"] for each in scaled}["kubeocean-proxier"] == 0
    approved = json.loads(await bare_hub.kubectl("get", "csr", "waits", "--output=json"))
    assert approved["status"]["conditions"][0]["type"] == "Approved"


async def test_a_provider_runs_with_the_rights_of_the_page_alone(bare_hub: ControlPlane, tmp_path: Path) -> None:
    rights = [body for body in documents(DOCS / "build" / "deploy.md") if body["kind"] not in ("ConfigMap", "Deployment")]
    await bare_hub.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(rights))
    token = (await bare_hub.kubectl("--namespace", "mine", "create", "token", "mine")).strip()
    config = yaml.safe_load(bare_hub.kubeconfig.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    server = {"main_port": False, "approve_own_csr": True, "node_address": bare_hub.host_address}
    settings = {
        "instance": "mine",
        "leader": {"enabled": True, "namespace": "mine"},
        "server": server,
        "health": {"health_address": "", "metrics_address": ""},
    }
    (tmp_path / "settings.yaml").write_text(json.dumps(settings))
    (tmp_path / "jobs").mkdir()
    programs = [*re.findall(r"^```python\n(.*?)^```$", (DOCS / "build" / "containers.md").read_text(), re.MULTILINE | re.DOTALL)]
    programs += re.findall(r"^```python\n(# batch\.py\n.*?)^```$", (DOCS / "build" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    for text in programs:
        (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    shell = await Shell.of(tmp_path / "shell", {"hub": bare_hub})
    assert "SupportsPolling: yes" in await shell.run(f"cd {tmp_path}\n{block('build/containers.md', 0).text}")
    run = [
        sys.executable,
        "-m",
        "vkubelet",
        "run",
        "--provider",
        "./containers.py",
        "--config",
        "settings.yaml",
        "--kubeconfig",
        "kubeconfig",
    ]
    with (tmp_path / "log").open("wb") as log:
        started = [
            subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)})
            for command in ([sys.executable, "batch.py", "jobs"], run)
        ]
    try:
        await a_pod_with_two_containers_runs(bare_hub)
    finally:
        for program in started:
            program.terminate()
            program.wait(30)
        print((tmp_path / "log").read_text())
    assert "orbidden" not in (tmp_path / "log").read_text()
    await bare_hub.kubectl("delete", "node", "containers", "--ignore-not-found")


async def a_pod_with_two_containers_runs(cluster: ControlPlane) -> None:
    """An init container, a failing one that is started again, and a variable of a Secret."""
    namespace = await cluster.namespace("pages")
    pod = json.loads(pod_on("containers"))
    secret = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}
    main = {"name": "main", "image": "none", "command": ["sh", "-c", "echo $WORD; sleep 600"], "env": [secret]}
    again = {"name": "again", "image": "none", "command": ["sh", "-c", "echo failed; exit 3"]}
    first = {"name": "first", "image": "none", "command": ["sh", "-c", "exit 0"]}
    pod["spec"] |= {"containers": [main, again], "initContainers": [first], "terminationGracePeriodSeconds": 1}
    await cluster.kubectl("--namespace", namespace, "create", "secret", "generic", "word", "--from-literal=word=spoken")
    await cluster.kubectl("--namespace", namespace, "create", "--filename", "-", stdin=json.dumps(pod))

    async def restarted() -> bool:
        path = "jsonpath={.status.containerStatuses[?(@.name=='again')].restartCount}"
        return (await cluster.kubectl("--namespace", namespace, "get", "pod", "web", "--output", path)) not in ("", "0")

    await eventually(restarted, "the failing container was started again", seconds=120)
    assert (await cluster.kubectl("--namespace", namespace, "logs", "web", "--container", "main")) == "spoken\n"
    await cluster.kubectl("--namespace", namespace, "delete", "pod", "web", "--timeout=60s")


# --- Providers that pages run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def shell(bare_hub: ControlPlane, tmp_path: Path) -> Shell:
    """A shell for the one cluster, whose API server does not verify kubelet certificates."""
    return await Shell.of(tmp_path, {"hub": bare_hub})


async def node_is_ready(cluster: ControlPlane, name: str) -> None:
    await cluster.kubectl("wait", "--for=create", f"node/{name}", KUBECTL_TIMEOUT)
    await cluster.kubectl("wait", "--for=condition=Ready", f"node/{name}", KUBECTL_TIMEOUT)


@asynccontextmanager
async def removed_afterwards(cluster: ControlPlane, *nodes: str) -> AsyncIterator[None]:
    """The pod `web` and the nodes, which remain when their process ends."""
    try:
        yield
    finally:
        await cluster.kubectl("delete", "pod", "web", "--ignore-not-found", "--force", "--grace-period=0")
        await cluster.kubectl("delete", "node", *nodes, "--ignore-not-found", "--wait=false")


async def test_the_node_for_the_cluster_of_the_demo_runs_a_pod(shell: Shell, bare_hub: ControlPlane) -> None:
    async with removed_afterwards(bare_hub, "minimal"):
        assert (await shell.run(block("start/provider.md", 1))).splitlines()[-1] == "web of web runs on minimal"


async def test_the_node_in_five_minutes_runs_a_pod(shell: Shell, bare_hub: ControlPlane) -> None:
    page = (DOCS / "start" / "provider.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shell.directory / "mine.py").write_text(program)
    check, run = re.findall(r"`(vkubelet (?:check|run) --provider [^`]*)`", page)
    assert "SupportsLogs: yes" in await shell.run(check)
    async with removed_afterwards(bare_hub, "mine"), shell.running(run, "."):
        await node_is_ready(bare_hub, "mine")
        assert (await shell.run(block("start/provider.md", 0))).splitlines()[-1] == "web runs"


async def test_a_scripted_node_answers_what_pages_ask(shell: Shell, bare_hub: ControlPlane) -> None:
    async with removed_afterwards(bare_hub, "mock"), shell.running(block("build/mock.md", 0), "."):
        await node_is_ready(bare_hub, "mock")
        out = await shell.run(block("operate/reach-the-nodes.md", 1), {"NODE": "mock"})
        assert "healthz check passed" in out and '"kubeletconfig"' in out and "vkubelet_node_queue_depth" in out
        await shell.run(block("use/metrics.md", 0), {"VNODE": "mock"})


async def test_a_host_becomes_a_node_with_the_settings_of_the_page(shell: Shell, bare_hub: ControlPlane) -> None:
    (text,) = re.findall(r"^```yaml\n(provider:.*?)^```$", (DOCS / "build" / "process.md").read_text(), re.MULTILINE | re.DOTALL)
    settings = yaml.safe_load(text)
    settings["provider"] |= {"directory": str(shell.directory / "process"), "cgroup": f"vkubelet-pages-{os.getpid()}"}
    settings["server"] = {"approve_own_csr": True, "debug": {"profiling": True}}
    (shell.directory / "node.yaml").write_text(yaml.safe_dump(settings))
    name = socket.gethostname().lower()
    async with removed_afterwards(bare_hub, name), shell.running(block("build/process.md", 0), "."):
        await node_is_ready(bare_hub, name)

        async def profiled() -> bool:
            out = await shell.run(block("operate/reach-the-nodes.md", 2), {"NODE": name}, codes=(0, 1))
            return " tasks\n" in out

        await eventually(profiled, "the tasks of the process are listed", every=1)
