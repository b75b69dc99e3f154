"""The projects that `vkubelet init` writes, used as their README shows: with the built wheel, in an environment without this checkout.

Invariant: nothing of a project is changed before its tests run; what the chart grants is all that the installed provider has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import make_venv
from tests.integration.shipped import a_pod_runs_and_has_logs, forget_nodes, outside, vkubelet
from tests.support.audit import Audit
from tests.support.installed import Helm
from vkubelet.scaffold import Project
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.cluster.pki import write_kubeconfig

PODS, CONTAINERS = Project.of("demo-pods"), Project.of("demo-containers", containers=True)
BOTH = (PODS, CONTAINERS)

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Project, Path]:
    made = {project: tmp_path_factory.mktemp("init") / project.name for project in BOTH}
    for project, directory in made.items():
        project.write(directory)
    return made


@pytest.fixture(scope="module")
def venv(wheel: Path, projects: Mapping[Project, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and both projects, with what their tests need."""
    editable = [word for directory in projects.values() for word in ("--editable", f"{directory}[test]")]
    return make_venv(tmp_path_factory.mktemp("projects") / "venv", str(wheel), *editable)


async def own_tests(venv: Path, directory: Path) -> tuple[int | None, str]:
    """Exit code and output of the tests of a project."""
    command = [str(venv / "bin/python"), "-m", "pytest", "-rP"]
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(*command, cwd=directory, env=outside(), stdout=pipe, stderr=both)
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode, out.decode()


async def test_projects_pass_their_tests_and_the_conformance_suite(venv: Path, projects: Mapping[Project, Path]) -> None:
    # They wait more than they work.
    ran = await asyncio.gather(*(own_tests(venv, directory) for directory in projects.values()))
    for project, (code, out) in zip(projects, ran, strict=True):
        assert code == 0, out
        assert f"provider {project.package}.provider.{project.kind}" in out and " 0 failed, " in out
        print(f"{project.name}: {out.splitlines()[-1]}")


async def test_rights_of_the_chart_suffice_for_the_provider(
    venv: Path, projects: Mapping[Project, Path], bare_hub: ControlPlane, tmp_path: Path
) -> None:
    project, user = CONTAINERS, f"system:serviceaccount:{CONTAINERS.name}:{CONTAINERS.name}"
    helm, chart = Helm(bare_hub, tmp_path), str(projects[project] / "chart")
    await helm("lint", chart, "--strict")
    ports = {"settings__health__health_address": "", "settings__health__metrics_address": "", "settings__server__main_port": "0"}
    rendered = await helm("template", project.name, chart, f"--namespace={project.name}", **ports)
    await bare_hub.kubectl("create", "namespace", project.name)
    await bare_hub.kubectl("apply", "--filename=-", stdin=rendered)
    [config] = [body for body in yaml.safe_load_all(rendered) if body["kind"] == "ConfigMap"]
    (tmp_path / "settings.yaml").write_text(config["data"]["settings.yaml"])
    token = (await bare_hub.kubectl("create", "token", project.name, "--namespace", project.name)).strip()
    access = write_kubeconfig(tmp_path / "access", "hub", server=bare_hub.url, ca=bare_hub.ca.read_bytes(), client=token)
    audit, arguments = Audit(bare_hub, user), ["--provider", project.name, "--config", str(tmp_path / "settings.yaml")]
    try:
        with vkubelet(venv, bare_hub, *arguments, kubeconfig=access, directory=tmp_path) as log:
            await a_pod_runs_and_has_logs(bare_hub, project.name, log, shows="main runs")
    finally:
        await forget_nodes(bare_hub, project.name)
        await bare_hub.kubectl("delete", "--filename=-", "--wait=false", stdin=rendered)
        await bare_hub.kubectl("delete", "namespace", project.name, "--wait=false")
    assert audit.writes() and not [str(call) for call in audit.calls() if call.code == 403]
