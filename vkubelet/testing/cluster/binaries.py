"""Finds the programs of a cluster: given ones, the PATH, a cache, the official release, or a build from source.

Invariant: a file in the cache is complete and of the version its directory names, because it is renamed into place as the last step; a
downloaded one has the published SHA-512. Without a network, downloads give up in seconds.
A new program is one row of `PROGRAMS` and a tool of the module in `gomod`; it has a separate module, a folder below, only if it does not
compile with the libraries of the first one, of which Go then has to compile two versions.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from pathlib import Path

import aiohttp
from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run, with_progress

VERSION = "v1.34.4"
ETCD_SERIES = "3.6."


def kubernetes_flags(version: str) -> str:
    """Returns linker flags: without the version in it, a server calls itself v0.0.0, and clients draw wrong conclusions."""
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    return f"-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


def kwok_flags(version: str) -> str:
    return f"-X sigs.k8s.io/kwok/pkg/consts.Version={version}"


def helm_flags(version: str) -> str:
    """Returns linker flags: without a cluster, charts are rendered for the version of ours."""
    _, minor, _ = VERSION.split(".")
    packages = [f"helm.sh/helm/v3/pkg/{part}" for part in ("chartutil", "lint/rules")]
    known = " ".join(f"-X {package}.k8sVersionMajor=1 -X {package}.k8sVersionMinor={minor}" for package in packages)
    return f"-X helm.sh/helm/v3/internal/version.version={version} {known}"


def no_flags(version: str) -> str:
    """Returns no linker flags: the version is a constant of the module, or no client asks for it."""
    return ""


@frozen(kw_only=True)
class Program:
    """One program: the Go package it is built from, the folder below `gomod` with its module ("" is `gomod` itself), and linker flags for
    variables of packages that no other program of the module has."""

    package: str
    module: str = ""
    version: str = VERSION
    flags: Callable[[str], str] = kubernetes_flags


PROGRAMS = {
    "etcd": Program(package="go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Program(package="k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": Program(package="k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": Program(package="k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": Program(package="k8s.io/kubernetes/cmd/kubectl"),
    "kubelet": Program(package="k8s.io/kubernetes/cmd/kubelet"),
    "agnhost": Program(package="k8s.io/kubernetes/test/images/agnhost"),
    # The following are only built on request.
    "kube-proxy": Program(package="k8s.io/kubernetes/cmd/kube-proxy"),
    # With a main package of ours, as the one of CoreDNS imports the clients of every cloud.
    "coredns": Program(package="vkubelet/testing/cluster/coredns", version="v1.12.4", flags=no_flags),
    "kwok": Program(package="sigs.k8s.io/kwok/cmd/kwok", module="kwok", version="v0.7.0", flags=kwok_flags),
    "metrics-server": Program(package="sigs.k8s.io/metrics-server/cmd/metrics-server", version="v0.8.0", flags=no_flags),
    "helm": Program(package="helm.sh/helm/v3/cmd/helm", version="v3.19.5", flags=helm_flags),
}
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
"""Programs of an official release that every development cluster runs."""
RELEASED = (*KUBERNETES, "kube-proxy")
"""Programs in an official release."""
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE = ("kubelet", "agnhost")
ALL = ("etcd", *KUBERNETES, "agnhost")
"""Programs that `make demo` needs."""
ON_DEMAND = tuple(name for name in PROGRAMS if name not in ALL)

__all__ = ["ALL", "CONTROL_PLANE", "KUBERNETES", "NODE", "ON_DEMAND", "VERSION", "Binaries", "cache_directory", "find"]

LOCK_LINE_SECONDS = 10.0
RELEASES = "https://dl.k8s.io/release"
REACH_SECONDS = 4.0
STALL_SECONDS = 20.0
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_GO = {"CGO_ENABLED": "0", "GOGC": "off", "GOMEMLIMIT": "2GiB"}
"""Environment of a build. A compiler exits before it has to collect garbage, unless a package is very large: a tenth less CPU."""
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
        released = [name for name in self.missing(names) if name in RELEASED]
        if released:
            await _download(released, VERSION, cache=cache, say=self._say, clock=self._clock)
        if absent := self.missing(names):
            targets = {name: cached(name, self._environment) for name in absent}
            await _build(targets, say=self._say, clock=self._clock)
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


# --- the official release -----------------------------------------------------------------------------------------------------------------


async def _download(names: Sequence[str], version: str, *, cache: Path, say: Callable[[str], None], clock: Clock) -> None:
    """Fetches these programs into `cache`; those not available are left to the build, with a message."""
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return
    base = f"{RELEASES}/{version}/bin/linux/{architecture}"
    async with aiohttp.ClientSession(trust_env=True) as session:
        for position, name in enumerate(names, start=1):
            try:
                checksum = await _checksum(session, f"{base}/{name}.sha512")
                text = f"downloading {name} ({position} of {len(names)})"
                await with_progress(_fetch_one(session, f"{base}/{name}", checksum, cache / name), text, say=say, clock=clock)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                say(f"the release server cannot be used ({type(error).__name__})")
                return


async def _checksum(session: aiohttp.ClientSession, url: str) -> str:
    timeout = aiohttp.ClientTimeout(total=REACH_SECONDS)
    async with session.get(url, timeout=timeout, raise_for_status=True) as response:
        return (await response.text()).split()[0]


async def _fetch_one(session: aiohttp.ClientSession, url: str, checksum: str, target: Path) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    digest = hashlib.sha512()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=REACH_SECONDS, sock_read=STALL_SECONDS)
    try:
        async with session.get(url, timeout=timeout, raise_for_status=True) as response:
            with draft.open("wb") as stream:
                async for chunk in response.content.iter_chunked(1 << 20):
                    digest.update(chunk)
                    stream.write(chunk)
        if digest.hexdigest() != checksum:
            raise ClusterError(f"{url} does not have the published SHA-512")
        draft.chmod(0o755)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


# --- builds from source -------------------------------------------------------------------------------------------------------------------


async def _build(targets: Mapping[str, Path], *, say: Callable[[str], None], clock: Clock) -> None:
    """Builds these programs, each into its file. Raises ClusterError without Go, or with the compiler's last lines."""
    if shutil.which("go") is None:
        raise ClusterError(
            f"missing: {', '.join(targets)}. Install Go 1.24.4 or newer to build them (go.dev/doc/install), or put them on the PATH "
            f"(Kubernetes {VERSION}, etcd 3.6) or into a directory named by KUBEBUILDER_ASSETS."
        )
    say(f"building {_count(len(targets))} with Go; the first time this takes about {_minutes(targets)} minutes on two cores")
    modules = dict.fromkeys(PROGRAMS[name].module for name in targets)
    for module in modules:
        await _build_module(module, {name: targets[name] for name in targets if PROGRAMS[name].module == module}, say=say, clock=clock)


def _count(number: int) -> str:
    return f"{number} program{'s' if number > 1 else ''}"


def _minutes(names: Iterable[str]) -> int:
    """Estimates the build time: the programs of a module share most of their packages, and the largest is an API server."""
    return 1 + 2 * len({PROGRAMS[name].module for name in names}) + len(set(names)) // 3


async def _build_module(folder: str, targets: Mapping[str, Path], *, say: Callable[[str], None], clock: Clock) -> None:
    """Builds programs of one module at once: while one is linked, which takes one core, packages of others are compiled."""
    programs = [PROGRAMS[name] for name in targets]
    variables = " ".join(sorted({program.flags(program.version) for program in programs}))
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags", f"-s -w {variables}"]
    with _module(folder) as module, tempfile.TemporaryDirectory(prefix="vkubelet-made-") as made:
        text = f"building {', '.join(targets)}"
        packages = [program.package for program in programs]
        work = run("go", "-C", str(module), "build", *flags, "-o", f"{made}/", *packages, env={**os.environ, **_GO})
        try:
            await with_progress(work, lambda: f"{text}: {len(os.listdir(made))} of {len(targets)} made", say=say, clock=clock)
        except CommandFailed as error:
            lines = "\n".join(error.stderr.strip().splitlines()[-20:])
            raise ClusterError(f"building {', '.join(targets)} failed:\n{lines}") from error
        for program, target in zip(programs, targets.values(), strict=True):
            _keep(Path(made, _file_of(program.package)), target)


@contextmanager
def _module(folder: str) -> Iterator[Path]:
    """Yields a copy of a module, because Go needs a writable directory."""
    package = resources.files("vkubelet.testing.cluster").joinpath("gomod", folder)
    with resources.as_file(package) as source, tempfile.TemporaryDirectory(prefix="vkubelet-build-") as scratch:
        yield Path(shutil.copytree(source, Path(scratch, "gomod")))


def _file_of(package: str) -> str:
    """Returns the name that `go build` gives the program of a package: the last part of its path that is no major version."""
    return next(part for part in reversed(package.split("/")) if not re.fullmatch(r"v\d+", part))


def _keep(made: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.move(made, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
