"""Patches that bring a physical pod up to date after its virtual pod changed (pure).

Invariant: a key of a map is written or removed only if it is ours by `expected-metadata`; what other clients added to the physical pod
stays. When nothing differs, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import field, frozen

from kubeocean.model import keys
from kubeocean.model import references as refs
from kubeocean.model.identity import Target, marks, propagated
from kubeocean.model.overrides import images_of, patched_keys, remembered, virtual_images
from kubeocean.pods.resize import Pending, Room, noted, resized, unfit
from kubeocean.pods.translate import physical_containers
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json, JsonView


@frozen
class Changes:
    """Strategic merge patches that contain the physical uid, each None when there is nothing to send.

    To be sent in this order: those of `ephemeral`, one for each container by its name, to pods/ephemeralcontainers, `resize` to
    pods/resize, then `main` to the pod; only `main` records that the physical pod now reflects the virtual pod's generation.
    `pending` is the reason why a resize is not among them.
    """

    main: Json | None = None
    ephemeral: Mapping[str, Json] = field(factory=dict)
    resize: Json | None = None
    pending: Pending | None = None

    def __bool__(self) -> bool:
        return any((self.main, self.ephemeral, self.resize))


def changes(pod: Pod, physical: Pod, target: Target, *, room: Callable[[], Room | None] = lambda: None) -> Changes:
    """Computes the patches. `room` is called when there is a resize: one that does not fit is not sent.

    Ephemeral containers that cannot be translated are omitted.
    """
    wanted, there = pod.spec, physical.spec
    metadata = _metadata(pod, physical, target)
    # What the worker's admission changed must not be sent again and again: the spec is compared once per generation.
    is_new = not _is_reflected(pod, physical)
    resize = resized(wanted, there) if is_new or Pending.of(physical.metadata) else {}
    space = room() if resize else None
    pending = unfit(wanted, there, space) if space is not None else None
    metadata, sent = noted(metadata, physical, pending), None if pending else _patch(physical, spec=resize)
    if not is_new:
        # What differs although everything was sent was rewritten by the worker's admission; it is no user change in the next generation.
        rewritten = remembered(images_of(wanted, *refs.CONTAINER_LISTS), images_of(there, *refs.CONTAINER_LISTS))
        metadata = _with_images(metadata, physical, note=rewritten)
        return Changes(_patch(physical, metadata=metadata), resize=sent, pending=pending)
    images = _images_to_have(wanted, physical, target)
    metadata = _with_images(metadata, physical, note=remembered(images_of(wanted, *refs.CONTAINER_LISTS), images))
    main = _patch(physical, metadata=metadata, spec=_main_spec(wanted, there, images))
    return Changes(main, _ephemeral(pod, wanted, physical, target=target), sent, pending)


def with_pending(main: Json | None, physical: Pod, pending: Pending) -> Json | None:
    """Returns the patch with the reason why the worker did not accept the resize; None when nothing is left to write."""
    before = main or {"metadata": {"uid": physical.metadata.uid}}
    return _unless_empty({**before, "metadata": noted(_without(before["metadata"], keys.RESIZE_PENDING), physical, pending)})


def without_generation(main: Json | None) -> Json | None:
    """Returns the patch without the record that the generation was sent completely; None when nothing is left of it."""
    if main is None:
        return None
    return _unless_empty({**main, "metadata": _without(main["metadata"], keys.VIRTUAL_GENERATION)})


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
    if before not in (wanted, wanted.shortened) or not text:
        annotations[keys.EXPECTED_METADATA] = wanted.encode()
    return {name: entries for name, entries in (("labels", labels), ("annotations", annotations)) if entries}


def _entries(live: Mapping[str, str], wanted: Mapping[str, str], *, before: Mapping[str, str]) -> Json:
    """Returns the entries that the user changed since, and null for those that the user removed."""
    changed: Json = {
        key: value for key, value in wanted.items() if live.get(key) != value and before.get(key) not in (value, keys.shortened(value))
    }
    changed.update({key: None for key in before if key not in wanted and key in live})
    return changed


def _missing(live: Mapping[str, str], ours: Mapping[str, str]) -> Json:
    return {key: value for key, value in ours.items() if live.get(key) != value}


def _images_to_have(wanted: JsonView, physical: Pod, target: Target) -> dict[str, str]:
    """Returns the desired image of each container: the physical pod's, unless the user set another image since.

    So a changed rewrite rule of the binding restarts nothing.
    """
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
    """Returns the physical pod's tolerations with the user's added or corrected, None when it has all of them.

    None is removed, because the API server rejects that.
    """
    merged = {_same_toleration(each): dict(each) for each in (*there, *wanted)}
    now = {_same_toleration(each): dict(each) for each in there}
    return None if merged == now else list(merged.values())


def _same_toleration(toleration: JsonView) -> tuple[str, ...]:
    operator = toleration.get("operator") or "Equal"
    return (toleration.get("key") or "", operator, toleration.get("value") or "", toleration.get("effect") or "")


def _ephemeral(pod: Pod, wanted: JsonView, physical: Pod, *, target: Target) -> dict[str, Json]:
    """Returns the patch that adds each container that the physical pod does not have yet, by its name."""
    there = {container["name"] for container in physical.spec.get("ephemeralContainers") or ()}
    left_out = there | refs.untranslatable(wanted).keys()
    added = [container for container in wanted.get("ephemeralContainers") or () if container["name"] not in left_out]
    patches: dict[str, Json] = {}
    for container in physical_containers(added, pod, target):
        patches[container["name"]] = {"metadata": {"uid": physical.metadata.uid}, "spec": {"ephemeralContainers": [container]}}
    return patches
