"""Assembles a resolved pod from the objects that were read for it.

Invariant: nothing is read from a cluster here, and nothing is written except below the pod's directory.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from attrs import field, frozen

from vkubelet.api.codec import decode_json
from vkubelet.api.objects import JsonView, Pod
from vkubelet.api.podspec import containers
from vkubelet.errors import Unavailable
from vkubelet.provider import Mount, PullSecret, ResolvedContainer, ResolvedPod
from vkubelet.resolve import names
from vkubelet.resolve.downward import Facts
from vkubelet.resolve.environment import Environment, environment, expand_all, expand_path
from vkubelet.resolve.files import IN_MEMORY, ON_DISK, is_written, make_root, sub_path, write_volume
from vkubelet.resolve.names import Names
from vkubelet.resolve.references import Content, Objects, used_volumes
from vkubelet.resolve.volumes import IN_MEMORY_KINDS, Tokens, volume_files
from vkubelet.resolve.volumes import is_written as is_ours

RETRY: Final = 3.0
"""Seconds until a missing object is read again, unless a watch reports it before."""

CONFIG_ERROR: Final = "CreateContainerConfigError"

MEMORY: Final = "memory"
"""Directory of a pod's files that must not be written to a disk. A provider that can mounts a tmpfs on it before it resolves a pod."""


@frozen(kw_only=True)
class Read:
    """Everything that was read for a pod."""

    objects: Objects = field(factory=dict, repr=False)
    services: Mapping[str, str] = field(factory=dict)
    names: Names = field(factory=Names)


def assemble(pod: Pod, facts: Facts, *, read: Read, chosen: Mapping[str, Environment], files: Path | None) -> ResolvedPod:
    """Returns the pod with those of its containers whose environment is given. Raises Unavailable."""
    meta, spec = pod.metadata, facts.spec
    try:
        hostname = names.hostname(meta.name, meta.namespace, spec=spec, cluster_domain=read.names.cluster_domain)
    except ValueError as error:
        raise Unavailable(str(error), event="FailedCreatePodSandBox", waiting=not_begun(spec)) from error
    return ResolvedPod(
        pod=pod,
        containers={each["name"]: _container(each, chosen[each["name"]], spec, files) for each in select(spec, chosen)},
        hostname=hostname,
        hosts=names.hosts(meta.name, meta.namespace, spec=spec, ips=facts.pod_ips, names=read.names),
        resolv_conf=names.resolv_conf(meta.namespace, spec, names=read.names),
        files=files,
    )


def select(spec: JsonView, names: Collection[str] | None) -> list[JsonView]:
    """Returns the containers of these names; None: all."""
    return [container for container in containers(spec) if names is None or container["name"] in names]


def not_begun(spec: JsonView) -> str:
    """Returns the waiting reason of containers before their pod is started."""
    return "PodInitializing" if spec.get("initContainers") else "ContainerCreating"


def variables(container: JsonView, facts: Facts, read: Read) -> Environment:
    """Returns the environment of a container. Raises MissingReferenceError, Unavailable."""
    try:
        return environment(container, facts, objects=read.objects, services=read.services)
    except ValueError as error:
        raise config_error(str(error)) from error


def config_error(message: str) -> Unavailable:
    """Returns the error of a container that cannot be configured now."""
    return Unavailable(message, retry_after=RETRY, event="Failed", waiting=CONFIG_ERROR)


def _container(container: JsonView, env: Environment, spec: JsonView, files: Path | None) -> ResolvedContainer:
    try:
        mounts = tuple(_mount(mount, env.variables, spec, files) for mount in container.get("volumeMounts") or ())
    except (ValueError, OSError) as error:
        raise config_error(_sentence(error)) from error
    return ResolvedContainer(
        name=container["name"],
        image=container.get("image", ""),
        command=expand_all(container.get("command") or (), env.variables),
        args=expand_all(container.get("args") or (), env.variables),
        env=env.variables,
        working_dir=container.get("workingDir") or "",
        mounts=mounts,
        spec=container,
    )


def _mount(mount: JsonView, env: Mapping[str, str], spec: JsonView, files: Path | None) -> Mount:
    volume: JsonView = next((each for each in spec.get("volumes") or () if each["name"] == mount["name"]), {})
    below = mount.get("subPath") or expand_path(mount.get("subPathExpr") or "", env)
    ours, source = is_ours(volume), None
    if files is not None and (ours or "emptyDir" in volume):
        source = volume_root(files, volume)
        if below:
            source = sub_path(source, below, pins=source.parents[1] / "subpaths" / mount["name"] if ours else None)
    return Mount(
        volume=mount["name"],
        path=os.path.join("/", mount["mountPath"]),
        source=source,
        sub_path=below,
        read_only=bool(mount.get("readOnly")) or ours,
    )


# --- volumes ------------------------------------------------------------------------------------------------------------------------------


def volume_root(files: Path, volume: JsonView) -> Path:
    """Returns the root of a volume; its name is a DNS label.

    Volumes that the kubelet keeps in memory are below `memory`, so that one tmpfs contains all of them. A volume that an earlier version
    has written elsewhere stays: running containers have it mounted.
    """
    name: str = volume["name"]
    place = files / "volumes" / name
    if IN_MEMORY_KINDS.isdisjoint(volume) or is_written(place):
        return place
    return files / MEMORY / "volumes" / name


def make_volumes(spec: JsonView, files: Path) -> list[JsonView]:
    """Creates the roots of all mounted volumes that the runtime provides; returns those to fill."""
    for volume in used_volumes(spec):
        if "emptyDir" in volume:
            mode = IN_MEMORY if (volume["emptyDir"] or {}).get("medium") else ON_DISK
            make_root(volume_root(files, volume), mode, group=_group(spec))
        elif is_ours(volume):
            make_root(volume_root(files, volume), ON_DISK if IN_MEMORY_KINDS.isdisjoint(volume) else IN_MEMORY)
    return written_volumes(spec)


def written_volumes(spec: JsonView) -> list[JsonView]:
    """Returns the mounted volumes whose files the runtime writes."""
    return [volume for volume in used_volumes(spec) if is_ours(volume)]


def fill_volume(volume: JsonView, facts: Facts, files: Path, *, objects: Objects, tokens: Tokens) -> bool:
    """Writes what has changed of a volume whose root exists; returns whether something has. Raises Unavailable."""
    try:
        wanted = volume_files(volume, facts, objects=objects, tokens=tokens)
        return write_volume(volume_root(files, volume), wanted, group=_group(facts.spec))
    except (ValueError, OSError) as error:
        raise mount_error(volume["name"], _sentence(error), facts.spec) from error


def _group(spec: JsonView) -> int | None:
    found: int | None = (spec.get("securityContext") or {}).get("fsGroup")
    return found


def mount_error(volume: str, sentence: str, spec: JsonView) -> Unavailable:
    """Returns the error of a volume that cannot be written now."""
    text = f'MountVolume.SetUp failed for volume "{volume}" : {sentence}'
    return Unavailable(text, retry_after=RETRY, event="FailedMount", waiting=not_begun(spec))


def is_filled(volume: JsonView, files: Path) -> bool:
    """Checks whether it has been complete before, also before a restart of this process."""
    return is_written(volume_root(files, volume))


def _sentence(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


# --- pull secrets -------------------------------------------------------------------------------------------------------------------------


def pull_secret(name: str, content: Content | None) -> PullSecret | None:
    """Parses registry credentials in either of their two formats; None when there are no valid ones."""
    found = content.binary if content is not None else {}
    try:
        if found.get(".dockerconfigjson"):
            return PullSecret(name=name, config=decode_json(found[".dockerconfigjson"]))
        if found.get(".dockercfg"):
            return PullSecret(name=name, config={"auths": decode_json(found[".dockercfg"])})
    except ValueError:
        return None
    return None
