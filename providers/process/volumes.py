"""Volumes of the process provider, and the mounts of all volumes of a container.

Invariant: a host's directory is only given where a setting allows it, and no path leads out of its volume, whatever programs rename
meanwhile: every path returned here contains no link, and it is opened without following any (see `vkubelet.beneath` and
`keeper.mounts.held`).
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, Self

from attrs import frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.quantity import Quantity
from vkubelet.beneath import Directory, real
from vkubelet.provider import Mount, PodRejected, ResolvedContainer, Unavailable
from vkubelet.resolve.assembly import MEMORY, volume_root
from vkubelet.resolve.volumes import IN_MEMORY_KINDS
from vkubelet_providers.process.keeper.mounts import Bind, mount_tmpfs

WRITTEN: Final = frozenset({"configMap", "secret", "projected", "downwardAPI"})
"""Volumes that the runtime writes."""
OWN: Final = frozenset({"emptyDir", "hostPath"})
ROOT_VARIABLE: Final = "VKUBELET_ROOT"
"""Names the directory below which a container finds its volumes on a host that cannot mount them."""


def kind_of(volume: JsonView) -> str:
    """Returns the type, such as `emptyDir`, which is also the default."""
    return next((name for name in volume if name != "name"), "emptyDir")


def check(spec: JsonView, *, host_paths: Sequence[str]) -> None:
    """Checks the volumes. Raises PodRejected for unsupported ones."""
    for volume in spec.get("volumes", ()):
        name, kind = volume["name"], kind_of(volume)
        if kind not in WRITTEN | OWN:
            raise PodRejected("UnsupportedVolume", f"volume {name}: this node cannot mount {kind}; mount it on the host and use hostPath")
        medium = (volume.get("emptyDir") or {}).get("medium", "")
        if medium not in ("", "Memory"):
            raise PodRejected("UnsupportedVolume", f"volume {name}: this node has no medium {medium}; leave it out, or set Memory")
        if kind == "hostPath" and not allows(host_paths, volume["hostPath"]["path"]):
            remedy = f"choose a path below: {', '.join(host_paths)}" if host_paths else "this node allows none; use another kind of volume"
            raise PodRejected("HostPathNotAllowed", f"volume {name}: hostPath {volume['hostPath']['path']} is not allowed; {remedy}")


def allows(host_paths: Sequence[str], path: str) -> bool:
    """Checks whether the path leads to one of them, or below one; a path whose links change during the check leads nowhere."""
    try:
        return any(real(path).is_relative_to(real(top)) for top in host_paths)
    except OSError:
        return False


def make_memory(spec: JsonView, files: Path) -> None:
    """Mounts a tmpfs for Secrets, tokens and the downward API of a pod; on a host that cannot mount, they are on the disk. Raises
    OSError."""
    if all(IN_MEMORY_KINDS.isdisjoint(volume) for volume in spec.get("volumes", ())):
        return
    with Directory.at(files) as place:
        # A directory with files was created on a host that could not mount, and containers use it.
        if not place.has(MEMORY) or not (is_mount(place, MEMORY) or place.names(MEMORY)):
            with suppress(PermissionError):
                _mount_unswapped(place, MEMORY)
        place.make(MEMORY, 0o755).close()
        place.change(MEMORY, mode=0o755)


def _mount_unswapped(place: Directory, name: str) -> None:
    try:
        mount_memory(place, name, "noswap")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Before Linux 6.4.
        mount_memory(place, name)


def make_read_only(spec: JsonView, files: Path) -> None:
    """Creates the roots of the volumes that the runtime fills, with mode 0755: on a host that cannot mount, no mount protects them.

    Raises OSError.
    """
    for volume in spec.get("volumes", ()):
        if kind_of(volume) in WRITTEN:
            Directory.at(volume_root(files, volume), make=0o755).close()


def make_empty_dirs(spec: JsonView, directory: Path, *, group: int | None, root: bool) -> None:
    """Creates the emptyDir volumes of a pod as the runtime would, but in memory where required and for their group. Existing ones are not
    changed.

    Raises OSError.
    """
    with Directory.at(directory, make=0o755) as place:
        for volume in spec.get("volumes", ()):
            if kind_of(volume) == "emptyDir":
                _make_empty_dir(place, volume["name"], volume.get("emptyDir") or {}, group=group, root=root)


def _make_empty_dir(place: Directory, name: str, wanted: JsonView, *, group: int | None, root: bool) -> None:
    in_memory, found = wanted.get("medium") == "Memory", place.has(name)
    # A reboot clears its memory; and one whose creation was interrupted is not open to all yet.
    lacks_memory = root and in_memory and not (found and is_mount(place, name))
    if found and not lacks_memory and place.status(name).st_mode & stat.S_IRWXO:
        return
    if lacks_memory:
        size = f"size={Quantity.parse(wanted['sizeLimit']).value()}" if "sizeLimit" in wanted else ""
        mount_memory(place, name, size)
    mode = 0o1777 if in_memory else 0o777
    given = root and group is not None
    place.make(name, mode).close()
    place.change(name, group=group if given and group is not None else -1, mode=mode | (stat.S_ISGID if given else 0))


def mount_memory(place: Directory, name: str, options: str = "") -> None:
    """Mounts a tmpfs at this name, private until its mode is set. Raises OSError."""
    with place.make(name, stat.S_IRWXU) as point:
        mount_tmpfs(f"/proc/self/fd/{point.descriptor}", ",".join(filter(None, ("mode=0700", options))))


def is_mount(place: Directory, name: str) -> bool:
    return place.status(name).st_dev != place.status().st_dev


@frozen(kw_only=True)
class Places:
    """Sources of a pod's volumes: its directories, and the volumes of its spec."""

    directory: Path
    volumes: Mapping[str, JsonView]
    host_paths: Sequence[str]

    @classmethod
    def of(cls, spec: JsonView, directory: Path, *, host_paths: Sequence[str] = ("/",)) -> Self:
        return cls(directory=directory, volumes={volume["name"]: volume for volume in spec.get("volumes", ())}, host_paths=host_paths)

    def source(self, mount: Mount) -> Path:
        """Returns the source without links. Raises Unavailable (CreateContainerConfigError), OSError."""
        if mount.source is not None:
            return mount.source
        volume = self.volumes.get(mount.volume)
        if volume is None:
            raise _refused(f"volumeMounts: volume {mount.volume} does not exist; add it to spec.volumes")
        if kind_of(volume) == "hostPath":
            return self._of_host(volume["hostPath"], mount)
        return _part(self.directory / volume["name"], mount)

    def _of_host(self, volume: JsonView, mount: Mount) -> Path:
        # Its links are resolved here, once; later changes do not affect what is judged and opened.
        path, kind = real(volume["path"]), volume.get("type") or ""
        if not any(path.is_relative_to(real(top)) for top in self.host_paths):
            text = f"volumes: hostPath {volume['path']} leads to {path}, which is not allowed"
            raise _refused(f"{text}; choose a path below: {', '.join(self.host_paths)}")
        with Directory.at(Path("/")) as host:
            below = path.relative_to("/")
            try:
                if kind == "DirectoryOrCreate":
                    host.make(below, 0o755).close()
                elif kind == "FileOrCreate" and not host.has(below):
                    host.create(below, mode=0o644)
                mode = host.status(below).st_mode
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EEXIST):
                    raise
                mode = 0
        if not mode or not _KINDS.get(kind, bool)(mode):
            text = f"hostPath {volume['path']} does not exist, or is not a {kind or 'path'}"
            raise Unavailable(text, event="FailedMount", waiting="ContainerCreating")
        return _part(path, mount)


_KINDS: Final[Mapping[str, Callable[[int], bool]]] = {
    "Directory": stat.S_ISDIR,
    "DirectoryOrCreate": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "FileOrCreate": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def _part(top: Path, mount: Mount) -> Path:
    """Resolves a mount's subPath in the volume at `top`, a path without links; missing parts are created with the volume's mode."""
    if not mount.sub_path:
        return top
    with Directory.at(Path("/")) as host, host.enter(top.relative_to("/")) as volume:
        try:
            return top / volume.part(mount.sub_path, stat.S_IMODE(volume.status().st_mode))
        except ValueError as error:
            raise _refused(f"volumeMounts: volume {mount.volume}: subPath {error}") from error


def binds(container: ResolvedContainer, places: Places, *, extra: Mapping[str, Path]) -> list[Bind]:
    """Returns the binds; `extra` are files of the pod, such as `/etc/hosts`, by path; a volume mounted at the same path wins. Raises
    Unavailable."""
    if any(inside(mount.path) == "/" for mount in container.mounts):
        raise _refused("volumeMounts: mountPath / would hide everything: choose a path below it")
    mounted = [Bind(source=str(places.source(mount)), target=inside(mount.path), read_only=mount.read_only) for mount in container.mounts]
    taken = {each["target"] for each in mounted}
    more = [Bind(source=str(path), target=inside(target), read_only=False) for target, path in extra.items()]
    return [*mounted, *(each for each in more if each["target"] not in taken)]


def inside(path: str) -> str:
    """Returns the path from the container's root, which it cannot leave."""
    return os.path.normpath("/" + path.lstrip("/"))


def link(mounts: Sequence[Bind], root: Path) -> None:
    """Creates links below `root`, instead of mounts. Raises OSError."""
    with Directory.at(root) as top:
        for one in sorted(mounts, key=lambda bind: bind["target"].count("/")):
            path = PurePosixPath(one["target"].lstrip("/"))
            try:
                with top.make(path.parent, 0o755) as above:
                    above.link(one["source"], path.name)
            except OSError as error:
                # A volume below another one, or at the same path.
                if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
                    raise


def hidden(mounts: Sequence[Bind]) -> Iterator[str]:
    """Yields the paths at which a program on a host that cannot mount finds the host's own files instead."""
    return (one["target"] for one in mounts if os.path.lexists(one["target"]))


def _refused(text: str) -> Unavailable:
    return Unavailable(text, event="Failed", waiting="CreateContainerConfigError")
