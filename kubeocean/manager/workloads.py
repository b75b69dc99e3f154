"""Desired objects that run one ClusterBinding in the computing cluster: Deployment, settings, identity, Service (pure).

Invariant: equal binding and settings give equal objects; each is owned by the binding and has a hash of its desired state, so a change of
image, flags or settings is a change of the Deployment, and nothing else is.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.rbac import permissions
from kubeocean.settings import ManagerSettings
from vkubelet import settings as runtime_settings
from vkubelet.api import objects
from vkubelet.api.objects import Json, Resource, Unknown
from vkubelet.control.owned import DesiredObject

MANAGER: Final = "kubeocean-manager"
"""Field manager, event source, and value of the label of all our objects."""
OURS: Final = f"app.kubernetes.io/managed-by={MANAGER}"
CONTAINER: Final = "syncer"
SETTINGS_FILE: Final = "settings.yaml"

_CONFIG: Final = "/etc/kubeocean"
_TLS: Final = "/etc/kubeocean-tls"
_STATE: Final = "/var/lib/kubeocean"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_KUBELET_PORT: Final = 10250
_HEALTH_PORT: Final = 8081
_METRICS_PORT: Final = 8080
_KINDS: Final[Mapping[str, Resource[Unknown]]] = {
    resource.kind: resource
    for resource in (
        objects.CLUSTERROLEBINDINGS,
        objects.CLUSTERROLES,
        objects.CONFIGMAPS,
        objects.DEPLOYMENTS,
        objects.PDBS,
        objects.ROLEBINDINGS,
        objects.ROLES,
        objects.SERVICEACCOUNTS,
        objects.SERVICES,
    )
}


def deployment_name(cluster_id: str) -> str:
    """Returns the name of the Deployment, ServiceAccount, roles, settings and the leader's Lease, as in Kubeocean (Go)."""
    return permissions.syncer_name(cluster_id)


def old_proxier_name(cluster_id: str) -> str:
    """Returns the name of the Deployment of Kubeocean (Go) that the syncer replaces here."""
    return f"kubeocean-proxier-{cluster_id}"


def service_name(cluster_id: str) -> str:
    """Returns the name of the Service in front of the kubelet port."""
    return f"kubeocean-proxier-{cluster_id}-svc"


def certificate_name(cluster_id: str) -> str:
    """Returns the name of the Secret with the certificate that Kubeocean (Go) created for a binding."""
    return f"{cluster_id}-logs-proxy-tls"


def selector_labels(binding: ClusterBinding) -> dict[str, str]:
    """Returns the labels that select the pods of one binding."""
    return {
        "app.kubernetes.io/name": permissions.SYNCER,
        "app.kubernetes.io/instance": keys.label_value(binding.name),
        "app.kubernetes.io/component": CONTAINER,
        "k8s-app": deployment_name(binding.cluster_id),
    }


def desired_objects(binding: ClusterBinding, settings: ManagerSettings) -> tuple[DesiredObject, ...]:
    """Returns all desired objects in the order of their creation; the Deployment comes last."""
    name = deployment_name(binding.cluster_id)
    chosen = syncer_settings(binding, settings)
    identity = permissions.hub_objects(
        name, namespace=settings.namespace, binding=binding.name, namespaces=False, kinds=settings.extra_kinds
    )
    for body in identity:
        if body["kind"] == "ServiceAccount" and settings.service_account_annotations:
            body["metadata"] = {**body["metadata"], "annotations": dict(settings.service_account_annotations)}
    bodies = [*identity, _config_map(name, settings, chosen), _service(binding, settings)]
    if settings.replicas > 1 or settings.autoscaled:
        bodies.append(_disruption_budget(binding, settings))
    bodies.append(_deployment(binding, settings, chosen))
    return tuple(_wanted(body, binding) for body in bodies)


def syncer_settings(binding: ClusterBinding, settings: ManagerSettings) -> Json:
    """Returns the settings file of the binding's process."""
    defaults: Json = {
        "leader": {"enabled": True, "namespace": settings.namespace, "name": deployment_name(binding.cluster_id)},
        "server": {"certificate_directory": _STATE, "approve_own_csr": True},
        "health": {"health_address": f"0.0.0.0:{_HEALTH_PORT}", "metrics_address": f"0.0.0.0:{_METRICS_PORT}"},
    }
    if own_certificate(binding, settings):
        defaults["server"] = {"certificate": "files", "certificate_file": f"{_TLS}/tls.crt", "key_file": f"{_TLS}/tls.key"}
    return runtime_settings.merged(defaults, settings.syncer_settings)


def own_certificate(binding: ClusterBinding, settings: ManagerSettings) -> str:
    """Returns the Secret that the binding's annotations name for the kubelet port, if a pod can mount it; else empty."""
    notes = binding.annotations
    if notes.get(keys.LOGS_PROXY_ENABLED) != "true":
        return ""
    namespace = notes.get(keys.LOGS_PROXY_SECRET_NAMESPACE) or settings.namespace
    return notes.get(keys.LOGS_PROXY_SECRET_NAME, "") if namespace == settings.namespace else ""


def unheeded_certificate(binding: ClusterBinding, settings: ManagerSettings) -> str:
    """Returns why the Secret named by the annotations cannot be used; empty when none is named, or it can."""
    notes = binding.annotations
    named = notes.get(keys.LOGS_PROXY_ENABLED) == "true" and notes.get(keys.LOGS_PROXY_SECRET_NAME)
    if not named or own_certificate(binding, settings):
        return ""
    text = f"a pod can mount Secrets of its own namespace only; copy Secret {named} to namespace {settings.namespace} and name that"
    return f"metadata.annotations[{keys.LOGS_PROXY_SECRET_NAMESPACE}]: {text}; until then the process requests a certificate"


# --- Objects ------------------------------------------------------------------------------------------------------------------------------


def _wanted(body: Json, binding: ClusterBinding) -> DesiredObject:
    metadata = body["metadata"]
    owner = {
        "apiVersion": CLUSTERBINDINGS.api_version,
        "kind": CLUSTERBINDINGS.kind,
        "name": binding.name,
        "uid": binding.uid,
        "controller": True,
    }
    body = {
        **body,
        "metadata": {
            **metadata,
            "labels": {**metadata.get("labels", {}), **_common_labels(binding)},
            "ownerReferences": [owner],
        },
    }
    digest = _digest(body)
    body["metadata"]["annotations"] = {**metadata.get("annotations", {}), keys.APPLIED: digest}
    is_optional = metadata["name"] == permissions.kinds_name(deployment_name(binding.cluster_id))
    return DesiredObject(_KINDS[body["kind"]], body, digest, optional=is_optional)


def _common_labels(binding: ClusterBinding) -> dict[str, str]:
    return {
        "app.kubernetes.io/part-of": "kubeocean",
        "app.kubernetes.io/managed-by": MANAGER,
        keys.CLUSTER_BINDING: keys.label_value(binding.name),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


def _config_map(name: str, settings: ManagerSettings, chosen: Json) -> Json:
    text = yaml.safe_dump(_decoded(chosen), sort_keys=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": settings.namespace},
        "data": {SETTINGS_FILE: text},
    }


def _decoded(value: Any) -> Any:
    """Converts to plain dicts and lists, which YAML can be created from."""
    return json.loads(json.dumps(value, default=_plain))


def _service(binding: ClusterBinding, settings: ManagerSettings) -> Json:
    port = {"name": "kubelet", "port": _KUBELET_PORT, "protocol": "TCP", "targetPort": "kubelet"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service_name(binding.cluster_id), "namespace": settings.namespace},
        "spec": {"type": "ClusterIP", "selector": selector_labels(binding), "ports": [port]},
    }


def _disruption_budget(binding: ClusterBinding, settings: ManagerSettings) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": deployment_name(binding.cluster_id), "namespace": settings.namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector_labels(binding)}},
    }


def _deployment(binding: ClusterBinding, settings: ManagerSettings, chosen: Json) -> Json:
    labels = selector_labels(binding)
    # A change of the log level is read from the mounted file while the process runs.
    counted = {name: value for name, value in chosen.items() if name != "log"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment_name(binding.cluster_id), "namespace": settings.namespace, "labels": labels},
        "spec": {
            **({} if settings.autoscaled else {"replicas": settings.replicas}),
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": 120,
            # The leader is replaced last: a follower has filled its caches before it has to lead.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": {**settings.pod_labels, **labels, **_common_labels(binding)},
                    "annotations": {**settings.pod_annotations, keys.SETTINGS_HASH: _digest(counted)},
                },
                "spec": _pod(binding, settings, chosen),
            },
        },
    }


def _pod(binding: ClusterBinding, settings: ManagerSettings, chosen: Json) -> Json:
    certificate = own_certificate(binding, settings)
    name = deployment_name(binding.cluster_id)
    volumes: list[Json] = [{"name": "settings", "configMap": {"name": name}}]
    volumes += [{"name": "state", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if certificate:
        volumes.append({"name": "certificate", "secret": {"secretName": certificate}})
    volumes += _decoded(settings.extra_volumes)
    spec: Json = {
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": 30,
        "securityContext": _decoded(settings.pod_security_context),
        "affinity": _affinity(binding, settings.affinity),
        "containers": [_container(binding, settings, chosen)],
        "volumes": volumes,
    }
    optional = {
        "imagePullSecrets": [{"name": each} for each in settings.image_pull_secrets],
        "priorityClassName": settings.priority_class,
        "tolerations": [dict(each) for each in settings.tolerations],
        "nodeSelector": dict(settings.node_selector),
        "topologySpreadConstraints": _spread(binding, settings.topology_spread),
    }
    return {**spec, **{key: value for key, value in optional.items() if value}}


def _container(binding: ClusterBinding, settings: ManagerSettings, chosen: Json) -> Json:
    command = ["kubeocean", "run", "--binding", binding.name, "--settings", f"{_CONFIG}/{SETTINGS_FILE}"]
    if not (chosen.get("server") or {}).get("node_address"):
        command += ["--node-address", "$(POD_IP)"]
    main = (chosen.get("server") or {}).get("main_port", _KUBELET_PORT)
    health = chosen["health"]
    ports = {"kubelet": main, "health": _port(health["health_address"]), "metrics": _port(health["metrics_address"])}
    mounts = [{"name": "settings", "mountPath": _CONFIG, "readOnly": True}]
    mounts += [{"name": "state", "mountPath": _STATE}, {"name": "tmp", "mountPath": "/tmp"}]
    if own_certificate(binding, settings):
        mounts.append({"name": "certificate", "mountPath": _TLS, "readOnly": True})
    mounts += _decoded(settings.extra_volume_mounts)
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "env": [_downward("POD_IP", "status.podIP"), _downward("POD_NAME", "metadata.name"), *_decoded(settings.extra_env)],
        "ports": [{"name": called, "containerPort": port, "protocol": "TCP"} for called, port in ports.items() if port],
        **(_probes() if ports["health"] else {}),
        "resources": _decoded(settings.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _downward(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probes() -> Json:
    return {
        "livenessProbe": {**_probe("/healthz"), "initialDelaySeconds": 10, "periodSeconds": 20, "failureThreshold": 3},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 5, "failureThreshold": 3},
    }


def _probe(path: str) -> Json:
    return {"httpGet": {"path": path, "port": "health"}, "timeoutSeconds": 5}


def _port(address: str) -> int:
    """Returns the port of `host:port`; 0 when nothing listens."""
    return int(address.rpartition(":")[2] or 0)


def _affinity(binding: ClusterBinding, given: Mapping[str, Any]) -> Json:
    """Excludes virtual nodes, which would stop with the process that they run; by default prefers different nodes for the replicas."""
    ours = {"key": keys.NODE_TYPE, "operator": "NotIn", "values": [keys.VIRTUAL_KUBELET]}
    go = {"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": [keys.VIRTUAL_NODE_TYPE]}
    apart = {"labelSelector": {"matchLabels": selector_labels(binding)}, "topologyKey": "kubernetes.io/hostname"}
    affinity: Json = {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]},
        **_decoded(given),
    }
    nodes = affinity.get("nodeAffinity") or {}
    # A node has to match one of the terms, so each of them excludes virtual nodes.
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), ours, go]} for term in terms]
    return {**affinity, "nodeAffinity": {**nodes, _REQUIRED: {"nodeSelectorTerms": terms}}}


def _spread(binding: ClusterBinding, constraints: Sequence[Mapping[str, Any]]) -> list[Json]:
    return [{"labelSelector": {"matchLabels": selector_labels(binding)}, **_decoded(each)} for each in constraints]
