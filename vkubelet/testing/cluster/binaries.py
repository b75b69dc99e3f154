"""Finds the programs of a cluster: given ones, the PATH, a cache, the official release, or a build from source.

Invariant: a file in the cache is complete and of the version its directory names, because it is renamed into place as the last step.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from vkubelet.clock import Clock
from vkubelet.testing.cluster import build, download
from vkubelet.testing.cluster.processes import ClusterError
from vkubelet.testing.cluster.programs import ALL, CONTROL_PLANE, ETCD_SERIES, KUBERNETES, NODE, ON_DEMAND, PROGRAMS, VERSION

__all__ = ["ALL", "CONTROL_PLANE", "KUBERNETES", "NODE", "ON_DEMAND", "VERSION", "Binaries", "cache_directory", "find"]

LOCK_LINE_SECONDS = 10.0
QUESTIONS = {"kubectl": ["version", "--client"], "helm": ["version", "--template", "{{.Version}}"]}
"""Arguments that print the version of a program."""


def cache_directory(environment: Mapping[str, str] = os.environ, version: str = VERSION) -> Path:
    """Returns `$XDG_CACHE_HOME/vkubelet/<version>`, by default below ~/.cache (XDG Base Directory Specification)."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or "/root") / ".cache")
    return Path(base) / "vkubelet" / version


def cached(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the program in the cache."""
    return cache_directory(environment, PROGRAMS[name].version) / name


def find(name: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Finds an existing program: KUBEBUILDER_ASSETS, then the PATH if the version matches, then the cache."""
    assets = environment.get("KUBEBUILDER_ASSETS")
    if assets and _executable(Path(assets) / name):
        return Path(assets) / name
    on_path = shutil.which(name, path=environment.get("PATH", ""))
    if on_path is not None and _matches(name, on_path):
        return Path(on_path)
    made = cached(name, environment)
    return made if _executable(made) else None


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _matches(name: str, path: str) -> bool:
    if name == "agnhost":
        return False
    question = QUESTIONS.get(name, ["--version"])
    try:
        answer = subprocess.run([path, *question], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    words = answer.split()
    if name == "etcd":
        return any(word.startswith(ETCD_SERIES) for word in words)
    return PROGRAMS[name].version in words


class Binaries:
    """Programs of one run; a missing one is built once and kept in the cache for later runs."""

    def __init__(self, *, say: Callable[[str], None], clock: Clock, environment: Mapping[str, str] = os.environ) -> None:
        self._say = say
        self._clock = clock
        self._environment = environment
        self._found: dict[str, Path] = {}

    def missing(self, names: Iterable[str]) -> list[str]:
        """Returns those that are missing on this machine."""
        absent: list[str] = []
        for name in names:
            path = self._found.get(name) or find(name, self._environment)
            if path is None:
                absent.append(name)
            else:
                self._found[name] = path
        return absent

    async def ensure(self, names: Iterable[str]) -> dict[str, Path]:
        """Returns the paths of these programs, downloaded or built when they are missing.

        Raises ClusterError with what to install when that is impossible.
        """
        names = list(names)
        if self.missing(names):
            cache = cache_directory(self._environment)
            cache.mkdir(parents=True, exist_ok=True)
            async with self._lock(cache):
                await self._make(cache, names)
        return {name: self._found[name] for name in names}

    async def _make(self, cache: Path, names: list[str]) -> None:
        # Another run may have built them while this one waited for the lock.
        released = [name for name in self.missing(names) if name in KUBERNETES]
        if released:
            await download.fetch(released, VERSION, cache=cache, say=self._say, clock=self._clock)
        if absent := self.missing(names):
            targets = {name: cached(name, self._environment) for name in absent}
            await build.build(targets, say=self._say, clock=self._clock)
        if absent := self.missing(names):
            raise ClusterError(f"still missing after download and build: {', '.join(absent)}")

    @asynccontextmanager
    async def _lock(self, cache: Path) -> AsyncIterator[None]:
        with (cache / ".lock").open("w") as stream:
            told = float("-inf")
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self._clock.monotonic() - told >= LOCK_LINE_SECONDS:
                        told = self._clock.monotonic()
                        self._say("waiting for another run that makes the cluster binaries …")
                    await self._clock.sleep(0.5)
            yield
