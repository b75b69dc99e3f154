"""Builds the programs of a cluster from source with Go; the package data `gomod` names every module and its checksum.

Invariant: nothing is written except in the cache and a temporary directory, and a program appears in the cache only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from vkubelet.clock import Clock
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run
from vkubelet.testing.cluster.programs import ALL, ON_DEMAND, PROGRAMS, VERSION, Program
from vkubelet.testing.cluster.progress import told


async def build(targets: Mapping[str, Path], *, say: Callable[[str], None], clock: Clock) -> None:
    """Builds these programs, each into its file. Raises ClusterError without Go, or with the compiler's last lines."""
    if shutil.which("go") is None:
        raise ClusterError(
            f"missing: {', '.join(targets)}. Install Go 1.24 or newer to build them (go.dev/doc/install), or put them on the PATH "
            f"(Kubernetes {VERSION}, etcd 3.6) or into a directory named by KUBEBUILDER_ASSETS."
        )
    count = f"{len(targets)} program{'s' if len(targets) > 1 else ''}"
    say(f"building {count} with Go; the first time this takes about {minutes(targets)} on two cores")
    for position, (name, target) in enumerate(targets.items(), start=1):
        text = f"building {name} ({position} of {len(targets)})"
        await told(_build_one(name, PROGRAMS[name], target), text, say=say, clock=clock)


def minutes(names: Iterable[str]) -> str:
    """Estimates the build time: the programs of Kubernetes share most of their packages; every other one starts from scratch."""
    names = set(names)
    together = 5 if names & set(ALL) else 0
    return f"{together + 2 * len(names & set(ON_DEMAND))} minutes"


@contextmanager
def _module(folder: str) -> Iterator[Path]:
    """Yields a copy of the files that name the modules, because Go needs a writable directory."""
    source = resources.files("vkubelet.testing.cluster").joinpath("gomod", folder)
    with tempfile.TemporaryDirectory(prefix="vkubelet-build-") as scratch:
        for file in ("go.mod", "go.sum"):
            Path(scratch, file).write_bytes(source.joinpath(file).read_bytes())
        yield Path(scratch)


async def _build_one(name: str, program: Program, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{name}.{os.getpid()}")
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {program.flags(program.version)}"]
    try:
        with _module(program.module) as module:
            environment = {**os.environ, "CGO_ENABLED": "0"}
            await run("go", "-C", str(module), "build", *flags, "-o", str(draft), program.package, env=environment)
        draft.replace(target)
    except CommandFailed as error:
        lines = "\n".join(error.stderr.strip().splitlines()[-20:])
        raise ClusterError(f"building {name} failed:\n{lines}") from error
    finally:
        draft.unlink(missing_ok=True)
