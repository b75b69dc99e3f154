"""Rules of roles as data: the RBAC objects that grant them, and the checks whether a user has them (pure).

Invariant: an object grants exactly the rules it is built from, and `checks_of` checks each right of them once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import field, frozen

from vkubelet.api.objects import Json

RBAC: Final = "rbac.authorization.k8s.io"
READ: Final = "get list watch"


def _words(value: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(value.split()) if isinstance(value, str) else tuple(value)


@frozen
class Rule:
    """One rule of a role; resources and verbs may be one string with spaces. An empty `namespace` makes it cluster-wide."""

    resources: Sequence[str] = field(converter=_words)
    verbs: Sequence[str] = field(converter=_words)
    why: str = field(kw_only=True)
    group: str = field(default="", kw_only=True)
    names: Sequence[str] = field(default=(), converter=_words, kw_only=True)
    namespace: str = field(default="", kw_only=True)
    essential: bool = field(default=True, kw_only=True)
    """Whether no pod runs without it; without another one a smaller feature is missing, which `why` names."""
    bound: str = field(default="", kw_only=True)
    """What limits a right to write: the name of an admission policy, or a sentence."""

    @property
    def writes(self) -> bool:
        """Whether it grants more than reading."""
        return not set(self.verbs) <= set(READ.split())

    @property
    def body(self) -> Json:
        """The rule as in a Role."""
        out: Json = {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}
        if self.names:
            out["resourceNames"] = list(self.names)
        return out


@frozen(kw_only=True)
class Check:
    """One right, as checked by a SelfSubjectAccessReview."""

    group: str
    resource: str
    subresource: str
    verb: str
    namespace: str
    name: str = ""
    why: str = ""
    essential: bool = True

    @property
    def attributes(self) -> dict[str, str]:
        """`spec.resourceAttributes` of the review."""
        found = {
            "group": self.group,
            "resource": self.resource,
            "subresource": self.subresource,
            "verb": self.verb,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {key: value for key, value in found.items() if value}

    def __str__(self) -> str:
        """Formats the right for users: `create pods/exec in namespace demo`."""
        what = self.resource + (f".{self.group}" if self.group else "") + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {what}" + (f" in namespace {self.namespace}" if self.namespace else "")


def checks_of(rules: Iterable[Rule]) -> tuple[Check, ...]:
    """Returns every right that rules grant, one by one."""
    return tuple(
        Check(
            group=rule.group,
            resource=resource.partition("/")[0],
            subresource=resource.partition("/")[2],
            verb=verb,
            namespace=rule.namespace,
            name=name,
            why=rule.why,
            essential=rule.essential,
        )
        for rule in rules
        for resource in rule.resources
        for name in (rule.names or ("",))
        for verb in rule.verbs
    )


def granted(rules: Sequence[Rule], name: str, *, cluster_name: str, subject: Json) -> list[Json]:
    """Builds the roles with these rules, one for the cluster and one for each namespace, each followed by its binding."""
    out: list[Json] = []
    for namespace in dict.fromkeys(rule.namespace for rule in rules):
        called = name if namespace else cluster_name
        bodies = [rule.body for rule in rules if rule.namespace == namespace]
        kind = "Role" if namespace else "ClusterRole"
        out.append({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": _metadata(called, namespace), "rules": bodies})
        out.append(role_binding(called, namespace, role=called, subject=subject))
    return out


def role_binding(name: str, namespace: str, *, role: str, subject: Json) -> Json:
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [dict(subject)],
    }


def _metadata(name: str, namespace: str) -> Json:
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def namespace_body(name: str, pod_security: str = "") -> Json:
    metadata: Json = {"name": name}
    if pod_security:
        metadata["labels"] = {"pod-security.kubernetes.io/enforce": pod_security}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def labelled(body: Json, labels: Json | None) -> Json:
    if not labels:
        return body
    metadata = {**body["metadata"], "labels": {**body["metadata"].get("labels", {}), **labels}}
    return {**body, "metadata": metadata}
