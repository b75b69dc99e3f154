"""Reads the spec of a pod: its containers, and the objects that they and its volumes refer to. Pure.

Invariant: every reference of a pod to an object of its namespace is found here and nowhere else; only names are known here, not whether
an object exists.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from attrs import field, frozen

from vkubelet.api.objects import JsonView

CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
"""Fields with containers in the spec of a pod."""
PLANNED_CONTAINERS: Final = ("initContainers", "containers")
"""Those of them that a pod is created with; ephemeral containers are only ever added to a pod that exists."""
CONTAINER_STATUSES: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
"""Fields with container statuses in the status of a pod, in the order of `CONTAINERS`."""
PLANNED_CONTAINER_STATUSES: Final = ("initContainerStatuses", "containerStatuses")
"""Those of `PLANNED_CONTAINERS`."""

SECRET_VOLUMES: Final[Mapping[str, str]] = {
    "csi": "nodePublishSecretRef",
    "iscsi": "secretRef",
    "flexVolume": "secretRef",
    "cephfs": "secretRef",
    "rbd": "secretRef",
    "cinder": "secretRef",
}
"""Volume sources that may refer to one Secret, by which the volume is mounted, and the field that does."""


class Kind(enum.Enum):
    """Kind of an object that a pod can refer to."""

    CONFIGMAP = "ConfigMap"
    SECRET = "Secret"
    CLAIM = "PersistentVolumeClaim"


@frozen
class Reference:
    """An object in the pod's namespace; an optional one may be missing, which does not distinguish it from a mandatory one."""

    kind: Kind
    name: str
    optional: bool = field(default=False, eq=False)


def waiting_containers(status: JsonView) -> Iterator[tuple[JsonView, JsonView]]:
    """Yields the status of each container that waits for a reason, and its waiting state."""
    for kind in CONTAINER_STATUSES:
        for each in status.get(kind) or ():
            waiting: JsonView = (each.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                yield each, waiting


def containers(spec: JsonView) -> Iterator[JsonView]:
    """Yields all containers: init, app, ephemeral."""
    return (container for kind in CONTAINERS for container in spec.get(kind) or ())


def environment_references(container: JsonView) -> Iterator[Reference]:
    """Yields the objects from which a container takes variables."""
    for source in container.get("envFrom") or ():
        yield from _named((Kind.CONFIGMAP, source.get("configMapRef")), (Kind.SECRET, source.get("secretRef")))
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield from _named((Kind.CONFIGMAP, source.get("configMapKeyRef")), (Kind.SECRET, source.get("secretKeyRef")))


def file_references(volume: JsonView) -> Iterator[Reference]:
    """Yields the objects whose content becomes files of a volume."""
    yield from _named((Kind.CONFIGMAP, volume.get("configMap")))
    yield from _named((Kind.SECRET, volume.get("secret")), field="secretName")
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield from _named((Kind.CONFIGMAP, source.get("configMap")), (Kind.SECRET, source.get("secret")))


def storage_references(volume: JsonView, pod: str) -> Iterator[Reference]:
    """Yields the claim of a volume, and the Secret by which it is mounted; `pod` is the name of the pod."""
    if source := volume.get("persistentVolumeClaim"):
        yield Reference(Kind.CLAIM, source["claimName"])
    if "ephemeral" in volume:
        yield Reference(Kind.CLAIM, ephemeral_claim(pod, volume["name"]))
    yield from _named((Kind.SECRET, volume.get("azureFile")), field="secretName")
    for kind, name in SECRET_VOLUMES.items():
        if kind in volume:
            yield from _named((Kind.SECRET, (volume[kind] or {}).get(name)))


def pull_secrets(spec: JsonView) -> list[str]:
    """Returns the names of the Secrets to pull images with, in order; validation accepts empty ones, which are left out."""
    return [secret["name"] for secret in spec.get("imagePullSecrets") or () if secret.get("name")]


def ephemeral_claim(pod: str, volume: str) -> str:
    """Returns the name of the claim that the control plane creates for a generic ephemeral volume."""
    return f"{pod}-{volume}"


def _named(*sources: tuple[Kind, JsonView | None], field: str = "name") -> Iterable[Reference]:
    return [Reference(kind, source.get(field) or "", bool(source.get("optional"))) for kind, source in sources if source is not None]
