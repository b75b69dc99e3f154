"""What a provider author gets: the built wheel in an empty virtual environment, against a real API server.

Invariant: nothing of this checkout is importable there; the provider by file is the very one that the tutorial shows.
"""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.integration.shipped import a_pod_runs_and_has_logs, forget_nodes, vkubelet
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


async def runs(venv: Path, cluster: ControlPlane, *, provider: str, instance: str, directory: Path) -> None:
    config = directory / "vkubelet.yaml"
    config.write_text(json.dumps({"health": {"health_address": "", "metrics_address": ""}, "server": {"main_port": False}}))
    arguments = ["--provider", provider, "--self-signed", "--instance", instance, "--config", str(config)]
    with vkubelet(venv, cluster, *arguments, kubeconfig=cluster.kubeconfig, directory=directory) as log:
        await a_pod_runs_and_has_logs(cluster, instance, log, shows="web runs")
    await forget_nodes(cluster, instance)


async def test_the_wheel_in_an_empty_environment_runs_the_minimal_provider(
    empty_venv: Path, bare_hub: ControlPlane, tmp_path: Path
) -> None:
    await runs(empty_venv, bare_hub, provider="minimal", instance="wheel-minimal", directory=tmp_path)


async def test_the_provider_of_the_tutorial_runs_from_its_file(
    empty_venv: Path, bare_hub: ControlPlane, tutorial_provider: Path, tmp_path: Path
) -> None:
    await runs(empty_venv, bare_hub, provider="./mine.py", instance="wheel-file", directory=tmp_path)


def test_the_wheel_ships_its_data_and_knows_its_providers(empty_venv: Path) -> None:
    (packages,) = (empty_venv / "lib").glob("python3*/site-packages")
    for file in (
        "vkubelet/py.typed",
        "kubeocean/py.typed",
        "fleet/py.typed",
        "vkubelet_providers/py.typed",
        "vkubelet/testing/cluster/gomod/go.mod",
    ):
        assert (packages / file).is_file(), file
    assert list(packages.glob("kubeocean/**/*clusterbinding*.yaml"))
    assert list(packages.glob("kubeocean/**/*resourceleasingpolic*.yaml"))
    assert (packages / "fleet/manifests/managedclusters.yaml").is_file()
    done = subprocess.run([empty_venv / "bin/fleet", "version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{version('vkubelet')}\n")
    for provider in ("minimal", "mock"):
        done = subprocess.run([empty_venv / "bin/vkubelet", "check", "--provider", provider], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "SupportsLogs: yes" in done.stdout
