"""Runs tests with another version of Python or Kubernetes than the development environment has; not a part of `make test`.

`versions.py python [SUITE]` runs the unit tests with the Python of a Debian suite, in a chroot that debootstrap makes; it needs root.
`versions.py kubernetes VERSION` builds a control plane of that version with Go, and runs the tests whose subject is the API server.

Invariant: what is made is kept in the cache of the cluster programs, complete or not at all; the checkout is not changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vkubelet.testing.cluster.binaries import PROGRAMS, cache_directory, kubernetes_flags

ROOT = Path(__file__).parents[2]
SUITE = "trixie"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "tzdata", "git", "procps")
SHARED = (Path("/etc/resolv.conf"), Path("/etc/ssl/certs/ca-certificates.crt"))
"""Files that the chroot has from this machine: its name servers, and the authorities that it trusts."""
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
JUDGED = (
    "tests/integration/kubeocean/test_definitions.py",
    "tests/integration/deploy/test_admission.py",
    "tests/integration/deploy/test_charts.py",
    "tests/integration/deploy/test_worker_guards.py",
    "tests/integration/kubeocean/test_policies.py",
)
"""Tests of definitions, admission policies, charts, and of a binding at work."""


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a command, whose output is shown. Raises CalledProcessError."""
    print("+", *command, flush=True)
    subprocess.run(command, check=True, env=None if env is None else {**os.environ, **env})


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- Python -------------------------------------------------------------------------------------------------------------------------------


def suite(name: str) -> Path:
    """Returns the directory of a Debian suite with Python."""
    target = cache_directory().parent / f"debian-{name}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if shutil.which("debootstrap") is None:
            run("apt-get", "install", "--yes", "--no-install-recommends", "debootstrap")
        draft = Path(tempfile.mkdtemp(prefix=f".debian-{name}-", dir=target.parent))
        run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", name, draft, MIRROR)
        # Tests run programs as other users.
        draft.chmod(0o755)
        draft.replace(target)
    return target


def with_python(name: str, tests: Sequence[str]) -> None:
    """Runs tests on a copy of the checkout in the chroot."""
    root = suite(name)
    for shared in SHARED:
        shutil.copyfile(shared, root / shared.relative_to("/"))
    copy = root / "src"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    archive = subprocess.run(("git", "-C", str(ROOT), "archive", "HEAD"), check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(("tar", "-x", "-C", str(copy)), check=True, input=archive)
    script = """
        cd /src
        git init --quiet && git add --all
        mkdir -p .editable && ln -sfn ../providers .editable/vkubelet_providers
        [ -x /venv/bin/python ] || python3 -m venv /venv
        /venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile -e '.[test,dev,fast]'
        /venv/bin/python --version
        exec /venv/bin/python -m pytest -q --timeout=120 "$@"
    """
    # The mount namespace of this shell contains the mounts, which are removed with it; the new root is one, as that of any other machine.
    mounts = 'mount --bind "$0" "$0" && cd "$0" && mount --bind /proc proc && mount --rbind /sys sys && mount --rbind /dev dev'
    enter = f'{mounts} && exec chroot . /bin/sh -ec "$@"'
    run("unshare", "--mount", "sh", "-c", enter, root, script, "sh", *tests)


# --- Kubernetes ---------------------------------------------------------------------------------------------------------------------------


def module(version: str) -> str:
    """Returns a go.mod of this version of Kubernetes: its staging modules are published under versions v0.x."""
    published = json.loads(output("go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"))
    text = Path(published["GoMod"]).read_text()
    go = re.search(r"^go (\S+)$", text, flags=re.MULTILINE)
    staging = re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0$", text, flags=re.MULTILINE)
    assert go is not None and staging, f"the go.mod of {version} is not as expected"
    lines = ["module control-plane", f"go {go[1]}", f"require k8s.io/kubernetes {version}"]
    found = available(staging, version.replace("v1.", "v0.", 1))
    return "\n".join([*lines, *(f"replace {name} => {name} {chosen}" for name, chosen in found.items())]) + "\n"


def available(names: Sequence[str], version: str) -> dict[str, str]:
    """Returns the version of each module: this one, or the latest patch before it, where the proxy of modules does not have it."""
    asked = subprocess.run(("go", "mod", "download", "-json", *(f"{name}@{version}" for name in names)), stdout=subprocess.PIPE, text=True)
    missing = {each["Path"] for each in documents(asked.stdout) if each.get("Error")}
    return {name: patch_before(name, version) if name in missing else version for name in names}


def documents(text: str) -> Iterator[dict[str, str]]:
    """Yields the objects of a stream of JSON."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        found, at = decoder.raw_decode(text, at)
        yield found


def patch_before(name: str, version: str) -> str:
    minor, _, patch = version.rpartition(".")
    listed = output("go", "list", "-m", "-versions", name).split()[1:]
    known = [int(each.removeprefix(f"{minor}.")) for each in listed if re.fullmatch(rf"{re.escape(minor)}\.\d+", each)]
    chosen = f"{minor}.{max(each for each in known if each < int(patch))}"
    print(f"{name} {version} is not available; {chosen} is used instead", flush=True)
    return chosen


def control_plane(version: str) -> Path:
    """Returns a directory with the servers of this version, which are built where they are missing."""
    target = cache_directory(version=version)
    target.mkdir(parents=True, exist_ok=True)
    missing = [name for name in SERVERS if not (target / name).exists()]
    if not missing:
        return target
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "go.mod").write_text(module(version))
        for name in missing:
            draft = target / f".{name}"
            flags = ("-mod=mod", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w {kubernetes_flags(version)}")
            run("go", "-C", scratch, "build", *flags, "-o", draft, PROGRAMS[name].package, env={"CGO_ENABLED": "0"})
            draft.replace(target / name)
    return target


def with_kubernetes(version: str, tests: Sequence[str]) -> None:
    """Runs tests against a control plane of this version; etcd and helm are those of `make test`."""
    run(sys.executable, "-m", "pytest", "-q", *tests, env={"KUBEBUILDER_ASSETS": str(control_plane(version))})


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs tests with other versions.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    python = kinds.add_parser("python", help="unit tests with the Python of a Debian suite")
    python.add_argument("suite", nargs="?", default=SUITE)
    kubernetes = kinds.add_parser("kubernetes", help="tests of the API server with another version, such as v1.32.13")
    kubernetes.add_argument("version")
    for each, default in ((python, ["tests/unit"]), (kubernetes, list(JUDGED))):
        each.add_argument("--tests", nargs="+", default=default)
    given = parser.parse_args()
    try:
        if given.kind == "python":
            with_python(given.suite, given.tests)
        else:
            with_kubernetes(given.version, given.tests)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
