"""What a provider author gets: the built wheel in an empty virtual environment, against a real API server.

Invariant: nothing of this checkout is importable there; the provider by file is the very one that the tutorial shows.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "start" / "provider.md"

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def tutorial_provider(tmp_path: Path) -> Path:
    """The provider of the tutorial, as a file."""
    text = TUTORIAL.read_text().partition("```python\n")[2].partition("```")[0]
    assert len(text.splitlines()) <= 40
    (tmp_path / "mine.py").write_text(text)
    return tmp_path / "mine.py"


@contextmanager
def vkubelet(venv: Path, cluster: ControlPlane, *, provider: str, instance: str, directory: Path) -> Iterator[Path]:
    """`vkubelet run` of the wheel; gives its log. Started outside of the checkout, so that only the wheel is found."""
    config = directory / "vkubelet.yaml"
    config.write_text(json.dumps({"health": {"health_address": "", "metrics_address": ""}, "server": {"main_port": False}}))
    command = [str(venv / "bin/vkubelet"), "run", "--provider", provider, "--self-signed", "--instance", instance]
    command += ["--kubeconfig", str(cluster.kubeconfig), "--node-address", cluster.host_address, "--config", str(config)]
    log = directory / "vkubelet.log"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield log
        assert process.poll() is None, f"it ended by itself:\n{log.read_text()}"
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


async def ready_node(cluster: ControlPlane, instance: str) -> str:
    """Name of the node of that instance, when it is Ready; else empty."""
    listed = json.loads(await cluster.kubectl("get", "nodes", "--selector", f"vkubelet.io/instance={instance}", "--output", "json"))
    for node in listed["items"]:
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ())):
            return str(node["metadata"]["name"])
    return ""


def pod_on(node: str) -> str:
    containers = [{"name": "main", "image": "example.invalid/never-pulled"}]
    spec = {"nodeName": node, "containers": containers, "tolerations": [{"operator": "Exists"}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})


async def a_pod_runs_and_has_logs(cluster: ControlPlane, instance: str, log: Path) -> None:
    node = await eventually(lambda: ready_node(cluster, instance), f"a node of {instance} is Ready", seconds=60)
    namespace = await cluster.namespace("wheel")
    try:
        await cluster.kubectl("--namespace", namespace, "create", "--filename", "-", stdin=pod_on(node))
        await cluster.kubectl("--namespace", namespace, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
        assert "web runs" in await cluster.kubectl("--namespace", namespace, "logs", "web")
        await cluster.kubectl("--namespace", namespace, "delete", "pod", "web", "--timeout=60s")
    finally:
        print(log.read_text())


async def forget_nodes(cluster: ControlPlane, instance: str) -> None:
    """Only once the program has ended: it would register a node that is deleted by hand again."""
    await cluster.kubectl("delete", "nodes", "--selector", f"vkubelet.io/instance={instance}")


async def test_the_wheel_in_an_empty_environment_runs_the_minimal_provider(
    empty_venv: Path, bare_hub: ControlPlane, tmp_path: Path
) -> None:
    with vkubelet(empty_venv, bare_hub, provider="minimal", instance="wheel-minimal", directory=tmp_path) as log:
        await a_pod_runs_and_has_logs(bare_hub, "wheel-minimal", log)
    await forget_nodes(bare_hub, "wheel-minimal")


async def test_the_provider_of_the_tutorial_runs_from_its_file(
    empty_venv: Path, bare_hub: ControlPlane, tutorial_provider: Path, tmp_path: Path
) -> None:
    with vkubelet(empty_venv, bare_hub, provider="./mine.py", instance="wheel-file", directory=tmp_path) as log:
        await a_pod_runs_and_has_logs(bare_hub, "wheel-file", log)
    await forget_nodes(bare_hub, "wheel-file")


def test_the_wheel_ships_its_data_and_knows_its_providers(empty_venv: Path) -> None:
    (packages,) = (empty_venv / "lib").glob("python3*/site-packages")
    for file in ("vkubelet/py.typed", "kubeocean/py.typed", "vkubelet_providers/py.typed", "vkubelet/testing/cluster/gomod/go.mod"):
        assert (packages / file).is_file(), file
    assert list(packages.glob("kubeocean/**/*clusterbinding*.yaml"))
    assert list(packages.glob("kubeocean/**/*resourceleasingpolic*.yaml"))
    for provider in ("minimal", "mock"):
        done = subprocess.run([empty_venv / "bin/vkubelet", "check", "--provider", provider], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "SupportsLogs: yes" in done.stdout
