"""Resource types and their endpoints at an API server.

Invariant: a Resource is a constant; two equal ones mean the same endpoint and decode to the same head.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from urllib.parse import quote

from attrs import frozen

from vkubelet.api.objects import KubeObject, Lease, Node, Pod, Unknown

T = TypeVar("T", bound=KubeObject)


@frozen
class Resource(Generic[T]):
    """One type of object; the group of the core API is empty, `plural` is its name in paths, `head` the class its objects decode to."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    head: type[T]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Returns the path of the collection (of all namespaces when `namespace` is empty), of an object, or of its subresource.

        Raises ValueError for a namespaced object without namespace, or a subresource without name.
        """
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name}: the namespace is missing")
        if subresource and not name:
            raise ValueError(f"{self.plural}/{subresource}: the name is missing")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=":"))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod", True, Pod)
NODES = Resource("", "v1", "nodes", "Node", False, Node)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", True, Unknown)
SECRETS = Resource("", "v1", "secrets", "Secret", True, Unknown)
SERVICES = Resource("", "v1", "services", "Service", True, Unknown)
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, Unknown)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Unknown)
EVENTS = Resource("", "v1", "events", "Event", True, Unknown)
PVCS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Unknown)
PVS = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Unknown)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, Unknown)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Unknown)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True, Unknown)
ROLEBINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, Unknown)
CLUSTERROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, Unknown)
CLUSTERROLEBINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, Unknown)
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Unknown)
CSRS = Resource("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", False, Unknown)
CSINODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False, Unknown)
PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, Unknown)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Unknown)
ADMISSIONPOLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, Unknown
)
ADMISSIONPOLICYBINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False, Unknown
)
TOKENREVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, Unknown)
SUBJECTACCESSREVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, Unknown)
SELFSUBJECTACCESSREVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, Unknown)
