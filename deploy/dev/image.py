"""Builds the container image on this machine, without a registry: Debian's Python as base, then the Dockerfile of the project.

`image.py` prints the path of the archive as its last line; a node's containerd imports it. The base contains the files of some packages and
nothing of a package manager; it has no shell. Base, wheels and image are kept in the cache of the cluster programs.

Invariant: a file in the cache is complete, and its name is derived from its sources, so that the same sources are built once.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import os
import posixpath
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TextIO

from attrs import frozen

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.binaries import cache_directory
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run, with_progress

ROOT = Path(__file__).parents[2]
TAG = "localhost/kubeocean:dev"
# Raised when the way an archive is built changes, so that cached ones are built again.
FORMAT = 1
KEPT = 3
"""Archives of each kind that stay in the cache."""
SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "vkubelet", "kubeocean", "fleet", "providers")
NOT_IN_THE_IMAGE = ("vkubelet/testing/",)
"""Excluded by `.dockerignore`, which both ways of building respect."""

# --- the base ---

SEEDS = ("python3-venv", "tzdata", "ca-certificates")
NOT_FOR_US = {"debconf", "cdebconf", "dpkg", "openssl", "mailcap", "mime-support", "install-info", "readline-common"}
"""Packages required only for the set-up of packages."""
_SHARED = r"share/(doc|man|info|locale|lintian|bug|perl5|menu|applications|pixmaps)(/|$)"
_LIBRARY = r"lib/python3[^/]*/(test|idlelib|lib2to3|turtledemo)(/|$)"
LEFT_OUT = re.compile(rf"usr/({_SHARED}|{_LIBRARY}|s?bin/(?!python3))")
MERGED = ("bin", "sbin", "lib", "lib64")
AUTHORITIES = "usr/share/ca-certificates/mozilla/"
USERS = (("root", 0, "/"), ("nobody", 65534, "/"), ("kubeocean", 65532, "/tmp"))
FILES = {
    "etc/passwd": "".join(f"{name}:x:{number}:{number}:{name}:{home}:/nonexistent\n" for name, number, home in USERS).encode(),
    "etc/group": "".join(f"{name}:x:{number}:\n" for name, number, _ in USERS).encode(),
}


@frozen
class Package:
    """One Debian package as apt knows it; `version` is part of the file's name."""

    name: str
    file: str
    checksum: str


def needed(graph: str, seeds: Iterable[str] = SEEDS) -> list[str]:
    """Returns names of packages, from the output of `apt-cache depends --recurse`."""
    edges: dict[str, list[str]] = {}
    name = ""
    for line in graph.splitlines():
        if not line.startswith((" ", "<")):
            name = line.strip()
        elif found := re.fullmatch(r"(?: [ |](?:Pre)?Depends: |    )([^<>\s]+)", line):
            edges.setdefault(name, []).append(found[1])
    todo, seen = list(seeds), set[str]()
    while todo:
        one = todo.pop()
        if one not in seen and one not in NOT_FOR_US and not one.startswith("perl"):
            seen.add(one)
            todo += edges.get(one, [])
    return sorted(seen)


async def packages() -> list[Package]:
    """Returns the packages of the base, in the versions apt would install now. Raises ClusterError without apt."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterError("the base image is made of Debian's packages, and apt-get is missing; elsewhere: docker build --tag kubeocean .")
    options = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    names = needed(await run("apt-cache", "depends", "--recurse", *options, *SEEDS))
    try:
        listed = await run("apt-get", "download", "--print-uris", *names)
    except CommandFailed:
        # The usual reason is a package list that is empty or too old.
        await run("apt-get", "update")
        listed = await run("apt-get", "download", "--print-uris", *names)
    found = re.findall(r"^'\S+' ((\S+?)_\S+) \d+ (\S+)$", listed, flags=re.MULTILINE)
    return [Package(name=name, file=file, checksum=checksum) for file, name, checksum in sorted(found)]


def merged_name(name: str) -> str:
    """Returns the path of a package's file in a tree whose /bin, /sbin and /lib are links into /usr."""
    name = posixpath.normpath(name)
    return f"usr/{name}" if name.split("/")[0] in MERGED else name


def base_entries(debs: Iterable[tarfile.TarFile]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yields everything in the base's tree."""
    authorities: list[bytes] = []
    for deb in debs:
        for entry in deb:
            entry.name = merged_name(entry.name)
            if entry.name in (".", *(f"usr/{name}" for name in MERGED)) or LEFT_OUT.match(entry.name):
                continue
            content = deb.extractfile(entry) if entry.isreg() else None
            data = content.read() if content is not None else b""
            if entry.islnk():
                entry.linkname = merged_name(entry.linkname)
            if entry.name.startswith(AUTHORITIES) and entry.isreg():
                authorities.append(data.strip())
            else:
                yield entry, data
    for name in MERGED:
        yield made(name, link=f"usr/{name}"), b""
        yield made(f"usr/{name}", mode=0o755), b""
    yield made("tmp", mode=0o1777), b""
    yield made("usr/lib/ssl/cert.pem", link="/etc/ssl/certs/ca-certificates.crt"), b""
    for name, data in {**FILES, "etc/ssl/certs/ca-certificates.crt": b"\n".join([*authorities, b""])}.items():
        yield made(name, size=len(data)), data


def made(name: str, *, link: str = "", mode: int = 0, size: int = 0) -> tarfile.TarInfo:
    """Builds an entry that is in no package: a link, a directory when it has a mode, else a file."""
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE if mode else tarfile.REGTYPE
    entry.linkname, entry.mode, entry.size = link, mode or (0o777 if link else 0o644), size
    return entry


def write_tree(debs: Iterable[tarfile.TarFile], target: Path) -> None:
    """Writes the base's tree as a tar; directories come first, each once."""
    entries = dict[str, tuple[tarfile.TarInfo, bytes]]()
    for entry, data in base_entries(debs):
        if not (entry.isdir() and entry.name in entries):
            entries[entry.name] = entry, data
    with tarfile.open(target, "w") as archive:
        for _, (entry, data) in sorted(entries.items(), key=lambda item: (not item[1][0].isdir(), item[1][0].islnk(), item[0])):
            archive.addfile(entry, io.BytesIO(data))


async def build_base(wanted: Sequence[Package], scratch: Path, target: Path) -> None:
    """Downloads the packages, merges their files, compiles Python modules, and writes an OCI archive."""
    await run("sh", "-c", 'cd "$0" && exec apt-get download "$@"', str(scratch), *(package.name for package in wanted))
    for file in sorted(scratch.glob("*.deb")):
        await run("sh", "-c", 'exec dpkg-deb --fsys-tarfile "$0" >"$1"', str(file), f"{file}.tar")
    with ExitStack() as opened:
        write_tree([opened.enter_context(tarfile.open(tar)) for tar in sorted(scratch.glob("*.deb.tar"))], scratch / "tree.tar")
    buildah = Buildah(scratch)
    container = (await buildah("from", "scratch")).strip()
    await buildah("add", container, str(scratch / "tree.tar"), "/")
    library = f"/usr/lib/python{python_version(wanted)}"
    compiled = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", library]
    await buildah("run", "--isolation", "chroot", container, "--", *compiled)
    await buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--label", "org.opencontainers.image.title=python", container)
    await buildah("commit", "--quiet", container, "base")
    await buildah("push", "--quiet", "base", f"oci-archive:{target}")


def python_version(wanted: Iterable[Package]) -> str:
    """Returns a version such as 3.11."""
    return next(found[1] for package in wanted if (found := re.fullmatch(r"python(3\.\d+)", package.name)))


# --- wheels and image ---


class Buildah:
    """buildah with a separate store, so that nothing stays on the machine."""

    def __init__(self, scratch: Path) -> None:
        self._options = [f"--root={scratch / 'store'}", f"--runroot={scratch / 'run'}", "--storage-driver=vfs"]
        self._environment = {**os.environ, "TMPDIR": str(scratch)}

    async def __call__(self, command: str, *args: str) -> str:
        return await run("buildah", *self._options, command, *args, env=self._environment)


async def download_wheels(version: str, scratch: Path, target: Path) -> None:
    """Downloads what the project needs to be built and run, for the base's Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra = project["project"]["optional-dependencies"]["fast"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"], *extra]
    folder = scratch / "wheels"
    flags = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:", f"--python-version={version}"]
    await run(sys.executable, "-m", "pip", "download", *flags, f"--dest={folder}", *wanted)
    folder.replace(target)


async def build_image(base: Path, wheels: Path, scratch: Path, target: Path) -> None:
    """Builds the Dockerfile on that base, with those wheels and nothing else."""
    buildah = Buildah(scratch)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    arguments = {"BASE": f"oci-archive:{base}", "PIP_FIND_LINKS": "/wheels", "PIP_NO_INDEX": "1", "VERSION": version}
    given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    options = ["--isolation=chroot", "--quiet", f"--volume={wheels}:/wheels:ro", f"--tag={TAG}", *given]
    await buildah("build", *options, f"--file={ROOT / 'Dockerfile'}", str(ROOT))
    await buildah("push", "--quiet", TAG, f"docker-archive:{target}:{TAG}")


def fingerprint(*parts: str) -> str:
    """Returns a short name derived from sources."""
    return hashlib.sha256("\n".join([str(FORMAT), *parts]).encode()).hexdigest()[:16]


def sources() -> Iterator[str]:
    """Yields every file that may be in the image, with its content's checksum."""
    for name in SOURCES:
        top = ROOT / name
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            path = file.relative_to(ROOT).as_posix()
            if file.is_file() and "__pycache__" not in file.parts and not path.startswith(NOT_IN_THE_IMAGE):
                yield f"{path} {hashlib.sha256(file.read_bytes()).hexdigest()}"


class Cache:
    """Cache that builds what is missing; one process at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clock = SystemClock()

    async def ensure(self) -> Path:
        """Returns the archive of the image for the current sources. Raises ClusterError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / ".kubeocean.lock").open("w") as lock:
            await self._locked(lock)
            wanted = await packages()
            version = python_version(wanted)
            base = self._directory / f"kubeocean-base-{fingerprint(*(package.checksum for package in wanted))}.tar"
            wheels = self._directory / f"kubeocean-wheels-{fingerprint(version, (ROOT / 'pyproject.toml').read_text(encoding='utf-8'))}"
            image = self._directory / f"kubeocean-{fingerprint(base.name, wheels.name, *sources())}.tar"
            await self._make("making the base image", base, partial(build_base, wanted))
            await self._make("downloading wheels", wheels, partial(download_wheels, version))
            await self._make("building the image", image, partial(build_image, base, wheels))
            return image

    async def _locked(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait = asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            await with_progress(wait, "waiting for another run that builds the image", say=say, clock=self._clock)

    async def _make(self, text: str, target: Path, maker: Callable[[Path, Path], Awaitable[None]]) -> None:
        if target.exists():
            os.utime(target)
            return
        with tempfile.TemporaryDirectory(prefix=".kubeocean-", dir=self._directory) as scratch:
            draft = Path(scratch, "draft")
            await with_progress(maker(Path(scratch), draft), text, say=say, clock=self._clock)
            draft.replace(target)
        self._forget(re.sub(r"-[0-9a-f]{16}.*", "", target.name))

    def _forget(self, kind: str) -> None:
        """Removes the oldest of a type; files that a run still uses are among the newest."""
        alike = [path for path in self._directory.iterdir() if re.fullmatch(rf"{kind}-[0-9a-f]{{16}}(\.tar)?", path.name)]
        for path in sorted(alike, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        say(str(asyncio.run(Cache(cache_directory() / "images").ensure())))
    except ClusterError as error:
        sys.exit(f"error: {error}")
