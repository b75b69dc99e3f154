"""Applies the changes that a binding makes to its pods: image names, pull Secrets and a patch. Pure.

Invariant: owner, node, user identity and references of a physical pod are never changed here; a patch that would change them is a problem
of the binding, and until it is fixed no pod is created. Only pods created after a change of the binding follow it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import field, frozen

from kubeocean.model import keys
from vkubelet.api.fields import Fields, Problem
from vkubelet.api.names import is_dns_subdomain
from vkubelet.api.objects import Json, JsonView, ObjectMeta, apply_merge

_DOCKER: Final = "docker.io/"
_IMAGE_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", re.ASCII)
_PATCHABLE: Final = frozenset({"labels", "annotations"})

KEPT: Final[Mapping[str, str]] = {
    "nodeName": "the hub's scheduler chose the node; remove the field",
    "nodeSelector": "the hub's scheduler chose the node; remove the field",
    "affinity": "the hub's scheduler chose the node; remove the field",
    "topologySpreadConstraints": "the hub's scheduler chose the node; remove the field",
    "schedulingGates": "no controller of the worker would remove them; remove the field",
    "serviceAccountName": "pods have no identity in the worker; remove the field",
    "serviceAccount": "pods have no identity in the worker; remove the field",
    "automountServiceAccountToken": "pods have no identity in the worker; remove the field",
    "priority": "use spec.podPriorityClassName",
    "priorityClassName": "use spec.podPriorityClassName",
    "imagePullSecrets": "use spec.extraImagePullSecrets",
    "hostname": "it is the name of the virtual pod; remove the field",
    "hostAliases": "it contains the address of the API server; use spec.apiServerAccess",
    "enableServiceLinks": "Services of the mount namespace are not those of the pod's namespace; remove the field",
    "restartPolicy": "it is the user's, and controllers rely on it; remove the field",
    "activeDeadlineSeconds": "it is the user's, and follows later changes; remove the field",
    "containers": "a merge patch replaces the list; use spec.imageRewrites for images",
    "initContainers": "a merge patch replaces the list; use spec.imageRewrites for images",
    "ephemeralContainers": "they are added by a separate request; remove the field",
    "volumes": "a merge patch replaces the list, and volumes refer to copies; remove the field",
    "resourceClaims": "they refer to objects of the worker; remove the field",
}
"""Fields of a pod's spec that a patch may not name, and why."""


@frozen
class ImageRewrite:
    """A rule that replaces the prefix `match` of an image name with `replace`."""

    match: str
    replace: str = ""

    def apply(self, image: str) -> str | None:
        """Returns the new name, or None; a name without a registry also matches by its full one, `docker.io/library/busybox`."""
        for name in (image, _full_name(image)):
            if name.startswith(self.match):
                return self.replace + name[len(self.match) :]
        return None


@frozen(kw_only=True)
class Overrides:
    """`rewrites`: the first match counts; `pull_secrets` are names in the worker's mount namespace; `patch` is a JSON merge patch."""

    rewrites: Sequence[ImageRewrite] = ()
    pull_secrets: Sequence[str] = ()
    patch: JsonView = field(factory=dict)
    misread: Sequence[Problem] = ()

    @classmethod
    def parse(cls, value: JsonView) -> Self:
        """Parses the binding's spec as stored."""
        problems: list[Problem] = []
        spec = Fields(value, "spec", problems)
        rewrites = [ImageRewrite(each.text("match"), each.text("replace")) for each in spec.items("imageRewrites")]
        patch = spec.inner("podPatch").value
        secrets = spec.texts("extraImagePullSecrets")
        return cls(rewrites=tuple(rewrites), pull_secrets=secrets, patch=patch, misread=tuple(problems))

    def problems(self) -> list[Problem]:
        """Returns what prevents pods from being created with these overrides, with path and remedy."""
        found = list(self.misread)
        for at, rewrite in enumerate(self.rewrites):
            if not _IMAGE_PART.fullmatch(rewrite.match):
                found.append(Problem(f"spec.imageRewrites[{at}].match", "must be the beginning of an image name, such as docker.io/"))
            if rewrite.replace and not _IMAGE_PART.fullmatch(rewrite.replace):
                found.append(Problem(f"spec.imageRewrites[{at}].replace", "must be the beginning of an image name, or empty"))
        for at, name in enumerate(self.pull_secrets):
            if not is_dns_subdomain(name):
                found.append(Problem(f"spec.extraImagePullSecrets[{at}]", "is no valid name; name a Secret of the mount namespace"))
        return found + _patch_problems(self.patch)

    def image(self, image: str) -> str:
        """Returns the image that the worker is to pull for this image of the user."""
        return next((new for rewrite in self.rewrites if (new := rewrite.apply(image)) is not None), image)

    @property
    def patched_labels(self) -> frozenset[str]:
        """Labels that the patch sets or removes."""
        return frozenset(_inner(_inner(self.patch, "metadata"), "labels"))

    def finish(self, body: JsonView) -> Json:
        """Adds pull Secrets and patch to the physical pod; images are rewritten where containers are translated."""
        spec: Json = dict(body["spec"])
        if self.pull_secrets:
            there = [*(spec.get("imagePullSecrets") or ()), *({"name": name} for name in self.pull_secrets)]
            spec["imagePullSecrets"] = list({each["name"]: each for each in there}.values())
        patched = apply_merge({**body, "spec": spec}, self.patch)
        metadata = _inner(self.patch, "metadata")
        if named := {kind: sorted(metadata[kind]) for kind in sorted(_PATCHABLE) if metadata.get(kind)}:
            patched["metadata"]["annotations"] |= {keys.PATCHED_METADATA: _text(named)}
        return patched


def images_of(spec: JsonView, *lists: str) -> dict[str, str]:
    """Returns the image of each container of these lists, by its name; names are unique in a pod."""
    return {each["name"]: each["image"] for kind in lists for each in spec.get(kind) or () if each.get("image")}


def remembered(original: Mapping[str, str], sent: Mapping[str, str]) -> str:
    """Returns the annotation VIRTUAL_IMAGES for images of the user and those sent, both by container; "" when all are the user's."""
    changed = {name: image for name, image in original.items() if sent.get(name, image) != image}
    return _text(changed) if changed else ""


def virtual_images(physical: ObjectMeta) -> dict[str, str]:
    """Returns by container the user's image where the physical pod has another; empty if the annotation is missing or damaged."""
    found = _decoded(physical.annotations.get(keys.VIRTUAL_IMAGES, ""))
    return {name: image for name, image in found.items() if isinstance(image, str)}


def patched_keys(physical: ObjectMeta, kind: str) -> frozenset[str]:
    """Returns those of the pod's `labels` or `annotations` that the binding's patch set or removed."""
    found = _decoded(physical.annotations.get(keys.PATCHED_METADATA, "")).get(kind)
    return frozenset(key for key in found if isinstance(key, str)) if isinstance(found, list) else frozenset()


def _text(value: JsonView) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _decoded(text: str) -> Json:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        # The second for text that nests thousands of levels.
        return {}
    return value if isinstance(value, dict) else {}


def _full_name(image: str) -> str:
    """Expands the name as container runtimes do: the first part is a registry if it has a dot, a port, or is localhost."""
    first, slash, _ = image.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        return image
    return f"{_DOCKER}{image}" if slash else f"{_DOCKER}library/{image}"


def _patch_problems(patch: JsonView) -> list[Problem]:
    found = [
        Problem(f"spec.podPatch.{name}", "cannot be patched; patch metadata and spec only")
        for name in patch
        if name not in ("metadata", "spec")
    ]
    for name in ("metadata", "spec"):
        if name in patch and not isinstance(patch[name], dict):
            found.append(Problem(f"spec.podPatch.{name}", "must be an object"))
    metadata, spec = _inner(patch, "metadata"), _inner(patch, "spec")
    found += _metadata_problems(metadata)
    return found + [Problem(f"spec.podPatch.spec.{name}", f"cannot be patched: {KEPT[name]}") for name in spec if name in KEPT]


def _inner(patch: JsonView, name: str) -> JsonView:
    inner = patch.get(name)
    return inner if isinstance(inner, dict) else {}


def _metadata_problems(metadata: JsonView) -> Iterable[Problem]:
    path = "spec.podPatch.metadata"
    for kind, entries in metadata.items():
        if kind not in _PATCHABLE:
            yield Problem(f"{path}.{kind}", "cannot be patched: it identifies the pod; patch labels and annotations only")
        elif not isinstance(entries, dict):
            yield Problem(f"{path}.{kind}", "must be an object")
        else:
            yield from _entry_problems(entries, f"{path}.{kind}")


def _entry_problems(entries: JsonView, path: str) -> Iterable[Problem]:
    for key, value in entries.items():
        domain = f"{key.partition('/')[0]}/"
        if domain == keys.DOMAIN or domain.endswith(f".{keys.DOMAIN}"):
            yield Problem(f"{path}[{key}]", f"cannot be patched: keys of {keys.DOMAIN} are reserved for Kubeocean; remove it")
        elif value is not None and not isinstance(value, str):
            yield Problem(f"{path}[{key}]", "must be a string, or null to remove the key")
