"""Where a container's files lie: volumes of the provider's own, and the mounts of all of them.

Invariant: a host's directory is only given where a setting allows it, and no path leads out of its volume.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from attrs import frozen

from vkubelet import PodRejected, Unavailable
from vkubelet.api.quantity import Quantity
from vkubelet.api.shapes import JsonView
from vkubelet.provider import Mount, ResolvedContainer
from vkubelet_providers.process.keeper.mounts import Bind, mount_tmpfs

WRITTEN: Final = frozenset({"configMap", "secret", "projected", "downwardAPI"})
"""Volumes that the runtime writes."""
OWN: Final = frozenset({"emptyDir", "hostPath"})
ROOT_VARIABLE: Final = "VKUBELET_ROOT"
"""Names the directory below which a container finds its volumes on a host that can not mount them."""


def kind_of(volume: JsonView) -> str:
    """Such as `emptyDir`, which is also what a volume is that says nothing."""
    return next((name for name in volume if name != "name"), "emptyDir")


def check(spec: JsonView, *, host_paths: Sequence[str]) -> None:
    """Raises PodRejected for volumes that can not be."""
    for volume in spec.get("volumes", ()):
        name, kind = volume["name"], kind_of(volume)
        if kind not in WRITTEN | OWN:
            raise PodRejected("UnsupportedVolume", f"volume {name}: this node can not mount {kind}; mount it on the host, and use hostPath")
        medium = (volume.get("emptyDir") or {}).get("medium", "")
        if medium not in ("", "Memory"):
            raise PodRejected("UnsupportedVolume", f"volume {name}: this node has no medium {medium}; leave it out, or set Memory")
        if kind == "hostPath" and not allows(host_paths, volume["hostPath"]["path"]):
            allowed = ", ".join(host_paths) or "none"
            raise PodRejected(
                "HostPathNotAllowed", f"volume {name}: hostPath {volume['hostPath']['path']} is not allowed; allowed: {allowed}"
            )


def allows(host_paths: Sequence[str], path: str) -> bool:
    """Whether it is one of them, or below one."""
    real = os.path.realpath(path)
    return any(real == top or real.startswith(top.rstrip("/") + "/") for top in map(os.path.realpath, host_paths))


def make_read_only(spec: JsonView, directory: Path) -> None:
    """The volumes that the runtime fills, which it would leave open to all, as their mounts protect them; for a host that can not mount.

    Raises OSError.
    """
    for volume in spec.get("volumes", ()):
        path = directory / volume["name"]
        if kind_of(volume) in WRITTEN and not path.exists():
            path.mkdir(mode=stat.S_IRWXU, parents=True)
            path.chmod(0o755)


def make_empty_dirs(spec: JsonView, directory: Path, *, group: int | None, root: bool) -> None:
    """Of a pod, where the runtime would make them too, but in memory and for their group. Those that are there stay as they are.

    Raises OSError.
    """
    for volume in spec.get("volumes", ()):
        path, wanted = directory / volume["name"], volume.get("emptyDir") or {}
        if kind_of(volume) != "emptyDir":
            continue
        in_memory = wanted.get("medium") == "Memory"
        # After a boot its memory is gone; and what was cut off while it was made is not open to all yet.
        lacks_memory = root and in_memory and not path.is_mount()
        if path.exists() and not lacks_memory and path.stat().st_mode & stat.S_IRWXO:
            continue
        path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        if lacks_memory:
            size = f",size={Quantity.parse(wanted['sizeLimit']).value()}" if "sizeLimit" in wanted else ""
            mount_tmpfs(str(path), f"mode=0700{size}")
        mode = 0o1777 if in_memory else 0o777
        if root and group is not None:
            os.chown(path, -1, group)
            mode |= stat.S_ISGID
        path.chmod(mode)


@frozen(kw_only=True)
class Places:
    """Where a pod's own volumes are: its directories, and what its spec says of volumes."""

    directory: Path
    volumes: Mapping[str, JsonView]
    host_paths: Sequence[str]

    @classmethod
    def of(cls, spec: JsonView, directory: Path, *, host_paths: Sequence[str] = ("/",)) -> Places:
        return cls(directory=directory, volumes={volume["name"]: volume for volume in spec.get("volumes", ())}, host_paths=host_paths)

    def source(self, mount: Mount) -> Path:
        """With no link on the way. Raises Unavailable (CreateContainerConfigError), OSError."""
        if mount.source is not None:
            return mount.source
        volume = self.volumes.get(mount.volume)
        if volume is None:
            raise _refused(f"volumeMounts: there is no volume {mount.volume}")
        top = self._top(volume)
        part = mount.sub_path
        if part.startswith("/") or ".." in Path(part).parts:
            raise _refused(f"volumeMounts: subPath {part} must lie below the volume {mount.volume}")
        if part:
            _make_part(top, part)
        path = (top / part).resolve()
        if not path.is_relative_to(top):
            raise _refused(f"volumeMounts: subPath {part} leads out of the volume {mount.volume}")
        return path

    def _top(self, volume: JsonView) -> Path:
        if kind_of(volume) != "hostPath":
            return (self.directory / str(volume["name"])).resolve()
        path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type", "")
        if not allows(self.host_paths, str(path)):
            raise _refused(f"volumes: hostPath {path} leads now where it is not allowed")
        path = path.resolve()
        if kind == "DirectoryOrCreate":
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif kind == "FileOrCreate" and not path.exists():
            path.touch(0o644)
        tests = {"": path.exists, "Directory": path.is_dir, "File": path.is_file, "Socket": path.is_socket}
        tests |= {"DirectoryOrCreate": path.is_dir, "FileOrCreate": path.is_file, "CharDevice": path.is_char_device}
        tests |= {"BlockDevice": path.is_block_device}
        if not tests.get(kind, path.exists)():
            raise Unavailable(f"hostPath {path} is not there, or not a {kind or 'path'}", event="FailedMount", waiting="ContainerCreating")
        return path


def _make_part(top: Path, part: str) -> None:
    """Directories on the way to `part`, as open to others as their volume; links that containers have made are not followed."""
    mode = stat.S_IMODE(top.stat().st_mode)
    with ExitStack() as stack:

        def opened(name: str, above: int | None) -> int:
            # Held open, so that nobody puts a link in its place while something is made in it.
            found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            stack.callback(os.close, found)
            return found

        try:
            here = opened(str(top), None)
            for name in Path(part).parts:
                try:
                    os.mkdir(name, stat.S_IRWXU, dir_fd=here)
                except FileExistsError:
                    here = opened(name, here)
                else:
                    here = opened(name, here)
                    os.fchmod(here, mode)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise


def binds(container: ResolvedContainer, places: Places, *, extra: Mapping[str, Path]) -> list[Bind]:
    """`extra` are files of the pod, such as `/etc/hosts`, by path; a volume that is mounted there wins. Raises Unavailable."""
    if any(inside(mount.path) == "/" for mount in container.mounts):
        raise _refused("volumeMounts: mountPath / would hide everything: choose a path below it")
    mounted = [Bind(source=str(places.source(mount)), target=inside(mount.path), read_only=mount.read_only) for mount in container.mounts]
    taken = {each["target"] for each in mounted}
    more = [Bind(source=str(path), target=inside(target), read_only=False) for target, path in extra.items()]
    return [*mounted, *(each for each in more if each["target"] not in taken)]


def inside(path: str) -> str:
    """As a container sees it from its root, out of which nothing leads."""
    return os.path.normpath("/" + path.lstrip("/"))


def link(mounts: Sequence[Bind], root: Path) -> None:
    """Instead of mounts, links below `root`. Raises OSError."""
    for one in sorted(mounts, key=lambda bind: bind["target"].count("/")):
        path = root / one["target"].lstrip("/")
        if not os.path.lexists(path) and not any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(root)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(one["source"])


def hidden(mounts: Sequence[Bind]) -> Iterator[str]:
    """Paths at which a program on a host that can not mount finds the host's own files instead."""
    return (one["target"] for one in mounts if os.path.lexists(one["target"]))


def _refused(text: str) -> Unavailable:
    return Unavailable(text, event="Failed", waiting="CreateContainerConfigError")
