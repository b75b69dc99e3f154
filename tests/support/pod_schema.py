"""Every field of a Pod's spec, from the OpenAPI document of an API server, and pods that each use one of them.

Invariant: the document decides which fields exist; a value counts as one of the field when an API server accepts the pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from attrs import field, frozen

Body = dict[str, Any]
POD_SPEC = "io.k8s.api.core.v1.PodSpec"
NAME = "v"
"""The name of the volume, and of every object that a field refers to."""
NOT_AT_CREATION = ("ephemeralContainers", "nodeName")
"""Fields that another request sets, or the test in each pod."""

_SELECTED: Body = {"matchLabels": {NAME: "1"}}
_EXPRESSION: Body = {"key": NAME, "operator": "In", "values": [NAME]}
_CLAIM: Body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_DISK = "/subscriptions/v/resourcegroups/v/providers/microsoft.compute/disks/v"
_BESIDE: Mapping[str, Body] = {
    "AzureDiskVolumeSource": {"diskName": NAME, "diskURI": _DISK, "kind": "Managed"},
    "ClusterTrustBundleProjection": {"signerName": "v.example/v", "labelSelector": _SELECTED, "path": NAME},
    "ConfigMapKeySelector": {"name": NAME, "key": NAME},
    "ConfigMapEnvSource": {"name": NAME},
    "ConfigMapProjection": {"name": NAME},
    "ConfigMapVolumeSource": {"name": NAME},
    "Container": {"name": "main", "image": "i"},
    "ContainerResizePolicy": {"resourceName": "cpu", "restartPolicy": "NotRequired"},
    "ContainerRestartRule": {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
    "FCVolumeSource": {"lun": 0},
    "FileKeySelector": {"volumeName": NAME, "path": NAME, "key": NAME},
    "HostAlias": {"ip": "10.0.0.1", "hostnames": [NAME]},
    "ISCSIVolumeSource": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2030-01.example:v", "lun": 0, "secretRef": {"name": NAME}},
    "ImageVolumeSource": {"reference": "i"},
    "KeyToPath": {"key": NAME, "path": NAME},
    "LabelSelectorRequirement": _EXPRESSION,
    "NFSVolumeSource": {"server": NAME, "path": "/v"},
    "NodeSelectorRequirement": {"key": NAME, "operator": "NotIn", "values": [NAME]},
    "ObjectFieldSelector": {"fieldPath": "metadata.name"},
    "PersistentVolumeClaimSpec": _CLAIM,
    "PersistentVolumeClaimTemplate": {"spec": _CLAIM},
    "PodAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": _SELECTED},
    "PodCertificateProjection": {"signerName": "v.example/v", "keyType": "ED25519", "credentialBundlePath": NAME},
    "PodDNSConfigOption": {"name": NAME},
    "QuobyteVolumeSource": {"registry": "v:1", "volume": NAME},
    "ResourceFieldSelector": {"resource": "limits.cpu", "containerName": "main"},
    "ScaleIOVolumeSource": {"gateway": NAME, "system": NAME, "volumeName": NAME, "secretRef": {"name": NAME}},
    "SecretEnvSource": {"name": NAME},
    "SecretKeySelector": {"name": NAME, "key": NAME},
    "SecretProjection": {"name": NAME},
    "SecretVolumeSource": {"secretName": NAME},
    "StorageOSVolumeSource": {"volumeName": NAME},
    "Toleration": {"key": NAME, "operator": "Equal", "value": NAME, "effect": "NoExecute"},
    "TopologySpreadConstraint": {"labelSelector": _SELECTED},
    "TypedLocalObjectReference": {"kind": "PersistentVolumeClaim", "name": NAME},
    "TypedObjectReference": {"kind": "PersistentVolumeClaim", "name": NAME},
    "VolumeDevice": {"name": NAME, "devicePath": "/v"},
    "VolumeResourceRequirements": {"requests": {"storage": "1Gi"}},
    "VolumeMount": {"name": NAME, "mountPath": "/v", "readOnly": True},
    # By the name of the field, where its type alone does not decide.
    "initContainers": {"name": "init", "image": "i", "restartPolicy": "Always"},
    "matchFields": {"key": "metadata.name", "operator": "NotIn", "values": [NAME]},
}
"""What an API server requires beside any field of a type, and the document does not name as required."""
_ONE_OF: Mapping[str, tuple[Sequence[str], Body]] = {
    "DownwardAPIVolumeFile": (("fieldRef", "resourceFieldRef"), {"fieldRef": {"fieldPath": "metadata.name"}}),
    "EnvFromSource": (("configMapRef", "secretRef"), {"configMapRef": {"name": NAME}}),
    "FCVolumeSource": (("targetWWNs", "wwids"), {"targetWWNs": [NAME]}),
    "PodResourceClaim": (("resourceClaimName", "resourceClaimTemplateName"), {"resourceClaimName": NAME}),
    "Probe": (("exec", "httpGet", "tcpSocket", "grpc"), {"exec": {"command": ["true"]}}),
}
"""Of these fields a type needs one."""
_OF_SPEC: Mapping[str, Body] = {
    "stopSignal": {"os": {"name": "linux"}},
    "volumeDevices": {"volumes": [{"name": NAME, "persistentVolumeClaim": {"claimName": NAME}}]},
    "overhead": {"runtimeClassName": NAME},
    "claims": {"resourceClaims": [{"name": NAME, "resourceClaimName": NAME}]},
}
"""What a field requires elsewhere in the spec."""
_BASE: Body = {"containers": [{"name": "main", "image": "i"}], "volumes": [{"name": NAME, "emptyDir": {}}]}
_VALUES: Mapping[str, Sequence[Any]] = {
    "os.name": ("linux",),
    "priorityClassName": ("system-node-critical",),
    "serviceAccount": ("default",),
    "serviceAccountName": ("default",),
    "overhead": ({"cpu": "1"},),
    "nodeSelectorTerms.0.matchExpressions.0.operator": ("NotIn",),
    "nodeSelectorTerms.0.matchFields.0.operator": ("NotIn",),
    "matchFields.0.key": ("metadata.name",),
    "nodeSelector": ({"kubernetes.io/os": "linux"},),
    "runtimeClassName": (NAME,),
    "initContainers.0.restartPolicy": ("Always",),
    "initContainers.0.ports.0.hostPort": (81,),
    "resizePolicy.0.restartPolicy": ("NotRequired",),
    "recursiveReadOnly": ("Disabled",),
    "fieldRef.apiVersion": ("v1",),
    "effect": ("NoExecute",),
    "volumeClaimTemplate.spec.resources.limits": ({"storage": "1Gi"},),
    "volumeClaimTemplate.spec.resources.requests": ({"storage": "1Gi"},),
    "azureDisk.diskURI": (_DISK,),
    "dataSource.kind": ("PersistentVolumeClaim",),
    "dataSourceRef.kind": ("PersistentVolumeClaim",),
    "iscsi.initiatorName": ("iqn.2030-01.example:v",),
    "iscsi.iqn": ("iqn.2030-01.example:v",),
    "quobyte.registry": ("v:1",),
    "seLinuxChangePolicy": ("Recursive",),
    "accessModes.0": ("ReadWriteOnce",),
    "stopSignal": ("SIGTERM",),
}
"""Values of fields whose type does not show any."""
_TEXTS = (
    *(NAME, "metadata.name", "limits.cpu", "/v", "v/v", "1", "1Mi", "10.0.0.1", "2030-01-01T00:00:00Z", "2001:db8::1"),
    *("kubernetes.io/hostname", "v.example/v", "RuntimeDefault", "main", "v.sock", "Localhost", "cpu", "In"),
)
_NUMBERS = (1, 0, 80, 1000, 420, 3600)


@frozen
class Field:
    """A field without fields below it; "0" in its path is any item of a list."""

    path: tuple[str, ...]
    schema: Mapping[str, Any] = field(repr=False, eq=False)

    def __str__(self) -> str:
        return ".".join(self.path).replace(".0", "[]")

    def values(self, spec: Body) -> list[Any]:
        """Its values in a spec, one for each item of lists above it."""
        found: list[Any] = [spec]
        for name in self.path:
            if name == "0":
                found = [item for each in found for item in each]
            else:
                found = [each[name] for each in found if each.get(name) is not None]
        return found


@frozen
class PodSchema:
    """The schemas of a document, by name."""

    schemas: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> PodSchema:
        """From `/openapi/v3/api/v1`."""
        return cls(document["components"]["schemas"])

    def fields(self) -> list[Field]:
        return [each for each in self._fields({"$ref": POD_SPEC}, ()) if each.path[0] not in NOT_AT_CREATION]

    def specs(self, wanted: Field) -> Iterator[Body]:
        """Specs with this field, each with another value: the API server accepts none, or some of them."""
        for value in _values(wanted):
            spec: Body = {}
            for name, more in _OF_SPEC.items():
                if name in wanted.path:
                    spec |= deepcopy(more)
            self._put(spec, {"$ref": POD_SPEC}, wanted.path, value)
            yield spec | {name: deepcopy(each) for name, each in _BASE.items() if name not in spec}

    def _fields(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Field]:
        _, schema = self._resolved(schema)
        if schema.get("type") == "array":
            yield from self._fields(schema["items"], (*path, "0"))
        elif "properties" in schema:
            for name, below in schema["properties"].items():
                yield from self._fields(below, (*path, name))
        else:
            yield Field(path, schema)

    def _resolved(self, schema: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Returns the name of a type, such as "Probe", and its schema."""
        kind = ""
        while True:
            if len(schema.get("allOf", ())) == 1:
                schema = schema["allOf"][0]
            if "$ref" not in schema:
                return kind, schema
            name = schema["$ref"].rpartition("/")[2]
            kind, schema = name.rpartition(".")[2], self.schemas[name]

    def _put(self, into: Body, schema: Mapping[str, Any], path: tuple[str, ...], value: Any) -> None:
        """Adds a value at a path, with what is required beside it."""
        kind, schema = self._resolved(schema)
        name, rest = path[0], path[1:]
        _, below = self._resolved(schema["properties"][name])
        if below.get("type") == "array":
            into[name] = [self._item(below["items"], rest[1:], value, name)]
        else:
            into[name] = self._item(schema["properties"][name], rest, value, name)
        of, least = _ONE_OF.get(kind, ((), {}))
        if not any(each in into for each in of):
            into |= deepcopy(least)
        for other in schema.get("required", ()):
            if other not in into:
                into[other] = self._least(schema["properties"][other])

    def _item(self, schema: Mapping[str, Any], rest: tuple[str, ...], value: Any, name: str) -> Any:
        if not rest:
            return value
        kind, _ = self._resolved(schema)
        made: Body = deepcopy(_BESIDE.get(name, _BESIDE.get(kind, {})))
        self._put(made, schema, rest, value)
        return made

    def _least(self, schema: Mapping[str, Any]) -> Any:
        """The smallest value with all that is required."""
        kind, schema = self._resolved(schema)
        if schema.get("type") == "array":
            return [self._least(schema["items"])]
        if "properties" in schema:
            least = {name: self._least(schema["properties"][name]) for name in schema.get("required", ())}
            return least | deepcopy(_BESIDE.get(kind, {}))
        return next(_of_type(schema))


def _values(wanted: Field) -> Iterator[Any]:
    path = ".".join(wanted.path)
    for ending, values in _VALUES.items():
        if path == ending or path.endswith(f".{ending}"):
            yield from values
            return
    yield from _of_type(wanted.schema)


def _of_type(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values of a type, the most usual ones first."""
    if "enum" in schema:
        yield from schema["enum"]
        return
    match schema.get("type"):
        case "boolean":
            yield from (True, False)
        case "integer":
            yield from _NUMBERS
        case "object":
            yield from ({NAME: "1"}, {"cpu": "1"}, {"kubernetes.io/os": "linux"}) if schema.get("additionalProperties") else ({},)
        case "string":
            yield from _TEXTS
        case _:
            yield from (*_NUMBERS, "1", "1Mi")
