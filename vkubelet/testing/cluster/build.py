"""Builds the programs of a cluster from source with Go; the package data `gomod` names every module and its checksum.

Invariant: nothing is written beside the cache and a temporary directory, and a program appears in the cache only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from vkubelet.clock import Clock
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run
from vkubelet.testing.cluster.progress import told

PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
}


def linker_flags(version: str) -> str:
    """Without the version in it, a server calls itself v0.0.0, and clients draw wrong conclusions."""
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    return f"-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


async def build(names: Sequence[str], version: str, *, cache: Path, say: Callable[[str], None], clock: Clock) -> None:
    """Build these programs into `cache`. Raises ClusterError without Go, or with the compiler's last lines."""
    if shutil.which("go") is None:
        raise ClusterError(
            f"missing: {', '.join(names)}. Install Go 1.24 or newer to build them (go.dev/doc/install), or put them on the PATH "
            f"(Kubernetes {version}, etcd 3.6) or into a directory named by KUBEBUILDER_ASSETS."
        )
    say(f"building {len(names)} programs with Go; the first time this takes about five minutes on two cores")
    with tempfile.TemporaryDirectory(prefix="vkubelet-build-") as scratch:
        module = Path(scratch)
        for file in ("go.mod", "go.sum"):
            content = resources.files("vkubelet.testing.cluster").joinpath("gomod", file).read_bytes()
            (module / file).write_bytes(content)
        for position, name in enumerate(names, start=1):
            text = f"building {name} ({position} of {len(names)})"
            await told(_build_one(name, version, module, cache), text, say=say, clock=clock)


async def _build_one(name: str, version: str, module: Path, cache: Path) -> None:
    draft = cache / f".{name}.{os.getpid()}"
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", linker_flags(version)]
    try:
        await run("go", "-C", str(module), "build", *flags, "-o", str(draft), PACKAGES[name], env={**os.environ, "CGO_ENABLED": "0"})
        draft.replace(cache / name)
    except CommandFailed as error:
        lines = "\n".join(error.stderr.strip().splitlines()[-20:])
        raise ClusterError(f"building {name} failed:\n{lines}") from error
    finally:
        draft.unlink(missing_ok=True)
