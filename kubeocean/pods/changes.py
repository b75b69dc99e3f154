"""Decides what a virtual pod needs in the worker, and computes the patches that bring its physical pod up to date. Pure.

Invariant: a key of a map is written or removed only if it is ours by `expected-metadata`; what other clients added to the physical pod
stays, and when nothing differs, nothing is written. The lease is the limit of a resize: a pod does not grow beyond what its virtual node
offers beside its other pods, however much room the physical node has. A pending resize is recorded on the physical pod until it was sent,
so that it survives restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import evolve, field, frozen

from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import Target, daemonset_allowed, digest_of_changes, leaves_home, marks, propagated, where, workload_of
from kubeocean.model.overrides import images_of, patched_keys, remembered, virtual_images
from kubeocean.model.ownership import Ownership, classify
from kubeocean.model.references import untranslatable
from kubeocean.pods.translate import physical_containers
from vkubelet.api.objects import Json, JsonView, ObjectMeta, Pod
from vkubelet.api.podspec import CONTAINERS, PLANNED_CONTAINERS, containers
from vkubelet.api.quantity import ZERO, Quantity, Resources, add_resources
from vkubelet.api.scheduling import effective_requests

PENDING_CONDITION: Final = "PodResizePending"
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"

_RESIZABLE: Final = ("cpu", "memory")

# --- Decisions ----------------------------------------------------------------------------------------------------------------------------


@frozen
class Excluded:
    """The pod is not started in the worker: it is of a system namespace, or of a DaemonSet that the binding does not allow."""


@frozen
class Unconfirmed:
    """A physical pod is recorded that is not in the cache: it has to be read before it counts as deleted."""


@frozen
class Missing:
    """No physical pod exists, and none is recorded."""


@frozen
class Current:
    """The physical pod has everything that the virtual pod has, or one of them is terminating or terminal, or it has another owner."""


@frozen(kw_only=True)
class Changed:
    """Strategic merge patches of the pod `physical` that contain its uid, each None when there is nothing to send.

    To be sent in this order: those of `ephemeral`, one for each container by its name, to pods/ephemeralcontainers, `resize` to
    pods/resize, then `main` to the pod; only `main` records that the physical pod now reflects the virtual pod's generation.
    `untranslatable` are ephemeral containers, by name, that cannot be created in the worker, with the reason.
    """

    physical: Pod
    main: Json | None = None
    ephemeral: Mapping[str, Json] = field(factory=dict)
    resize: Json | None = None
    untranslatable: Mapping[str, str] = field(factory=dict)

    def __bool__(self) -> bool:
        return any((self.main, self.ephemeral, self.resize))

    def without_generation(self) -> Changed:
        """Returns the changes without the record that the generation was sent completely."""
        if self.main is None:
            return self
        metadata = _without(_without(self.main["metadata"], keys.VIRTUAL_GENERATION), keys.VIRTUAL_SPEC)
        return evolve(self, main=_unless_empty({**self.main, "metadata": metadata}))

    def without_resize(self, pending: Pending) -> Changed:
        """Returns the changes without the resize; `main` records why it is pending, unless that is recorded already."""
        before = self.main or {"metadata": {"uid": self.physical.metadata.uid}}
        metadata = _noted(_without(before["metadata"], keys.RESIZE_PENDING), self.physical, pending)
        return evolve(self, main=_unless_empty({**before, "metadata": metadata}), resize=None)


Decision = Excluded | Unconfirmed | Missing | Current | Changed


def decide(pod: Pod, physical: Pod | None, *, binding: ClusterBinding, owner: keys.Owner, target: Callable[[Pod], Target]) -> Decision:
    """Decides what the pod needs; `physical` is its physical pod as observed.

    `target` is called with the physical pod when the specs have to be compared.
    """
    if not leaves_home(pod.metadata) or not daemonset_allowed(pod.metadata, binding):
        return Excluded()
    if physical is None:
        return Unconfirmed() if where(pod).name else Missing()
    if pod.terminal or physical.terminating or physical.terminal or is_current(pod, physical, owner):
        return Current()
    if classify(physical.metadata, owner) is Ownership.ANOTHERS:
        return Current()
    found = changes(pod, physical, target(physical))
    return found if found or found.untranslatable else Current()


def is_current(pod: Pod, physical: Pod, owner: keys.Owner) -> bool:
    """Checks by what is recorded on the physical pod that nothing has changed since everything was sent.

    It avoids the comparison of `changes` for nearly all pods; False does not mean that there is a difference.
    """
    meta, spec = physical.metadata, pod.spec
    if not _has_generation(pod, physical) or keys.WORKLOAD_TYPE not in meta.labels or spec.get("ephemeralContainers"):
        return False
    if keys.RESIZE_PENDING in meta.annotations or keys.VIRTUAL_IMAGES in meta.annotations:
        return False
    made_by, expected = workload_of(physical, pod), propagated(pod)
    ours = marks(pod, Target(owner=owner, node=physical.node, namespace=meta.namespace, workload=made_by))
    annotations = {**ours.annotations, keys.EXPECTED_METADATA: expected.encode()}
    if keys.VIRTUAL_SPEC not in meta.annotations:
        # An upgrade changes no pod.
        annotations.pop(keys.VIRTUAL_SPEC, None)
    if _missing(meta.labels, ours.labels) or _missing(meta.annotations, annotations):
        return False
    images = {container["name"]: container.get("image") for container in containers(physical.spec)}
    return all(images.get(each["name"]) == each.get("image") for each in containers(spec))


# --- Patches ------------------------------------------------------------------------------------------------------------------------------


def changes(pod: Pod, physical: Pod, target: Target) -> Changed:
    """Computes the patches. Ephemeral containers that cannot be translated are omitted."""
    desired, observed = pod.spec, physical.spec
    refused = untranslatable(desired)
    # What the worker's admission changed must not be sent again and again: the spec is compared once per generation.
    is_new = not _is_reflected(pod, physical)
    resize = _patch(physical, spec=resize_of(desired, observed) if is_new or Pending.of(physical.metadata) else {})
    metadata = _noted(_metadata(pod, physical, target), physical, None)
    if not is_new:
        # What differs although everything was sent was rewritten by the worker's admission; it is no user change in the next generation.
        rewritten = remembered(images_of(desired, *CONTAINERS), images_of(observed, *CONTAINERS))
        metadata = _with_images(metadata, physical, note=rewritten)
        return Changed(physical=physical, main=_patch(physical, metadata=metadata), resize=resize, untranslatable=refused)
    images = _images_to_have(desired, physical, target)
    metadata = _with_images(metadata, physical, note=remembered(images_of(desired, *CONTAINERS), images))
    main = _patch(physical, metadata=metadata, spec=_main_spec(desired, observed, images))
    ephemeral = _ephemeral(pod, desired, physical, target=target, left_out=refused)
    return Changed(physical=physical, main=main, ephemeral=ephemeral, resize=resize, untranslatable=refused)


def _without(metadata: JsonView, annotation: str) -> Json:
    rest = {name: value for name, value in metadata.items() if name != "annotations"}
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != annotation}
    return {**rest, "annotations": annotations} if annotations else rest


def _unless_empty(patch: Json) -> Json | None:
    """Returns the patch, or None when it contains nothing but the uid of its object."""
    return patch if len(patch["metadata"]) > 1 or len(patch) > 1 else None


def _patch(physical: Pod, *, metadata: JsonView | None = None, spec: JsonView | None = None) -> Json | None:
    if not metadata and not spec:
        return None
    patch: Json = {"metadata": {"uid": physical.metadata.uid, **(metadata or {})}}
    if spec:
        patch["spec"] = spec
    return patch


def _has_generation(pod: Pod, physical: Pod) -> bool:
    sent = physical.metadata.annotations.get(keys.VIRTUAL_GENERATION)
    return bool(pod.metadata.generation) and sent == str(pod.metadata.generation)


def _is_reflected(pod: Pod, physical: Pod) -> bool:
    digest = digest_of_changes(pod)
    is_same = not digest or physical.metadata.annotations.get(keys.VIRTUAL_SPEC, digest) == digest
    return is_same and _has_generation(pod, physical)


def _metadata(pod: Pod, physical: Pod, target: Target) -> Json:
    text = physical.metadata.annotations.get(keys.EXPECTED_METADATA, "")
    before = keys.ExpectedMetadata.decode(text) or keys.ExpectedMetadata()
    desired, ours = propagated(pod), marks(pod, target)
    labels = _entries(physical.metadata.labels, desired.labels, before=before.labels)
    annotations = _entries(physical.metadata.annotations, desired.annotations, before=before.annotations)
    for kind, entries in (("labels", labels), ("annotations", annotations)):
        for key in patched_keys(physical.metadata, kind):
            entries.pop(key, None)
    labels |= _missing(physical.metadata.labels, ours.labels)
    annotations |= _missing(physical.metadata.annotations, ours.annotations)
    if _is_reflected(pod, physical):
        annotations.pop(keys.VIRTUAL_SPEC, None)
    if before not in (desired, desired.shortened) or not text:
        annotations[keys.EXPECTED_METADATA] = desired.encode()
    return {name: entries for name, entries in (("labels", labels), ("annotations", annotations)) if entries}


def _entries(live: Mapping[str, str], desired: Mapping[str, str], *, before: Mapping[str, str]) -> Json:
    """Returns the entries that the user changed since, and null for those that the user removed."""
    changed: Json = {
        key: value for key, value in desired.items() if live.get(key) != value and before.get(key) not in (value, keys.shortened(value))
    }
    changed.update({key: None for key in before if key not in desired and key in live})
    return changed


def _missing(live: Mapping[str, str], ours: Mapping[str, str]) -> Json:
    return {key: value for key, value in ours.items() if live.get(key) != value}


def _images_to_have(desired: JsonView, physical: Pod, target: Target) -> dict[str, str]:
    """Returns the desired image of each container: the physical pod's, unless the user set another image since.

    So a changed rewrite rule of the binding restarts nothing.
    """
    observed = images_of(physical.spec, *CONTAINERS)
    before = {**observed, **virtual_images(physical.metadata)}
    images = images_of(desired, *CONTAINERS)
    return {name: observed[name] if before.get(name) == image else target.overrides.image(image) for name, image in images.items()}


def _with_images(metadata: Json, physical: Pod, *, note: str) -> Json:
    if note == physical.metadata.annotations.get(keys.VIRTUAL_IMAGES, ""):
        return metadata
    return {**metadata, "annotations": {**metadata.get("annotations", {}), keys.VIRTUAL_IMAGES: note or None}}


def _main_spec(desired: JsonView, observed: JsonView, images: Mapping[str, str]) -> Json:
    spec: Json = {}
    for kind in PLANNED_CONTAINERS:
        changed = _images(observed.get(kind) or (), images)
        if changed:
            spec[kind] = changed
    deadline = desired.get("activeDeadlineSeconds")
    if deadline is not None and deadline != observed.get("activeDeadlineSeconds"):
        spec["activeDeadlineSeconds"] = deadline
    tolerations = _tolerations(desired.get("tolerations") or (), observed.get("tolerations") or ())
    if tolerations is not None:
        spec["tolerations"] = tolerations
    return spec


def _images(observed: Iterable[JsonView], images: Mapping[str, str]) -> list[Json]:
    desired = [(each["name"], images.get(each["name"]), each.get("image")) for each in observed]
    return [{"name": name, "image": image} for name, image, now in desired if image and image != now]


def _tolerations(desired: Sequence[JsonView], observed: Sequence[JsonView]) -> list[Json] | None:
    """Returns the physical pod's tolerations with the user's added or corrected, None when it has all of them.

    None is removed, because the API server rejects that.
    """
    merged = {_same_toleration(each): dict(each) for each in (*observed, *desired)}
    now = {_same_toleration(each): dict(each) for each in observed}
    return None if merged == now else list(merged.values())


def _same_toleration(toleration: JsonView) -> tuple[str, ...]:
    operator = toleration.get("operator") or "Equal"
    return (toleration.get("key") or "", operator, toleration.get("value") or "", toleration.get("effect") or "")


def _ephemeral(pod: Pod, desired: JsonView, physical: Pod, *, target: Target, left_out: Mapping[str, str]) -> dict[str, Json]:
    """Returns the patch that adds each container that the physical pod does not have yet, by its name."""
    skipped = {container["name"] for container in physical.spec.get("ephemeralContainers") or ()} | left_out.keys()
    added = [container for container in desired.get("ephemeralContainers") or () if container["name"] not in skipped]
    patches: dict[str, Json] = {}
    for container in physical_containers(added, pod, target):
        patches[container["name"]] = {"metadata": {"uid": physical.metadata.uid}, "spec": {"ephemeralContainers": [container]}}
    return patches


# --- Resizes ------------------------------------------------------------------------------------------------------------------------------


@frozen
class Room:
    """Allocatable amounts of a virtual node, and the requests of its other pods."""

    allocatable: Resources
    others: Resources


@frozen
class Pending:
    """Reason and message of a resize that was not sent; the reasons are those of KEP-1287."""

    reason: str
    message: str

    @classmethod
    def of(cls, meta: ObjectMeta) -> Self | None:
        """Reads the record on a physical pod, None when there is none."""
        reason, _, message = meta.annotations.get(keys.RESIZE_PENDING, "").partition(": ")
        return cls(reason, message) if message else None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def condition(self) -> Json:
        return {"type": PENDING_CONDITION, "status": "True", "reason": self.reason, "message": self.message}


def resize_of(desired: JsonView, observed: JsonView) -> Json:
    """Returns the spec to send to pods/resize, empty when the physical pod has all amounts."""
    spec: Json = {}
    for kind in PLANNED_CONTAINERS:
        live = {container["name"]: container for container in observed.get(kind) or ()}
        changed = [{"name": each["name"], "resources": change} for each in desired.get(kind) or () if (change := _resized(each, live))]
        if changed:
            spec[kind] = changed
    return spec


def unmet_resize(desired: JsonView, observed: JsonView, room: Room) -> Pending | None:
    """Returns why a pod must not grow to the desired amounts.

    The worker's kubelet would decide by the physical node, of which only a part is leased.
    """
    now = effective_requests(observed)
    growing = {name: amount for name, amount in effective_requests(desired).items() if amount > now.get(name, ZERO)}
    never = sorted(name for name, amount in growing.items() if amount > room.allocatable.get(name, ZERO))
    if never:
        return Pending(
            INFEASIBLE, f"the virtual node leases less {' and '.join(never)} than the pod requests; request less, or lease more by a policy"
        )
    together = add_resources(room.others, growing)
    not_now = sorted(name for name in growing if together[name] > room.allocatable.get(name, ZERO))
    if not_now:
        return Pending(
            DEFERRED, f"other pods of the virtual node leave too little {' and '.join(not_now)}; the resize is sent once they release it"
        )
    return None


def _noted(metadata: JsonView, physical: Pod, pending: Pending | None) -> Json:
    """Returns the metadata of a patch, with the record of a pending resize added or removed if it differs from the physical pod's."""
    text = str(pending) if pending is not None else ""
    if text == physical.metadata.annotations.get(keys.RESIZE_PENDING, ""):
        return dict(metadata)
    return {**metadata, "annotations": {**metadata.get("annotations", {}), keys.RESIZE_PENDING: text or None}}


def _resized(container: JsonView, live: Mapping[str, JsonView]) -> Json:
    if container["name"] not in live:
        return {}
    observed: JsonView = live[container["name"]].get("resources") or {}
    change: Json = {}
    for kind in ("requests", "limits"):
        amounts: JsonView = (container.get("resources") or {}).get(kind) or {}
        have: JsonView = observed.get(kind) or {}
        differing = {name: amounts[name] for name in _RESIZABLE if name in amounts and not _equal(amounts[name], have.get(name))}
        if differing:
            change[kind] = differing
    return change


def _equal(one: str | int | float, other: str | int | float | None) -> bool:
    return other is not None and Quantity.parse(one) == Quantity.parse(other)
