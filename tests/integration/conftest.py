"""A client of ours and one that is not ours on the same cluster, and the built wheel.

Invariant: the wheel is built and installed once, when the first test asks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.support.witness import api_client
from vkubelet.client.connection import load_connection
from vkubelet.client.rest import Client
from vkubelet.testing.cluster import ControlPlane

ROOT = Path(__file__).parents[2]
_WORK = 500.0
"""Seconds for one step of making the environment: nobody has promised how fast pip is, and what hangs does so for good."""


@pytest.fixture
async def client(hub: ControlPlane) -> AsyncIterator[Client]:
    """Ours, as cluster administrator."""
    async with Client(await load_connection(kubeconfig=hub.kubeconfig), field_manager="tests") as ours:
        yield ours


@pytest.fixture
def witness(hub: ControlPlane) -> Any:
    """A CoreV1Api of the official package; untyped, because there every field may be None."""
    return k8s.CoreV1Api(api_client(hub.kubeconfig))


@pytest.fixture
async def namespace(hub: ControlPlane) -> str:
    return await hub.namespace("test")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=_WORK)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def empty_venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds the built wheel, what it depends on, and nothing else."""
    return make_venv(tmp_path_factory.mktemp("empty") / "venv", str(wheel))


def make_venv(place: Path, *what: str) -> Path:
    """A new virtual environment in which pip, which it does not have itself, has installed this."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=_WORK)
    pip_install(place, *what)
    return place


def pip_install(venv: Path, *what: str) -> None:
    """`pip install` for this environment; what is imported gets its bytecode then, and all else is not compiled."""
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--no-compile", *what], capture_output=True, text=True, check=False, timeout=_WORK)
    assert done.returncode == 0, done.stderr
