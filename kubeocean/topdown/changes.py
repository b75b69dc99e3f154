"""What has to be written to a physical pod after its virtual pod changed (pure).

Invariant: a key of a map is written or removed only if it is ours by `expected-metadata`; what others added on the physical pod stays.
Nothing differs, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from kubeocean import keys
from kubeocean.leasing.usage import effective_requests
from kubeocean.topdown import references as refs
from kubeocean.topdown.identity import Target, marks, propagated
from kubeocean.topdown.overrides import images_of, patched_keys, remembered, virtual_images
from kubeocean.topdown.translate import physical_containers
from vkubelet.api.objects import Pod
from vkubelet.api.quantity import ZERO, Quantity, Resources
from vkubelet.api.shapes import Json, JsonView

_RESIZABLE: Final = ("cpu", "memory")


@frozen
class Changes:
    """Strategic merge patches with the physical uid in them, each None when there is nothing to send.

    To be sent in this order: those of `ephemeral`, one for each container by its name, to pods/ephemeralcontainers, `resize` to
    pods/resize, then `main` to the pod; `main` alone says that the physical pod now reflects the virtual pod's generation.
    """

    main: Json | None = None
    ephemeral: Mapping[str, Json] = field(factory=dict)
    resize: Json | None = None

    def __bool__(self) -> bool:
        return any((self.main, self.ephemeral, self.resize))


def changes(pod: Pod, physical: Pod, target: Target, *, allocatable: Resources | None = None) -> Changes:
    """`allocatable` is the virtual node's: a resize that does not fit into it is not sent.

    Ephemeral containers that can not be translated are left out.
    """
    wanted, there = pod.spec, physical.spec
    metadata = _metadata(pod, physical, target)
    # What admission changed over there must not be sent again and again: the spec is compared once per generation.
    if not _is_reflected(pod, physical):
        images = _images_to_have(wanted, physical, target)
        metadata = _with_images(metadata, physical, note=remembered(images_of(wanted, *refs.CONTAINER_LISTS), images))
        resize = None if allocatable is not None and infeasible_resize(pod, physical, allocatable) else _resize(wanted, there)
        return Changes(
            _patch(physical, metadata=metadata, spec=_main_spec(wanted, there, images)),
            _ephemeral(pod, wanted, physical, target=target),
            _patch(physical, spec=resize),
        )
    return Changes(_patch(physical, metadata=metadata))


def without_generation(main: Json | None) -> Json | None:
    """The patch without the word that all of the generation arrived; None when nothing is left of it."""
    if main is None:
        return None
    metadata = {name: value for name, value in main["metadata"].items() if name != "annotations"}
    annotations = {key: value for key, value in main["metadata"].get("annotations", {}).items() if key != keys.VIRTUAL_GENERATION}
    if annotations:
        metadata["annotations"] = annotations
    rest = {**main, "metadata": metadata}
    return rest if len(metadata) > 1 or len(rest) > 1 else None


def infeasible_resize(pod: Pod, physical: Pod, allocatable: Resources) -> Json | None:
    """The condition of a pod that is to grow beyond its whole virtual node; None for every other pod.

    Source: KEP-1287. The worker's kubelet would judge by the physical node, of which a part only is leased.
    """
    wanted = pod.spec
    over = [name for name, amount in effective_requests(wanted).items() if amount > allocatable.get(name, ZERO)]
    if not over or not _resize(wanted, physical.spec):
        return None
    message = f"the virtual node does not lease so much: {', '.join(sorted(over))}"
    return {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": message}


def _patch(physical: Pod, *, metadata: JsonView | None = None, spec: JsonView | None = None) -> Json | None:
    if not metadata and not spec:
        return None
    patch: Json = {"metadata": {"uid": physical.metadata.uid, **(metadata or {})}}
    if spec:
        patch["spec"] = spec
    return patch


def _is_reflected(pod: Pod, physical: Pod) -> bool:
    sent = physical.metadata.annotations.get(keys.VIRTUAL_GENERATION)
    return bool(pod.metadata.generation) and sent == str(pod.metadata.generation)


def _metadata(pod: Pod, physical: Pod, target: Target) -> Json:
    text = physical.metadata.annotations.get(keys.EXPECTED_METADATA, "")
    before = keys.ExpectedMetadata.decode(text) or keys.ExpectedMetadata()
    wanted, ours = propagated(pod), marks(pod, target)
    labels = _entries(physical.metadata.labels, wanted.labels, before=before.labels)
    annotations = _entries(physical.metadata.annotations, wanted.annotations, before=before.annotations)
    for kind, entries in (("labels", labels), ("annotations", annotations)):
        for key in patched_keys(physical.metadata, kind):
            entries.pop(key, None)
    labels |= _missing(physical.metadata.labels, ours.labels)
    annotations |= _missing(physical.metadata.annotations, ours.annotations)
    if before != wanted or not text:
        annotations[keys.EXPECTED_METADATA] = wanted.encode()
    return {name: entries for name, entries in (("labels", labels), ("annotations", annotations)) if entries}


def _entries(live: Mapping[str, str], wanted: Mapping[str, str], *, before: Mapping[str, str]) -> Json:
    """What the user changed since, and null for what the user dropped."""
    changed: Json = {key: value for key, value in wanted.items() if value not in (before.get(key), live.get(key))}
    changed.update({key: None for key in before if key not in wanted and key in live})
    return changed


def _missing(live: Mapping[str, str], ours: Mapping[str, str]) -> Json:
    return {key: value for key, value in ours.items() if live.get(key) != value}


def _images_to_have(wanted: JsonView, physical: Pod, target: Target) -> dict[str, str]:
    """By container: what it has there, unless the user wrote another image since; so a changed rewrite restarts nothing."""
    there = images_of(physical.spec, *refs.CONTAINER_LISTS)
    before = {**there, **virtual_images(physical.metadata)}
    images = images_of(wanted, *refs.CONTAINER_LISTS)
    return {name: there[name] if before.get(name) == image else target.overrides.image(image) for name, image in images.items()}


def _with_images(metadata: Json, physical: Pod, *, note: str) -> Json:
    if note == physical.metadata.annotations.get(keys.VIRTUAL_IMAGES, ""):
        return metadata
    return {**metadata, "annotations": {**metadata.get("annotations", {}), keys.VIRTUAL_IMAGES: note or None}}


def _main_spec(wanted: JsonView, there: JsonView, images: Mapping[str, str]) -> Json:
    spec: Json = {}
    for kind in ("initContainers", "containers"):
        changed = _images(there.get(kind) or (), images)
        if changed:
            spec[kind] = changed
    deadline = wanted.get("activeDeadlineSeconds")
    if deadline is not None and deadline != there.get("activeDeadlineSeconds"):
        spec["activeDeadlineSeconds"] = deadline
    tolerations = _tolerations(wanted.get("tolerations") or (), there.get("tolerations") or ())
    if tolerations is not None:
        spec["tolerations"] = tolerations
    return spec


def _images(there: Iterable[JsonView], images: Mapping[str, str]) -> list[Json]:
    wanted = [(each["name"], images.get(each["name"]), each.get("image")) for each in there]
    return [{"name": name, "image": image} for name, image, now in wanted if image and image != now]


def _tolerations(wanted: Sequence[JsonView], there: Sequence[JsonView]) -> list[Json] | None:
    """The physical pod's, with the user's put in or corrected; the API server lets none go. None when all are there."""
    merged = {_same_toleration(each): dict(each) for each in (*there, *wanted)}
    now = {_same_toleration(each): dict(each) for each in there}
    return None if merged == now else list(merged.values())


def _same_toleration(toleration: JsonView) -> tuple[str, ...]:
    operator = toleration.get("operator") or "Equal"
    return (toleration.get("key") or "", operator, toleration.get("value") or "", toleration.get("effect") or "")


def _ephemeral(pod: Pod, wanted: JsonView, physical: Pod, *, target: Target) -> dict[str, Json]:
    """The patch that adds each container that is not there yet, by its name."""
    there = {container["name"] for container in physical.spec.get("ephemeralContainers") or ()}
    left_out = there | refs.untranslatable(wanted).keys()
    added = [container for container in wanted.get("ephemeralContainers") or () if container["name"] not in left_out]
    patches: dict[str, Json] = {}
    for container in physical_containers(added, pod, target):
        patches[container["name"]] = {"metadata": {"uid": physical.metadata.uid}, "spec": {"ephemeralContainers": [container]}}
    return patches


def _resize(wanted: JsonView, there: JsonView) -> Json:
    spec: Json = {}
    for kind in ("initContainers", "containers"):
        live = {container["name"]: container for container in there.get(kind) or ()}
        resized = [{"name": each["name"], "resources": change} for each in wanted.get(kind) or () if (change := _resized(each, live))]
        if resized:
            spec[kind] = resized
    return spec


def _resized(container: JsonView, live: Mapping[str, JsonView]) -> Json:
    if container["name"] not in live:
        return {}
    there: JsonView = live[container["name"]].get("resources") or {}
    change: Json = {}
    for kind in ("requests", "limits"):
        amounts: JsonView = (container.get("resources") or {}).get(kind) or {}
        have: JsonView = there.get(kind) or {}
        differing = {name: amounts[name] for name in _RESIZABLE if name in amounts and not _equal(amounts[name], have.get(name))}
        if differing:
            change[kind] = differing
    return change


def _equal(one: str | int | float, other: str | int | float | None) -> bool:
    return other is not None and Quantity.parse(one) == Quantity.parse(other)
