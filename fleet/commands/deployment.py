"""The objects of the worker that run the agent: Secret, settings, Deployment (pure).

Invariant: a token is in the Secret alone; the pod runs without privileges.
"""

import base64
from collections.abc import Mapping
from typing import Final

import yaml

from fleet.api import keys
from vkubelet.api.objects import Json, JsonView

SETTINGS: Final = "settings.yaml"
_MOUNT: Final = "/etc/fleet"
_USER: Final = 65532
_HEALTH: Final = 8081
_METRICS: Final = 8080


def bootstrap_kubeconfig(*, server: str, authority: bytes, token: str = "") -> str:
    """Returns the kubeconfig of a bootstrap Secret; without `authority` the roots of the system are used, without `token` no identity."""
    cluster: Json = {"server": server}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    body: Json = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hub",
        "clusters": [{"name": "hub", "cluster": cluster}],
        "users": [{"name": "bootstrap", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "bootstrap"}}],
    }
    return yaml.safe_dump(body, sort_keys=False)


def secret_body(name: str, namespace: str, entries: Mapping[str, str]) -> Json:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "type": "Opaque", "data": data}


def settings_body(own: JsonView, namespace: str) -> Json:
    """Returns the ConfigMap with the settings file of the agent."""
    metadata = {"name": keys.AGENT, "namespace": namespace}
    text = yaml.safe_dump({"agent": dict(own)}, sort_keys=False)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {SETTINGS: text}}


def agent_deployment(image: str, namespace: str) -> Json:
    """Returns the Deployment of the agent."""
    labels = {"app.kubernetes.io/name": keys.AGENT}
    probe: Json = {"httpGet": {"path": "/healthz", "port": "health"}}
    container: Json = {
        "name": "agent",
        "image": image,
        "command": ["fleet"],
        "args": ["agent", "--settings", f"{_MOUNT}/{SETTINGS}"],
        "ports": [{"name": "health", "containerPort": _HEALTH}, {"name": "metrics", "containerPort": _METRICS}],
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 3},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "settings", "mountPath": _MOUNT, "readOnly": True}],
    }
    pod: Json = {
        "serviceAccountName": keys.AGENT,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "settings", "configMap": {"name": keys.AGENT}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": keys.AGENT, "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
