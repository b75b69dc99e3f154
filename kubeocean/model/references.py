"""Finds the objects that a pod's spec refers to, and rejects references that are not supported. Pure.

Invariant: an object is either translated to its copy in the worker, or the pod (of ephemeral containers: the one) is rejected. Pods of
many tenants share one namespace in the worker, and names can be guessed, so a name that is copied without translation would reach another
tenant's Secret.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from attrs import frozen

from vkubelet.api import podspec
from vkubelet.api.codec import decode_json
from vkubelet.api.memo import by_spec
from vkubelet.api.objects import Json, JsonView, Pod
from vkubelet.errors import PodRejected

UNSUPPORTED: Final = "UnsupportedReference"
_UNSUPPORTED: Final = "is not supported on virtual nodes; remove it, or run the pod on another node"


@frozen
class TokenSource:
    """A projected token; `key` is its key in the pod's one token Secret. An empty audience is the API server's own; seconds."""

    key: str
    audience: str = ""
    expiration: int = 3600


@frozen
class References:
    """Everything a pod needs before it can start; `tokens` are in the order of the spec."""

    objects: Sequence[podspec.Reference] = ()
    tokens: Sequence[TokenSource] = ()


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

OTHER_VOLUMES: Final = frozenset({"configMap", "secret", "persistentVolumeClaim", "ephemeral", "azureFile", "projected"})
PROJECTIONS: Final = frozenset({"configMap", "secret", "serviceAccountToken", "downwardAPI"})
ENV_SOURCES: Final = frozenset({"fieldRef", "resourceFieldRef", "fileKeyRef", "configMapKeyRef", "secretKeyRef"})
ENV_FROM_SOURCES: Final = frozenset({"configMapRef", "secretRef"})

_MEANS_REFERENCE: Final = re.compile(r"secret|config_?map|claim|credential|serviceaccount|refs?$", re.IGNORECASE)
_SPEC_FIELDS_HANDLED: Final = frozenset({"volumes", "imagePullSecrets", *podspec.CONTAINERS})
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


def token_key(index: int) -> str:
    """Returns the key of the token of the nth source of a pod; the first is `token`, as with Kubeocean (Go)."""
    return f"token-{index}" if index else "token"


def references(pod: Pod) -> References:
    """Returns what the pod refers to, without `untranslatable` ephemeral containers.

    Raises PodRejected("UnsupportedReference") for references that cannot be translated.
    """
    return _references(pod.spec_json, pod.metadata.name)


@by_spec
def _references(spec_json: bytes, name: str) -> References:
    spec: Json = decode_json(spec_json)
    check(spec)
    left_out = untranslatable(spec)
    if left_out:
        spec["ephemeralContainers"] = [each for each in spec["ephemeralContainers"] if each["name"] not in left_out]
    found: dict[tuple[podspec.Kind, str], bool] = {}
    for reference in _objects(spec, name):
        key = reference.kind, reference.name
        found[key] = found.get(key, True) and reference.optional
    objects = tuple(podspec.Reference(kind, name, optional) for (kind, name), optional in found.items() if name)
    return References(objects, tuple(_tokens(spec)))


def check(spec: JsonView) -> None:
    """Raises PodRejected("UnsupportedReference") for a source or a reference that is not known here; see also `untranslatable`."""
    for name, value in spec.items():
        if name not in _SPEC_FIELDS_HANDLED | _SPEC_FIELDS_DROPPED:
            _check_unknown({name: value}, "spec")
    for at, volume in enumerate(spec.get("volumes") or ()):
        _check_volume(volume, f"spec.volumes[{at}]")
    for kind in podspec.PLANNED_CONTAINERS:
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


def _objects(spec: JsonView, pod: str) -> Iterator[podspec.Reference]:
    for volume in spec.get("volumes") or ():
        yield from podspec.file_references(volume)
        yield from podspec.storage_references(volume, pod)
    for container in podspec.containers(spec):
        yield from podspec.environment_references(container)
    for name in podspec.pull_secrets(spec):
        # The kubelet pulls without a missing one.
        yield podspec.Reference(podspec.Kind.SECRET, name, optional=True)


def _check_volume(volume: JsonView, path: str) -> None:
    for kind in volume.keys() - {"name"} - PLAIN_VOLUMES - OTHER_VOLUMES - podspec.SECRET_VOLUMES.keys():
        raise _rejected(f"{path}.{kind}", f"this volume type {_UNSUPPORTED}")
    for kind, source in volume.items():
        if kind not in _SOURCES_OF_THEIR_OWN:
            _check_rest(source, podspec.SECRET_VOLUMES.get(kind) or _NAMED_BY.get(kind), f"{path}.{kind}")
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
        raise _rejected(f"{path}.{kind}", f"this source {_UNSUPPORTED}")
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
            if inner and _means_reference(str(name)) and not _is_free_text(path):
                raise _rejected(f"{path}.{name}", f"this reference {_UNSUPPORTED}")
            if isinstance(inner, dict | list):
                _check_unknown(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _check_unknown(inner, f"{path}[{at}]")


@lru_cache(1024)
def _means_reference(field: str) -> bool:
    return _MEANS_REFERENCE.search(field) is not None


def _is_free_text(path: str) -> bool:
    """Checks for maps whose keys are free text of the user: labels in selectors, resources."""
    return path.endswith((".nodeSelector", ".matchLabels", ".limits", ".requests", ".overhead"))


def _rejected(path: str, sentence: str) -> PodRejected:
    return PodRejected(UNSUPPORTED, f"{path}: {sentence}")


_CSI_SECRETS: Final = (
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
)
SECRETS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "csi": _CSI_SECRETS,
    "iscsi": ("secretRef",),
    "cephfs": ("secretRef",),
    "rbd": ("secretRef",),
    "cinder": ("secretRef",),
    **dict.fromkeys(
        ("nfs", "fc", "awsElasticBlockStore", "gcePersistentDisk", "azureDisk", "vsphereVolume", "portworxVolume"),
        (),
    ),
}
"""Sources outside of any machine, each with its fields that refer to a Secret."""
MACHINES: Final = frozenset({"hostPath", "local"})
"""Sources on the disk of a machine: in the worker the path would be that of another machine, with data of another owner."""
