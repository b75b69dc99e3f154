"""Defaults that an API server fills in (k8s.io/kubernetes, pkg/apis/*/v1/defaults.go), by type of `schema.json`.

Invariant: a default is a function of the value it completes, and changes only the dict it is given.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from tests.faults.model.shapes import Body, Default, struct

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_CONTAINERS: Final = ("containers", "initContainers")


def _values(**values: Any) -> Default:
    def apply(obj: Body) -> None:
        for name, value in values.items():
            obj.setdefault(name, value)

    return apply


def _image_policy(image: str) -> str:
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return "Always" if (tag or "latest") == "latest" and "@" not in image else "IfNotPresent"


def _container(obj: Body) -> None:
    obj.setdefault("imagePullPolicy", _image_policy(obj.get("image", "")))
    obj.setdefault("terminationMessagePath", "/dev/termination-log")
    obj.setdefault("terminationMessagePolicy", "File")


def _volume(obj: Body) -> None:
    if len(obj) == 1 and "name" in obj:
        obj["emptyDir"] = {}


def _probe(obj: Body) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        obj.setdefault(name, value)


def _pod(obj: Body) -> None:
    """Completes what only pods have, not their templates; the spec may be the stored one, so it is replaced."""
    spec, changes = obj["spec"], {}
    if "enableServiceLinks" not in spec:
        changes["enableServiceLinks"] = True
    for kind in _CONTAINERS:
        containers = made = spec.get(kind) or []
        if any((each.get("resources") or {}).get("limits") for each in containers):
            made = [_with_requests(each) for each in made]
        if spec.get("hostNetwork"):
            made = [_with_host_ports(each) for each in made]
        if made != containers:
            changes[kind] = made
    if changes:
        obj["spec"] = {**spec, **changes}


def _with_requests(container: Body) -> Body:
    limits, requests = container["resources"].get("limits") or {}, container["resources"].get("requests") or {}
    if limits.keys() <= requests.keys():
        return container
    return {**container, "resources": {**container["resources"], "requests": {**limits, **requests}}}


def _with_host_ports(container: Body) -> Body:
    if all("hostPort" in port for port in container.get("ports") or ()):
        return container
    return {**container, "ports": [{"hostPort": port["containerPort"], **port} for port in container["ports"]]}


def _node_status(obj: Body) -> None:
    if "capacity" in obj and "allocatable" not in obj:
        obj["allocatable"] = obj["capacity"]


def _service(obj: Body) -> None:
    obj.setdefault("sessionAffinity", "None")
    obj.setdefault("type", "ClusterIP")
    if obj["type"] in ("NodePort", "LoadBalancer", "ClusterIP"):
        obj.setdefault("internalTrafficPolicy", "Cluster")


def _service_port(obj: Body) -> None:
    obj.setdefault("protocol", "TCP")
    if obj.get("targetPort") in (0, "", None):
        obj["targetPort"] = obj["port"]


def _deployment(obj: Body) -> None:
    obj.setdefault("replicas", 1)
    obj.setdefault("revisionHistoryLimit", 10)
    obj.setdefault("progressDeadlineSeconds", 600)


def _strategy(obj: Body) -> None:
    obj.setdefault("type", "RollingUpdate")
    if obj["type"] == "RollingUpdate":
        obj["rollingUpdate"] = {"maxUnavailable": "25%", "maxSurge": "25%", **(obj.get("rollingUpdate") or {})}


def _namespace(obj: Body) -> None:
    metadata = obj["metadata"]
    labels, name = metadata.get("labels") or {}, metadata.get("name")
    if name and labels.get(_NAMESPACE_NAME) != name:
        obj["metadata"] = {**metadata, "labels": {**labels, _NAMESPACE_NAME: name}}


def _network_policy(obj: Body) -> None:
    if not obj.get("policyTypes"):
        obj["policyTypes"] = ["Ingress", "Egress"] if obj.get("egress") else ["Ingress"]


def _pod_status(obj: Body) -> None:
    """Keeps podIP and podIPs equal, of which the server stores only the list; a single address wins."""
    single, many = obj.get("podIP"), obj.get("podIPs")
    if single and (not many or many[0].get("ip") != single):
        obj["podIPs"] = [{"ip": single}]
    elif many and many[0].get("ip"):
        obj["podIP"] = many[0]["ip"]


def _secret(obj: Body) -> None:
    obj.setdefault("type", "Opaque")
    if texts := obj.pop("stringData", None):
        obj["data"] = {**(obj.get("data") or {}), **{key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}}


_MODE: Final = _values(defaultMode=420)
_PENDING: Final = _values(phase="Pending")
_DEFAULTS: Final[dict[str, Default]] = {
    "core.Pod": _pod,
    "core.PodSpec": lambda obj: _pod_spec(obj),
    "core.PodStatus": _pod_status,
    "core.Container": _container,
    "core.EphemeralContainer": _container,
    "core.ContainerPort": _values(protocol="TCP"),
    "core.Probe": _probe,
    "core.HTTPGetAction": _values(scheme="HTTP", path="/"),
    "core.GRPCAction": _values(service=""),
    "core.Volume": _volume,
    "core.SecretVolumeSource": _MODE,
    "core.ConfigMapVolumeSource": _MODE,
    "core.DownwardAPIVolumeSource": _MODE,
    "core.ProjectedVolumeSource": _MODE,
    "core.ServiceAccountTokenProjection": _values(expirationSeconds=3600),
    "core.ObjectFieldSelector": _values(apiVersion="v1"),
    "core.HostPathVolumeSource": _values(type=""),
    "core.NodeStatus": _node_status,
    "core.Secret": _secret,
    "core.ServiceSpec": _service,
    "core.ServicePort": _service_port,
    "core.PersistentVolumeClaimSpec": _values(volumeMode="Filesystem"),
    "core.PersistentVolumeClaimStatus": _PENDING,
    "core.PersistentVolumeSpec": _values(volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain"),
    "core.PersistentVolumeStatus": _PENDING,
    "core.Namespace": _namespace,
    "networking.NetworkPolicySpec": _network_policy,
    "networking.NetworkPolicyPort": _values(protocol="TCP"),
    "apps.ReplicaSetSpec": _values(replicas=1),
    "apps.DeploymentSpec": _deployment,
    "apps.DeploymentStrategy": _strategy,
    "scheduling.PriorityClass": _values(preemptionPolicy="PreemptLowerPriority"),
}


def _pod_spec(obj: Body) -> None:
    obj.setdefault("dnsPolicy", "ClusterFirst")
    obj.setdefault("restartPolicy", "Always")
    obj.setdefault("securityContext", {})
    obj.setdefault("terminationGracePeriodSeconds", 30)
    obj.setdefault("schedulerName", "default-scheduler")
    # The deprecated name of the field is filled in from the other.
    if account := obj.get("serviceAccountName") or obj.get("serviceAccount"):
        obj["serviceAccountName"] = obj["serviceAccount"] = account


def install() -> None:
    """Attaches the defaults to the types."""
    for name, default in _DEFAULTS.items():
        struct(name).default = default
