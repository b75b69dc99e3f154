"""Kinds that are mirrored to the worker in addition: entries of the setting `provider.extra_kinds`, and their validation. Pure.

Invariant: an entry without a problem names one resource of one API group, and its rewriting changes nothing but what its paths name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from attrs import frozen

from vkubelet.api.objects import Resource, Unknown

ITEM: Final = "item"
"""First part of a path into an item of the list `each`."""
ANY: Final = "*"
REFERENCE: Final = re.compile(r"\$\{([^}:]*)(?::-([^}]*))?\}")
"""`${PATH}`, or `${PATH:-TEXT}` with the text for an object without such a value."""
_PATH: Final = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_API_VERSION: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*")
_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_CLUSTER: Final = "=Cluster"
_RUNS_PODS: Final = "its controllers would run pods in the worker that no node of the hub leases"
_GRANTS: Final = "such objects change what others may do in the worker"
_REFUSED: Final = {
    "": "Kubeocean mirrors or copies objects of the core group itself",
    "discovery.k8s.io": "Kubeocean mirrors EndpointSlices itself",
    "cloud.tencent.com": "it is a kind of Kubeocean itself",
    "apps": _RUNS_PODS,
    "batch": _RUNS_PODS,
    **dict.fromkeys(
        (
            "admissionregistration.k8s.io",
            "apiextensions.k8s.io",
            "apiregistration.k8s.io",
            "authentication.k8s.io",
            "authorization.k8s.io",
            "certificates.k8s.io",
            "flowcontrol.apiserver.k8s.io",
            "rbac.authorization.k8s.io",
        ),
        _GRANTS,
    ),
}
"""Why no kind of these groups is mirrored."""

Found = tuple[str, str]
"""Path of a setting below `provider.extra_kinds`, and the problem with its remedy."""


@frozen(kw_only=True)
class Rewrite:
    """One case of the rewriting of a kind: the first one that an object meets is applied to it."""

    when: Mapping[str, str] = {}
    """Values that the object has, by path; `*` is any that is not empty. Paths below `item.` select items of `each`."""
    each: str = ""
    """Path of a list that is not empty: the object gets one mirror for each selected item."""
    refuse: str = ""
    """Why such an object gets no mirror; the condition ExtraKindsMirrored contains it."""
    remove: Sequence[str] = ()
    """Paths that the mirror does not have; removed before the others are set."""
    values: Mapping[str, str] = {}
    """Texts by path; `${PATH}` is a value of the object, `${PATH:-TEXT}` the text where it has none. Without a value nothing is set."""
    namespaces: Mapping[str, str] = {}
    """As `values`, but each text is a namespace of the hub, and becomes that of the worker; an empty one becomes the mount namespace."""
    labels: Mapping[str, Mapping[str, str]] = {}
    """Labels that are added to the map at each path; values as in `values`, encoded as on pods."""

    def problems(self) -> Iterator[Found]:
        """Yields what is wrong with it."""
        if not (self.when or self.each or self._changes):
            yield "", "changes nothing; give it `remove`, `values`, `namespaces` or `labels`, or remove it"
        if self.refuse and self._changes:
            yield "refuse", "refuses the objects that the same case changes; remove one of both"
        if self.each and not _is_path(self.each):
            yield "each", _not_a_path(self.each)
        for path in self.when:
            yield from self._source("when", path)
        for path in self.remove:
            yield from _target("remove", path)
        for name, texts in (("values", self.values), ("namespaces", self.namespaces)):
            for path, text in texts.items():
                yield from _target(name, path)
                yield from self._template(f"{name}.{path}", text)
        for path, labels in self.labels.items():
            yield from _target("labels", path)
            for key, text in labels.items():
                yield from self._template(f"labels.{path}.{key}", text)

    @property
    def _changes(self) -> bool:
        return bool(self.remove or self.values or self.namespaces or self.labels)

    def _template(self, where: str, text: str) -> Iterator[Found]:
        for found in REFERENCE.finditer(text):
            yield from self._source(where, found[1])
        if "${" in REFERENCE.sub("", text):
            yield where, f"{text} has an incomplete reference; write ${{PATH}} or ${{PATH:-TEXT}}"

    def _source(self, where: str, path: str) -> Iterator[Found]:
        if not _is_path(path):
            yield where, _not_a_path(path)
        elif path.partition(".")[0] == ITEM and not self.each:
            yield where, f"{path} is a value of an item; name the list with `each`"


@frozen(kw_only=True)
class ExtraKind:
    """A kind whose objects have mirrors in the worker."""

    api_version: str = ""
    """Group and version, as in manifests: `cls.cloud.tencent.com/v1`; both clusters have to serve it."""
    resource: str = ""
    """Plural name of the kind, as in the rules of roles: `logconfigs`."""
    namespaced: bool = True
    """False for a kind whose objects have no namespace. Of a namespaced kind, the namespaces whose Services are mirrored count."""
    rewrites: Sequence[Rewrite] = ()
    """Cases of the rewriting; an object that meets none is mirrored with its content unchanged."""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def title(self) -> str:
        """Name for users: `logconfigs.cls.cloud.tencent.com`."""
        return f"{self.resource}.{self.group}"

    @property
    def path(self) -> str:
        """Path of the API server at which it lists the resources of the group and version."""
        return f"/apis/{self.api_version}"

    def of_kind(self, kind: str) -> Resource[Unknown]:
        """Returns the resource, whose objects have this kind."""
        return Resource(self.group, self.version, self.resource, kind, self.namespaced, Unknown)

    @property
    def note(self) -> str:
        """Text by which the kind is recorded on the binding."""
        return f"{self.resource}.{self.version}.{self.group}{'' if self.namespaced else _CLUSTER}"

    @classmethod
    def noted(cls, text: str) -> Self:
        """Returns the kind, without its rewriting, that was recorded."""
        resource, _, rest = text.removesuffix(_CLUSTER).partition(".")
        version, _, group = rest.partition(".")
        return cls(api_version=f"{group}/{version}", resource=resource, namespaced=not text.endswith(_CLUSTER))

    def problems(self) -> Iterator[Found]:
        """Yields what is wrong with it."""
        if not _API_VERSION.fullmatch(self.api_version):
            yield "api_version", "must be a group and a version such as cls.cloud.tencent.com/v1, as in the manifests of the kind"
        if not _RESOURCE.fullmatch(self.resource):
            yield "resource", "must be the plural name of the kind in lower case, as in the first column of `kubectl api-resources`"
        if why := self._refused:
            yield "api_version", f"{self.resource} of {self.group or 'the core group'} cannot be mirrored: {why}; remove the entry"
        for at, rewrite in enumerate(self.rewrites):
            yield from ((f"rewrites[{at}].{path}".rstrip("."), text) for path, text in rewrite.problems())

    @property
    def _refused(self) -> str:
        if (self.group, self.resource) == ("networking.k8s.io", "networkpolicies"):
            return "the labels and namespaces that it selects are not those of the worker, so it could isolate pods of others"
        return _REFUSED.get(self.group, "")


def problems_of(kinds: Iterable[ExtraKind]) -> Iterator[Found]:
    """Yields what is wrong with the setting."""
    known: dict[str, int] = {}
    for at, kind in enumerate(kinds):
        yield from ((f"[{at}].{path}", text) for path, text in kind.problems())
        first = known.setdefault(kind.title, at)
        if first != at:
            yield f"[{at}].resource", f"{kind.title} is the kind of [{first}] too; add its rewrites there"


def _is_path(text: str) -> bool:
    return _PATH.fullmatch(text) is not None


def _not_a_path(text: str) -> str:
    return f"{text or 'an empty text'} is not a path; write names of fields with dots between them, such as spec.selector"


def _target(where: str, path: str) -> Iterator[Found]:
    top, _, rest = path.partition(".")
    if not _is_path(path):
        yield where, _not_a_path(path)
    elif top in ("apiVersion", "kind", "status") or (top == "metadata" and rest.partition(".")[0] not in ("labels", "annotations")):
        yield where, f"{path} cannot be changed; name a field of the content, metadata.labels or metadata.annotations"
