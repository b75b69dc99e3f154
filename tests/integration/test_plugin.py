"""The pytest plugin as an author of a provider has it: from the built wheel, in the author's own project.

Invariant: pytest is installed beside the wheel, and the plugin is loaded by the conftest of the guide alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import pip_install

PAGE = Path(__file__).parents[2] / "docs" / "build" / "guide.md"

PROVIDER = """
from vkubelet_providers.minimal import Minimal


class Mine(Minimal):
    pass


class Half(Minimal):
    async def list_pods(self, node):
        return []
"""

TESTS = """
import asyncio

import pytest
from mine import Half, Mine
from vkubelet.testing.conformance import Options, Outcome, table
from vkubelet.testing.host import make_pod


def test_the_clock_stands_still(vkubelet_clock, vkubelet_host):
    before = vkubelet_host.clock.now()
    asyncio.run(vkubelet_clock.advance(3600))
    assert (vkubelet_host.clock.now() - before).total_seconds() == 3600


def test_the_host_remembers(vkubelet_host):
    async def scene():
        mine, pod = Mine(), make_pod(node="minimal")
        async with asyncio.TaskGroup() as group:
            group.create_task(mine.run(vkubelet_host))
            await vkubelet_host.manual_clock.settle()
            await mine.sync_pod(pod)
            vkubelet_host.stop()
        return pod

    pod = asyncio.run(scene())
    assert list(vkubelet_host.nodes) == ["minimal"] and vkubelet_host.latest(pod.ref.uid).pod == pod.ref


def test_the_cluster_answers(vkubelet_cluster):
    assert "default" in asyncio.run(vkubelet_cluster.kubectl("get", "namespaces"))


def test_a_provider_is_examined(vkubelet_conformance):
    report = vkubelet_conformance(lambda: Half(Half.Settings("half")), Options(patience=45.0), only=["list-complete", "delete-ends"])
    assert report.names(Outcome.FAILED) == ["list-complete"], table(report)
    assert report.names(Outcome.PASSED) == ["node-ready", "delete-ends"]
"""

NOTHING = """
import sys


def test_the_package_is_not_imported(request):
    assert "vkubelet" not in sys.modules
"""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def pytest_packages(empty_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pytest, so that the environment of the wheel stays as it is."""
    target = tmp_path_factory.mktemp("pytest")
    pip_install(empty_venv, "--target", str(target), "pytest")
    return target


def run_pytest(venv: Path, packages: Path, directory: Path, *args: str) -> str:
    """Its output; all tests have to pass."""
    env = {**os.environ, "PYTHONPATH": str(packages)}
    command = [str(venv / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def conftest() -> str:
    """The block of the guide that loads the plugin."""
    (found,) = re.findall(r"^```python\n(# conftest\.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def test_a_project_that_does_not_load_the_plugin_does_not_import_the_package(
    empty_venv: Path, pytest_packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_nothing.py").write_text(NOTHING)
    assert "1 passed" in run_pytest(empty_venv, pytest_packages, tmp_path)


def test_the_plugin_adds_no_names_but_its_own(empty_venv: Path, pytest_packages: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(conftest())
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    listed = run_pytest(empty_venv, pytest_packages, tmp_path, "--fixtures").partition("fixtures defined from vkubelet.testing.plugin")[2]
    names = re.findall(r"^(\w+)(?: \[\w+ scope\])? --", listed.partition("fixtures defined")[0], re.MULTILINE)
    assert sorted(names) == ["vkubelet_clock", "vkubelet_cluster", "vkubelet_conformance", "vkubelet_host"]


def test_an_author_tests_a_provider_with_the_fixtures(empty_venv: Path, pytest_packages: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(conftest())
    (tmp_path / "mine.py").write_text(PROVIDER)
    (tmp_path / "test_mine.py").write_text(TESTS)
    assert "4 passed" in run_pytest(empty_venv, pytest_packages, tmp_path)
