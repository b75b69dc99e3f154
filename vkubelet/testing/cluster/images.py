"""Builds container images without a registry, as docker-archive files from programs of this machine.

Invariant: the same programs give the same bytes, so an image's ID is stable and a cached archive is never stale.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from vkubelet.testing.cluster.processes import ClusterError

BUSYBOX = "localhost/busybox:dev"
AGNHOST = "localhost/agnhost:dev"
COREDNS = "localhost/coredns:dev"
PAUSE = "localhost/pause:dev"
BUSYBOX_TAGS = (BUSYBOX, "docker.io/library/busybox:1.36")
AGNHOST_TAGS = (AGNHOST, "registry.k8s.io/e2e-test-images/agnhost:2.53")
# Raised when the layout of the archives changes, so that cached ones are built again.
FORMAT = 1
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@frozen
class Layer:
    """One layer: programs by absolute path, symbolic links, small files, directories by mode."""

    programs: Mapping[str, Path] = field(factory=dict)
    links: Mapping[str, str] = field(factory=dict)
    files: Mapping[str, bytes] = field(factory=dict)
    directories: Mapping[str, int] = field(factory=dict)


@frozen
class Image:
    """One image: its tags, layers by position in the archive, and its command."""

    tags: Sequence[str]
    layers: Sequence[int]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()


def write_layer(layer: Layer, target: Path) -> str:
    """Writes a layer as tar, entries sorted, times and owners zero; returns its SHA-256 in hex (the diff ID)."""
    entries: dict[str, tarfile.TarInfo] = {}
    for name, mode in layer.directories.items():
        entries[name] = _entry(name, tarfile.DIRTYPE, mode=mode)
    for name, destination in layer.links.items():
        entries[name] = _entry(name, tarfile.SYMTYPE, mode=0o777)
        entries[name].linkname = destination
    for name, content in layer.files.items():
        entries[name] = _entry(name, tarfile.REGTYPE, mode=0o644, size=len(content))
    for name, source in layer.programs.items():
        entries[name] = _entry(name, tarfile.REGTYPE, mode=0o755, size=source.stat().st_size)
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, entry in sorted(entries.items()):
            if name in layer.programs:
                with layer.programs[name].open("rb") as stream:
                    archive.addfile(entry, stream)
            else:
                archive.addfile(entry, io.BytesIO(layer.files.get(name, b"")))
    with target.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_archive(target: Path, layers: Sequence[Layer], *, images: Sequence[Image]) -> None:
    """Writes a docker-archive (`docker save` format) with these images; layers are shared between them."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    parts = [target.with_name(f"{draft.name}.{position}") for position in range(len(layers))]
    try:
        digests = [write_layer(layer, part) for layer, part in zip(layers, parts, strict=True)]
        manifest = []
        with tarfile.open(draft, "w", format=tarfile.USTAR_FORMAT) as archive:
            for image in images:
                config = json.dumps(image_config(image, digests), sort_keys=True).encode()
                name = f"{hashlib.sha256(config).hexdigest()}.json"
                archive.addfile(_entry(name, tarfile.REGTYPE, mode=0o644, size=len(config)), io.BytesIO(config))
                files = [f"{digests[position]}/layer.tar" for position in image.layers]
                manifest.append({"Config": name, "RepoTags": list(image.tags), "Layers": files})
            for digest, part in zip(digests, parts, strict=True):
                with part.open("rb") as stream:
                    entry = _entry(f"{digest}/layer.tar", tarfile.REGTYPE, mode=0o644, size=part.stat().st_size)
                    archive.addfile(entry, stream)
            text = json.dumps(manifest, sort_keys=True).encode()
            archive.addfile(_entry("manifest.json", tarfile.REGTYPE, mode=0o644, size=len(text)), io.BytesIO(text))
        draft.replace(target)
    finally:
        for path in (draft, *parts):
            path.unlink(missing_ok=True)


def image_config(image: Image, digests: Sequence[str]) -> dict[str, object]:
    """Returns the image configuration (OCI image-spec, config.md)."""
    run: dict[str, object] = {"Env": [SEARCH_PATH]}
    if image.entrypoint:
        run["Entrypoint"] = list(image.entrypoint)
    if image.command:
        run["Cmd"] = list(image.command)
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digests[position]}" for position in image.layers]},
    }


def busybox_layer(program: Path, applets: Sequence[str]) -> Layer:
    """Returns a small system: a shell, the usual commands, users, and a world-writable /tmp."""
    links = {f"bin/{applet}": "/bin/busybox" for applet in applets if applet != "busybox"}
    return Layer(
        programs={"bin/busybox": program},
        links={**links, "usr/bin/env": "/bin/busybox"},
        files={
            "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
            "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        },
        directories={"bin": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777, "usr": 0o755, "usr/bin": 0o755, "var": 0o755},
    )


def ensure_archives(cache: Path, *, agnhost: Path, kubectl: Path) -> tuple[Path, Path]:
    """Returns the archives (busybox with pause, agnhost) in the cache, built when they are missing. Raises ClusterError without
    busybox-static."""
    busybox, applets = find_busybox()
    base = busybox_layer(busybox, applets)
    directory = cache / "images"
    directory.mkdir(parents=True, exist_ok=True)
    small = directory / f"busybox-{_fingerprint(busybox)}.tar"
    if not small.exists():
        # The sandbox only has to stay: it is killed by SIGKILL.
        pause = Image([PAUSE], [0], entrypoint=["/bin/sleep", "2147483647"])
        write_archive(small, [base], images=[Image(BUSYBOX_TAGS, [0], command=["sh"]), pause])
    large = directory / f"agnhost-{_fingerprint(busybox, agnhost, kubectl)}.tar"
    if not large.exists():
        tools = Layer(programs={"agnhost": agnhost, "bin/kubectl": kubectl})
        write_archive(large, [base, tools], images=[Image(AGNHOST_TAGS, [0, 1], entrypoint=["/agnhost"], command=["pause"])])
    return small, large


def ensure_coredns(cache: Path, program: Path) -> Path:
    """Returns the archive of CoreDNS in the cache, built when it is missing."""
    target = cache / "images" / f"coredns-{_fingerprint(program)}.tar"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_archive(target, [Layer(programs={"coredns": program})], images=[Image([COREDNS], [0], entrypoint=["/coredns"])])
    return target


def find_busybox() -> tuple[Path, list[str]]:
    """Finds the static busybox of this machine and its applets. Raises ClusterError when there is none."""
    found = shutil.which("busybox")
    # A program that is linked dynamically names its loader near the start of the file.
    if found is None or b"/ld-linux" in Path(found).read_bytes()[:4096]:
        raise ClusterError("busybox-static is not installed, the test images are made of it")
    listed = subprocess.run([found, "--list"], capture_output=True, text=True, check=True).stdout
    return Path(found), listed.split()


def _fingerprint(*programs: Path) -> str:
    digest = hashlib.sha256(str(FORMAT).encode())
    for program in programs:
        with program.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def _entry(name: str, kind: bytes, *, mode: int, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    entry.size = size
    return entry
