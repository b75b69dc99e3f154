"""The built wheel, for tests of what somebody gets who has only that.

Invariant: it is built and installed once, when the first test asks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds the built wheel, what it depends on, and nothing else."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True, timeout=120)
    (wheel,) = place.glob("*.whl")
    install = [str(place / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    return place / "venv"
