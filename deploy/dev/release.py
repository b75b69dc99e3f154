"""Builds the files of a release in build/release: sdist, wheel, charts, SBOM, changelog, kubectl plugin, and checksums of all.

Invariant: the same commit gives the same bytes with the same Python, whatever the time, the time zone, the umask and the times of
the files. The SBOM is the exception: it lists what pip installs on that day.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import io
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.cluster.processes import ClusterError

ROOT = Path(__file__).parents[2]
CHARTS: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "dev" / "charts.py"))
PLUGIN = "kubectl-kubeocean"
_PLUGIN = b"""\
#!/bin/sh
# The kubectl plugin: runs the command kubeocean, which the wheel of the release installs.
if ! command -v kubeocean >/dev/null; then
    echo "the command kubeocean is not on the PATH; install the wheel of the same release with pip (Python 3.11 or newer)" >&2
    exit 127
fi
exec kubeocean "$@"
"""


def commit_time() -> int:
    """Returns SOURCE_DATE_EPOCH, else the time of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))


def run(*command: str, epoch: int | None = None) -> str:
    """Runs a command and returns what it prints. Raises CalledProcessError."""
    environment = os.environ if epoch is None else {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def distributions(source: Path, target: Path, epoch: int) -> tuple[Path, Path]:
    """Builds the sdist and, from the sdist, the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source), epoch=epoch)
    (sdist,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    return sdist, wheel


def packed(files: Mapping[str, bytes], epoch: int, *, executable: Sequence[str] = ()) -> bytes:
    """Returns a .tar.gz of these files, in this order."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=epoch) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o755 if name in executable else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def chart_package(helm: str, chart: Path, target: Path, epoch: int) -> Path:
    """Creates the package of a chart with helm, and repacks it without the current time that helm writes into it."""
    with tempfile.TemporaryDirectory() as scratch:
        run(helm, "package", str(chart), "--destination", scratch)
        (made,) = Path(scratch).iterdir()
        with tarfile.open(made) as archive:
            files = {entry.name: content.read() for entry in archive if (content := archive.extractfile(entry)) is not None}
        package = target / made.name
        package.write_bytes(packed(files, epoch))
    return package


def write_sbom(wheel: Path, target: Path) -> None:
    """Writes the CycloneDX SBOM of an environment with the wheel and what it depends on."""
    with tempfile.TemporaryDirectory() as scratch:
        venv = Path(scratch, "venv")
        run(sys.executable, "-m", "venv", "--without-pip", str(venv))
        interpreter = str(venv / "bin" / "python")
        quiet = ("--quiet", "--no-compile", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", f"--python={interpreter}", "install", *quiet, f"{wheel}[fast]")
        options = ("--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-format=JSON")
        run(sys.executable, "-m", "cyclonedx_py", "environment", interpreter, *options, f"--output-file={target}")


def changelog(version: str, day: str, fragments: Iterable[Path], earlier: str = "") -> str:
    """Returns the changelog with a section of a version, made of the fragments, above those of earlier versions. Their README is none."""
    out = ["# Changelog", f"## {version} ({day})"]
    for path in sorted(path for path in fragments if path.name != "README.md"):
        text = path.read_text(encoding="utf-8").strip()
        first, _, rest = text.partition("\n")
        titled = first.startswith("# ")
        title = first.removeprefix("# ") if titled else path.stem.replace("-", " ").capitalize()
        out += [f"### {title}", rest.strip() if titled else text]
    return "\n\n".join([*out, *([former] if (former := earlier.partition("\n")[2].strip()) else [])]) + "\n"


def krew_manifest(version: str, uri: str, checksum: str) -> str:
    """Returns the manifest of the plugin for an index of krew."""
    systems = {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    platform = {"selector": {"matchExpressions": [systems]}, "uri": uri, "sha256": checksum, "bin": PLUGIN}
    spec = {
        "version": f"v{version}",
        "shortDescription": "Lease nodes of other clusters",
        "description": "Binds worker clusters, leases their nodes as virtual nodes of this cluster, and explains their state.",
        "caveats": "Needs the command kubeocean: install the wheel of the same release with pip (Python 3.11 or newer).",
        "platforms": [platform],
    }
    made = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "kubeocean"},
        "spec": spec,
    }
    return yaml.safe_dump(made, sort_keys=False, width=200)


def checksums(folder: Path) -> str:
    """Returns the SHA-256 of every file of a folder, in the format of sha256sum."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def build(target: Path, helm: str, *, base_url: str) -> None:
    """Builds everything into an empty folder."""
    version, epoch = CHARTS["project_version"](), commit_time()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _, wheel = distributions(ROOT, target, epoch)
    for chart in CHARTS["ALL"]:
        chart_package(helm, chart, target, epoch)
    write_sbom(wheel, target / f"vkubelet-{version}.cdx.json")
    earlier = ROOT / "CHANGELOG.md"
    day = datetime.fromtimestamp(epoch, UTC).date().isoformat()
    text = changelog(version, day, (ROOT / "docs" / "changes").glob("*.md"), earlier.read_text() if earlier.exists() else "")
    (target / "CHANGELOG.md").write_text(text, encoding="utf-8")
    plugin = target / f"{PLUGIN}-{version}.tar.gz"
    plugin.write_bytes(packed({PLUGIN: _PLUGIN, "LICENSE": (ROOT / "LICENSE").read_bytes()}, epoch, executable=[PLUGIN]))
    if base_url:
        checksum = hashlib.sha256(plugin.read_bytes()).hexdigest()
        (target / "kubeocean.yaml").write_text(krew_manifest(version, f"{base_url.rstrip('/')}/{plugin.name}", checksum))
    (target / "SHA256SUMS").write_text(checksums(target))


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the files of a release.")
    parser.add_argument("--base-url", default="", help="folder from which they will be downloaded; required for the manifest of krew")
    given = parser.parse_args()
    target = ROOT / "build" / "release"
    helm = asyncio.run(Binaries(say=print, clock=SystemClock()).ensure(["helm"]))["helm"]
    build(target, str(helm), base_url=given.base_url)
    for path in sorted(target.iterdir()):
        print(path.relative_to(ROOT))
    if not given.base_url:
        print("without --base-url there is no manifest for krew")


if __name__ == "__main__":
    try:
        main()
    except (ClusterError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
