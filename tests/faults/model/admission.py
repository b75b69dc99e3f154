"""Admission plugins that an API server runs by default and that the product can notice.

Invariant: an object that is passed in is new, so it may be completed in place; refusals are those of the plugins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.faults.model.kinds import Kind, Kinds
from tests.faults.model.refusals import Refusal
from tests.faults.model.storage import Storage

Body = dict[str, Any]

_FOREVER: Final = frozenset({"default", "kube-system", "kube-public"})
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOKEN_SECONDS: Final = 3607
_PRIORITIES: Final = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


class Admission:
    """Admission of creations."""

    def __init__(self, storage: Storage, kinds: Kinds, *, suffix: Callable[[], str]) -> None:
        self._storage = storage
        self._kinds = kinds
        self._suffix = suffix

    def create(self, kind: Kind, namespace: str, obj: Body) -> None:
        """Completes a new object. Raises Refusal."""
        name = obj["metadata"].get("name", "")
        if namespace:
            self._namespace_accepts(kind, namespace, name)
        if kind.kind == "Pod":
            self._pod(kind, namespace, obj)
        elif kind.kind == "Node":
            taints = obj["spec"].get("taints") or []
            not_ready = {"key": _TOLERATED[0], "effect": "NoSchedule"}
            if all((each.get("key"), each.get("effect")) != (not_ready["key"], "NoSchedule") for each in taints):
                obj["spec"]["taints"] = [*taints, not_ready]
        elif kind.kind in ("PersistentVolumeClaim", "PersistentVolume"):
            finalizer = "kubernetes.io/pvc-protection" if namespace else "kubernetes.io/pv-protection"
            finalizers = obj["metadata"].get("finalizers") or []
            if finalizer not in finalizers:
                obj["metadata"]["finalizers"] = [*finalizers, finalizer]

    def _namespace_accepts(self, kind: Kind, namespace: str, name: str) -> None:
        namespaces = self._kinds.get("", "v1", "namespaces")
        found = self._storage.get(namespaces, ("", namespace))
        if found is None:
            raise namespaces.target(namespace).not_found()
        if found.body["status"].get("phase") == "Terminating":
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise kind.target(name).forbidden(why)

    def _pod(self, kind: Kind, namespace: str, obj: Body) -> None:
        spec = obj["spec"]
        self._priority(kind, obj)
        self._account(kind, namespace, obj)
        _tolerate(spec)

    def _priority(self, kind: Kind, obj: Body) -> None:
        spec = obj["spec"]
        name = spec.get("priorityClassName", "")
        value, policy = 0, "PreemptLowerPriority"
        if name in _PRIORITIES:
            value = _PRIORITIES[name]
        elif name:
            found = self._storage.get(self._kinds.get("scheduling.k8s.io", "v1", "priorityclasses"), ("", name))
            if found is None:
                raise kind.target(obj["metadata"].get("name", "")).forbidden(f"no PriorityClass with name {name} was found")
            value, policy = found.body.get("value", 0), found.body.get("preemptionPolicy", policy)
        if spec.get("priority") not in (None, value):
            why = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; {value} was computed"
            raise kind.target(obj["metadata"].get("name", "")).forbidden(why)
        spec["priority"] = value
        spec["preemptionPolicy"] = policy

    def _account(self, kind: Kind, namespace: str, obj: Body) -> None:
        spec = obj["spec"]
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        found = self._storage.get(self._kinds.get("", "v1", "serviceaccounts"), (namespace, name))
        if found is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise Refusal(
                code=403,
                reason="Forbidden",
                message=f'pods "{obj["metadata"].get("name", "")}" is forbidden: {why}',
                kind="pods",
                name=obj["metadata"].get("name", ""),
            )
        mounts = spec.get("automountServiceAccountToken")
        if mounts is None:
            mounts = found.body.get("automountServiceAccountToken")
        if mounts is not False:
            self._mount_token(spec)
        if not spec.get("imagePullSecrets") and found.body.get("imagePullSecrets"):
            spec["imagePullSecrets"] = found.body["imagePullSecrets"]

    def _mount_token(self, spec: Body) -> None:
        path = "/var/run/secrets/kubernetes.io/serviceaccount"
        volume = f"kube-api-access-{self._suffix()}"
        added = False
        for kind in ("containers", "initContainers"):
            made = []
            for container in spec.get(kind) or ():
                mounts = container.get("volumeMounts") or []
                if not any(each.get("mountPath") == path for each in mounts):
                    added = True
                    container = {**container, "volumeMounts": [*mounts, {"name": volume, "readOnly": True, "mountPath": path}]}
                made.append(container)
            if made:
                spec[kind] = made
        if added:
            token = {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}}
            ca = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
            reference = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
            namespace = {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": reference}]}}
            projected = {"sources": [token, ca, namespace], "defaultMode": 420}
            spec["volumes"] = [*(spec.get("volumes") or ()), {"name": volume, "projected": projected}]

    def update(self, kind: Kind, obj: Body, subresource: str) -> None:
        """Completes a changed object; its spec is replaced, not changed."""
        if kind.kind == "Pod" and not subresource:
            spec = dict(obj["spec"])
            if _tolerate(spec):
                obj["spec"] = spec

    def delete(self, kind: Kind, name: str) -> None:
        """Refuses the deletion of namespaces that every cluster has. Raises Refusal."""
        if kind.kind == "Namespace" and name in _FOREVER:
            raise kind.target(name).forbidden("this namespace may not be deleted")


def _tolerate(spec: Body) -> bool:
    """Adds the tolerations of every pod; returns whether any was missing."""
    tolerations = list(spec.get("tolerations") or ())
    missing = [key for key in _TOLERATED if not any(_tolerates(each, key) for each in tolerations)]
    if missing:
        added = ({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300} for key in missing)
        spec["tolerations"] = [*tolerations, *added]
    return bool(missing)


def _tolerates(toleration: Body, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")
