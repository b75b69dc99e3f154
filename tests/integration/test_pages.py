"""What pages show works on real API servers: every YAML document is accepted, commands run, and a provider needs no other rights.

Invariant: documents and commands are those of the pages; only contexts and names of images come from here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.shipped import pod_on
from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [page for name in ("start", "lease", "use", "operate", "build") for page in sorted((DOCS / name).glob("*.md"))]
EXECUTED = ("lease/lend-safely.md", "lease/policies.md", "operate/credentials.md", "operate/outages.md", "use/network.md", "use/volumes.md")
"""Pages whose kubectl commands are run, in their order, with one cluster as hub and worker."""
SAMPLES = ("binding.yaml", "policy.yaml", "worker-rbac.yaml", "hub-rbac.yaml")

pytestmark = pytest.mark.timeout(300)


def documents(page: Path) -> Iterator[dict[str, Any]]:
    """Objects in the YAML blocks of a page; a block with another content, such as settings, has none."""
    for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        yield from (body for body in yaml.safe_load_all(block) if isinstance(body, dict) and "apiVersion" in body)


def kubectl_commands(page: Path) -> Iterator[list[str]]:
    """Commands without placeholders."""
    for line in re.findall(r"^(?:\$ )?kubectl (.*)$", page.read_text(), re.MULTILINE):
        if not re.search(r"\b(NAME|NODE|POD|VNODE|NAMESPACE|ID)\b", line) and " > " not in line and "secret.yaml" not in line:
            yield shlex.split(line, comments=True)


@pytest.fixture
async def both(bare_hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Path]:
    """A kubeconfig whose contexts `hub` and `worker` are one cluster with the definitions and the samples."""
    config = yaml.safe_load(bare_hub.kubeconfig.read_text())
    (context, *_) = config["contexts"]
    config["contexts"] = [{**context, "name": name} for name in ("hub", "worker")]
    config["current-context"] = "hub"
    (tmp_path / "both").write_text(yaml.safe_dump(config))
    definitions = [str(path) for path in (ROOT / "kubeocean" / "manifests").glob("*.yaml")]
    for path in definitions:
        await bare_hub.kubectl("apply", "--filename", path)
    await bare_hub.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    for name in SAMPLES:
        await bare_hub.kubectl("apply", "--filename", str(ROOT / "deploy" / "samples" / name))
    yield tmp_path / "both"
    for path in definitions:
        await bare_hub.kubectl("delete", "--filename", path, "--wait=false")


async def test_documents_are_accepted_and_commands_run(both: Path, bare_hub: ControlPlane) -> None:
    bodies = [body for page in PAGES for body in documents(page)]
    assert len(bodies) > 15
    for name in sorted({str(body["metadata"]["name"]) for body in bodies if body["kind"] == "Namespace"}):
        await bare_hub.kubectl("create", "namespace", name)
    text = "\n---\n".join(yaml.safe_dump(body) for body in bodies)
    await bare_hub.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-", stdin=text
    )
    found = [command for page in EXECUTED for command in kubectl_commands(DOCS / page)]
    assert len(found) >= 6
    for command in found:
        await bare_hub.kubectl("--kubeconfig", str(both), *command)


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
    blocks = [*re.findall(r"^```python\n(.*?)^```$", (DOCS / "build" / "containers.md").read_text(), re.MULTILINE | re.DOTALL)]
    blocks += re.findall(r"^```python\n(# batch\.py\n.*?)^```$", (DOCS / "build" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
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
        programs = [
            subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)})
            for command in ([sys.executable, "batch.py", "jobs"], run)
        ]
    try:
        await a_pod_with_two_containers_runs(bare_hub)
    finally:
        for program in programs:
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
