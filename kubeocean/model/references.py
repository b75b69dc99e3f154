"""Finds the objects that a pod's spec refers to, and rejects references that are not supported. Pure.

Invariant: an object is either translated to its copy in the worker, or the pod (of ephemeral containers: the one) is rejected. Pods of
many tenants share one namespace in the worker, and names can be guessed, so a name that is copied without translation would reach another
tenant's Secret.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from attrs import frozen

from vkubelet.api.objects import Pod
from vkubelet.api.shapes import JsonView
from vkubelet.errors import PodRejected

UNSUPPORTED: Final = "UnsupportedReference"

_S = TypeVar("_S")


class Kind(enum.Enum):
    """Kind of an object that a pod can refer to."""

    CONFIGMAP = "ConfigMap"
    SECRET = "Secret"
    CLAIM = "PersistentVolumeClaim"


@frozen
class Reference:
    """An object in the pod's namespace; an optional one may be missing."""

    kind: Kind
    name: str
    optional: bool = False


@frozen
class TokenSource:
    """A projected token; `key` is its key in the pod's one token Secret. An empty audience is the API server's own; seconds."""

    key: str
    audience: str = ""
    expiration: int = 3600


@frozen
class References:
    """Everything a pod needs before it can start; `tokens` are in the order of the spec."""

    objects: Sequence[Reference] = ()
    tokens: Sequence[TokenSource] = ()


CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")

PLAIN_VOLUMES: Final = frozenset(
    {
        "emptyDir",
        "hostPath",
        "image",
        "nfs",
        "fc",
        "gitRepo",
        "downwardAPI",
        "awsElasticBlockStore",
        "gcePersistentDisk",
        "azureDisk",
        "vsphereVolume",
        "portworxVolume",
    }
)
"""Volume sources that name no object of the cluster."""

SECRET_FIELDS: Final[Mapping[str, str]] = {
    "csi": "nodePublishSecretRef",
    "iscsi": "secretRef",
    "flexVolume": "secretRef",
    "cephfs": "secretRef",
    "rbd": "secretRef",
    "cinder": "secretRef",
}
"""Volume sources that may refer to one Secret of the pod's namespace, and the field that does."""

OTHER_VOLUMES: Final = frozenset({"configMap", "secret", "persistentVolumeClaim", "ephemeral", "azureFile", "projected"})
PROJECTIONS: Final = frozenset({"configMap", "secret", "serviceAccountToken", "downwardAPI"})
ENV_SOURCES: Final = frozenset({"fieldRef", "resourceFieldRef", "fileKeyRef", "configMapKeyRef", "secretKeyRef"})
ENV_FROM_SOURCES: Final = frozenset({"configMapRef", "secretRef"})

_MEANS_REFERENCE: Final = re.compile(r"secret|config_?map|claim|credential|serviceaccount|refs?$", re.IGNORECASE)
_SPEC_FIELDS_HANDLED: Final = frozenset({"volumes", "imagePullSecrets", *CONTAINER_LISTS})
# Dropped: the physical pod never has them.
_SPEC_FIELDS_DROPPED: Final = frozenset({"serviceAccount", "serviceAccountName", "automountServiceAccountToken", "workloadRef"})
# Checked separately, or dropped.
_SOURCES_OF_THEIR_OWN: Final = frozenset({"name", "downwardAPI", "projected", "ephemeral"})
_NAMED_BY: Final[Mapping[str, str]] = {
    "configMap": "name",
    "secret": "secretName",
    "persistentVolumeClaim": "claimName",
    "azureFile": "secretName",
}
_CONTAINER_FIELDS_HANDLED: Final = frozenset({"env", "envFrom"})


def ephemeral_claim(pod: str, volume: str) -> str:
    """Returns the claim that the hub creates for a generic ephemeral volume (k8s.io/component-helpers/storage/ephemeral)."""
    return f"{pod}-{volume}"


def token_key(index: int) -> str:
    """Returns the key of the token of the nth source of a pod; the first is `token`, as with Kubeocean (Go)."""
    return f"token-{index}" if index else "token"


def references(pod: Pod) -> References:
    """Returns what the pod refers to, without `untranslatable` ephemeral containers.

    Raises PodRejected("UnsupportedReference") for references that cannot be translated.
    """
    spec = pod.spec
    check(spec)
    left_out = untranslatable(spec)
    if left_out:
        spec["ephemeralContainers"] = [each for each in spec["ephemeralContainers"] if each["name"] not in left_out]
    found: dict[tuple[Kind, str], bool] = {}
    for reference in _objects(spec, pod.metadata.name):
        key = reference.kind, reference.name
        found[key] = found.get(key, True) and reference.optional
    objects = tuple(Reference(kind, name, optional) for (kind, name), optional in found.items() if name)
    return References(objects, tuple(_tokens(spec)))


def check(spec: JsonView) -> None:
    """Raises PodRejected("UnsupportedReference") for a source or a reference that is not known here; see also `untranslatable`."""
    for name, value in spec.items():
        if name not in _SPEC_FIELDS_HANDLED | _SPEC_FIELDS_DROPPED:
            _check_unknown({name: value}, "spec")
    for at, volume in enumerate(spec.get("volumes") or ()):
        _check_volume(volume, f"spec.volumes[{at}]")
    for kind in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(kind) or ()):
            _check_container(container, f"spec.{kind}[{at}]")


def untranslatable(spec: JsonView) -> dict[str, str]:
    """Returns ephemeral containers, by name, with the reason why they cannot be created in the worker.

    The pod is not rejected for them: it runs already, and ephemeral containers cannot be removed from a pod.
    """
    problems: dict[str, str] = {}
    for at, container in enumerate(spec.get("ephemeralContainers") or ()):
        try:
            _check_container(container, f"spec.ephemeralContainers[{at}]")
        except PodRejected as rejected:
            problems[container["name"]] = rejected.message
    return problems


def token_sources(spec: JsonView) -> Iterator[tuple[JsonView, JsonView]]:
    """Yields each projected token as (volume, source), in the order by which `token_key` counts."""
    for volume in spec.get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in source:
                yield volume, source["serviceAccountToken"]


def _tokens(spec: JsonView) -> Iterator[TokenSource]:
    for index, (_, source) in enumerate(token_sources(spec)):
        yield TokenSource(token_key(index), source.get("audience") or "", source.get("expirationSeconds") or 3600)


def _objects(spec: JsonView, pod: str) -> Iterator[Reference]:
    for volume in spec.get("volumes") or ():
        yield from _of_volume(volume, pod)
    for kind in CONTAINER_LISTS:
        for container in spec.get(kind) or ():
            yield from _of_container(container)
    for secret in spec.get("imagePullSecrets") or ():
        # The kubelet pulls without a missing one.
        yield Reference(Kind.SECRET, secret.get("name") or "", True)


def _of_volume(volume: JsonView, pod: str) -> Iterator[Reference]:
    if source := volume.get("configMap"):
        yield _named(Kind.CONFIGMAP, source)
    if source := volume.get("secret"):
        yield _named(Kind.SECRET, source, "secretName")
    if source := volume.get("persistentVolumeClaim"):
        yield Reference(Kind.CLAIM, source["claimName"])
    if "ephemeral" in volume:
        yield Reference(Kind.CLAIM, ephemeral_claim(pod, volume["name"]))
    if source := volume.get("azureFile"):
        yield _named(Kind.SECRET, source, "secretName")
    for kind, name in SECRET_FIELDS.items():
        if secret := (volume.get(kind) or {}).get(name):
            yield _named(Kind.SECRET, secret)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "configMap" in source:
            yield _named(Kind.CONFIGMAP, source["configMap"])
        if "secret" in source:
            yield _named(Kind.SECRET, source["secret"])


def _of_container(container: JsonView) -> Iterator[Reference]:
    for source in _present(each.get("valueFrom") for each in container.get("env") or ()):
        if "configMapKeyRef" in source:
            yield _named(Kind.CONFIGMAP, source["configMapKeyRef"])
        if "secretKeyRef" in source:
            yield _named(Kind.SECRET, source["secretKeyRef"])
    for source in container.get("envFrom") or ():
        if "configMapRef" in source:
            yield _named(Kind.CONFIGMAP, source["configMapRef"])
        if "secretRef" in source:
            yield _named(Kind.SECRET, source["secretRef"])


def _present(values: Iterable[_S | None]) -> Iterator[_S]:
    return (value for value in values if value)


def _named(kind: Kind, source: JsonView, field: str = "name") -> Reference:
    return Reference(kind, source.get(field) or "", bool(source.get("optional")))


def _check_volume(volume: JsonView, path: str) -> None:
    for kind in volume.keys() - {"name"} - PLAIN_VOLUMES - OTHER_VOLUMES - SECRET_FIELDS.keys():
        raise _rejected(f"{path}.{kind}", "volumes of this kind can not be brought to the worker cluster")
    for kind, source in volume.items():
        if kind not in _SOURCES_OF_THEIR_OWN:
            _check_rest(source, SECRET_FIELDS.get(kind) or _NAMED_BY.get(kind), f"{path}.{kind}")
    for at, projection in enumerate((volume.get("projected") or {}).get("sources") or ()):
        _check_sources(projection, PROJECTIONS, f"{path}.projected.sources[{at}]")


def _check_container(container: JsonView, path: str) -> None:
    for at, variable in enumerate(container.get("env") or ()):
        _check_sources(variable.get("valueFrom") or {}, ENV_SOURCES, f"{path}.env[{at}].valueFrom")
    for at, source in enumerate(container.get("envFrom") or ()):
        _check_sources({kind: value for kind, value in source.items() if kind != "prefix"}, ENV_FROM_SOURCES, f"{path}.envFrom[{at}]")
    _check_unknown({name: value for name, value in container.items() if name not in _CONTAINER_FIELDS_HANDLED}, path)


def _check_sources(sources: JsonView, known: frozenset[str], path: str) -> None:
    for kind in sources.keys() - known:
        raise _rejected(f"{path}.{kind}", "it can not be brought to the worker cluster")
    for kind, source in sources.items():
        if kind != "downwardAPI":
            _check_rest(source, "name", f"{path}.{kind}")


def _check_rest(source: object, named_by: str | None, path: str) -> None:
    """Checks all of a source but the one field by which it is translated."""
    if isinstance(source, dict):
        _check_unknown({name: value for name, value in source.items() if name != named_by}, path)


def _check_unknown(value: object, path: str) -> None:
    """Rejects every nested field whose name indicates a reference to another object, unless the field is a map of free text."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if inner and _MEANS_REFERENCE.search(str(name)) and not _is_free_text(path):
                raise _rejected(f"{path}.{name}", "what it refers to can not be brought to the worker cluster")
            _check_unknown(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _check_unknown(inner, f"{path}[{at}]")


def _is_free_text(path: str) -> bool:
    """Checks for maps whose keys are free text of the user: labels in selectors, resources."""
    return path.endswith((".nodeSelector", ".matchLabels", ".limits", ".requests", ".overhead"))


def _rejected(path: str, sentence: str) -> PodRejected:
    return PodRejected(UNSUPPORTED, f"{path}: {sentence}")
