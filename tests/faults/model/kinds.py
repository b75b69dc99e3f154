"""Resource types of the model, and the paths of requests.

Invariant: only what the product uses is served; every other path is answered as by an API server that does not have the resource.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from attrs import field, frozen

from tests.faults.model.defaults import install
from tests.faults.model.refusals import Refusal, Target
from tests.faults.model.shapes import Shape, struct

Body = dict[str, Any]
_SLASHES: Final = 3
"""In the path of a group and version."""


@frozen(eq=False)
class Kind:
    """One resource type; `graceful` for those whose deletion waits for a kubelet."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    shape: Shape
    subresources: frozenset[str] = frozenset()
    generation: bool = False
    """Whether metadata.generation counts changes of the spec."""
    custom: bool = False
    unconditional: bool = True
    """Whether PUT may omit the resourceVersion."""
    creates_on_update: bool = False
    """Whether PUT creates an object that does not exist."""
    returns_deleted: bool = False
    """Whether the response to a deletion is the object."""
    stored: bool = True
    """False for reviews and the like, which are answered and not kept."""
    head: bytes = field(init=False)
    """Start of the JSON text of an object."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "head", b"" if self.custom else f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode())

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def target(self, name: str) -> Target:
        return Target(self.plural, self.group, self.kind, name)


@frozen
class Route:
    """What the path of a request names; `name` is empty for a collection."""

    kind: Kind
    namespace: str
    name: str
    subresource: str


_STATUS: Final = frozenset({"status"})
_SCALED: Final = frozenset({"status", "scale"})
_RBAC: Final = "rbac.authorization.k8s.io"


def _kind(shape: str, plural: str, *, group: str = "", version: str = "v1", namespaced: bool = True, **more: Any) -> Kind:
    return Kind(group, version, plural, shape.partition(".")[2], namespaced, struct(shape), **more)


def built_in() -> list[Kind]:
    """Returns the types that every cluster has."""
    install()
    pods = frozenset({"status", "binding", "eviction", "ephemeralcontainers", "resize"})
    authorization = {"group": "authorization.k8s.io", "namespaced": False, "stored": False}
    return [
        _kind("core.Pod", "pods", subresources=pods, generation=True, returns_deleted=True),
        _kind("core.Node", "nodes", namespaced=False, subresources=_STATUS),
        _kind("core.ConfigMap", "configmaps"),
        _kind("core.Secret", "secrets"),
        _kind("core.Service", "services", subresources=_STATUS, returns_deleted=True, creates_on_update=True),
        _kind("core.ServiceAccount", "serviceaccounts", subresources=frozenset({"token"}), returns_deleted=True),
        _kind("core.Namespace", "namespaces", namespaced=False, subresources=frozenset({"status", "finalize"}), returns_deleted=True),
        _kind("core.Event", "events", creates_on_update=True),
        _kind("core.PersistentVolumeClaim", "persistentvolumeclaims", subresources=_STATUS, returns_deleted=True),
        _kind("core.PersistentVolume", "persistentvolumes", namespaced=False, subresources=_STATUS, returns_deleted=True),
        _kind("coordination.Lease", "leases", group="coordination.k8s.io", unconditional=False, creates_on_update=True),
        _kind("apps.ReplicaSet", "replicasets", group="apps", subresources=_SCALED, generation=True),
        _kind("apps.Deployment", "deployments", group="apps", subresources=_SCALED, generation=True),
        _kind("apps.StatefulSet", "statefulsets", group="apps", subresources=_SCALED, generation=True),
        _kind("apps.DaemonSet", "daemonsets", group="apps", subresources=_STATUS, generation=True),
        _kind("storage.CSINode", "csinodes", group="storage.k8s.io", namespaced=False, unconditional=False, returns_deleted=True),
        _kind("discovery.EndpointSlice", "endpointslices", group="discovery.k8s.io", generation=True),
        _kind("networking.NetworkPolicy", "networkpolicies", group="networking.k8s.io", generation=True),
        _kind("policy.PodDisruptionBudget", "poddisruptionbudgets", group="policy", subresources=_STATUS, generation=True),
        _kind("scheduling.PriorityClass", "priorityclasses", group="scheduling.k8s.io", namespaced=False, generation=True),
        _kind("rbac.Role", "roles", group=_RBAC),
        _kind("rbac.RoleBinding", "rolebindings", group=_RBAC),
        _kind("rbac.ClusterRole", "clusterroles", group=_RBAC, namespaced=False),
        _kind("rbac.ClusterRoleBinding", "clusterrolebindings", group=_RBAC, namespaced=False),
        _kind(
            "certificates.CertificateSigningRequest",
            "certificatesigningrequests",
            group="certificates.k8s.io",
            namespaced=False,
            subresources=frozenset({"status", "approval"}),
        ),
        _kind("authentication.TokenReview", "tokenreviews", group="authentication.k8s.io", namespaced=False, stored=False),
        _kind("authorization.SubjectAccessReview", "subjectaccessreviews", **authorization),
        _kind("authorization.SelfSubjectAccessReview", "selfsubjectaccessreviews", **authorization),
    ]


def no_such_resource() -> Refusal:
    return Refusal(code=404, reason="NotFound", message="the server could not find the requested resource")


class Kinds:
    """Types by path; a custom resource is added by `add`."""

    def __init__(self) -> None:
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in built_in()}
        self._routes: dict[str, Route] = {}

    def add(self, kind: Kind) -> None:
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self._routes.clear()

    def remove(self, kind: Kind) -> None:
        self._kinds.pop((kind.group, kind.version, kind.plural), None)
        self._routes.clear()

    def get(self, group: str, version: str, plural: str) -> Kind:
        """Raises KeyError."""
        return self._kinds[group, version, plural]

    def discovered(self, path: str) -> Body | None:
        """Returns the resources of the group and version at this path; None where it has none."""
        if path.count("/") != _SLASHES or not path.startswith("/apis/"):
            return None
        found = [kind for kind in self._kinds.values() if kind.group and path == f"/apis/{kind.api_version}"]
        resources = [{"name": kind.plural, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind} for kind in found]
        return {"kind": "APIResourceList", "groupVersion": found[0].api_version, "resources": resources} if found else None

    def all(self) -> list[Kind]:
        return list(self._kinds.values())

    def route(self, path: str) -> Route:
        """Raises Refusal."""
        found = self._routes.get(path)
        if found is None:
            found = self._parse(path)
            if len(self._routes) < 10_000:
                self._routes[path] = found
        return found

    def _parse(self, path: str) -> Route:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        group, version = ("", parts[1]) if parts[0] == "api" and len(parts) > 1 else (parts[1], parts[2]) if len(parts) > 3 else ("", "")
        namespace = ""
        if rest and rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
            namespace, rest = rest[1], rest[2:]
        kind = self._kinds.get((group, version, rest[0] if rest else ""))
        if kind is None or len(rest) > 3 or (bool(namespace) and not kind.namespaced):
            raise no_such_resource()
        name, subresource = rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else ""
        if (subresource and subresource not in kind.subresources) or (name and kind.namespaced and not namespace):
            raise no_such_resource()
        return Route(kind, namespace, name, subresource)
