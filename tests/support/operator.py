"""The definitions of the Prometheus operator's objects, as it publishes them.

Invariant: only files of the release that is named here by its checksum are used; they are fetched once and kept in the cache.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from vkubelet.testing.cluster.binaries import cache_directory

MODULE = "github.com/prometheus-operator/prometheus-operator"
VERSION = "v0.85.0"
CHECKSUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
_FOLDER = "example/prometheus-operator-crd"


def definitions(*plurals: str) -> list[Path]:
    """The CustomResourceDefinitions of `servicemonitors`, `prometheusrules`, …"""
    place = cache_directory().parent / "prometheus-operator" / VERSION
    wanted = [place / f"monitoring.coreos.com_{plural}.yaml" for plural in plurals]
    if not all(path.exists() for path in wanted):
        _fetch([path.name for path in wanted], place)
    return wanted


def _fetch(names: list[str], place: Path) -> None:
    assert shutil.which("go"), f"install Go: the tests take {', '.join(names)} from the module {MODULE}"
    with tempfile.TemporaryDirectory() as scratch:
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["Sum"] == CHECKSUM, found
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        draft = place / f".{name}"
        shutil.copyfile(Path(found["Dir"], _FOLDER, name), draft)
        draft.replace(place / name)
