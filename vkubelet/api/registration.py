"""Reads from a Node which vkubelet instance registered it, and which of its keys that instance has set. Pure.

Invariant: a damaged annotation owns nothing: keys that are not recorded as ours are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from attrs import evolve, field, frozen

from vkubelet.api.objects import Node

OWNED = "vkubelet.io/owned"
"""Annotation: JSON of our instance, and of the label, annotation, condition and taint keys and resource names we set, so that those no
longer desired are removed, also after a restart."""

INSTANCE = "vkubelet.io/instance"
"""Label: the vkubelet instance that registered the Node."""


@frozen
class Owned:
    """Keys that we set on a Node with our last write."""

    labels: Collection[str] = field(default=(), kw_only=True)
    annotations: Collection[str] = field(default=(), kw_only=True)
    conditions: Collection[str] = field(default=(), kw_only=True)
    taints: Collection[str] = field(default=(), kw_only=True)
    resources: Collection[str] | None = field(default=(), kw_only=True)
    """None: the annotation was written before it contained resources, when all of them were ours."""


def instance_of(live: Node) -> str:
    """Returns the vkubelet instance that registered the Node, by its label or, without one, by our annotation; "" when neither names
    one."""
    try:
        noted = json.loads(live.metadata.annotations.get(OWNED, "{}")).get("instance", "")
    except (ValueError, AttributeError):
        noted = ""
    return live.metadata.labels.get(INSTANCE) or (noted if isinstance(noted, str) else "")


def owned_keys(live: Node) -> Owned:
    """Returns the keys recorded on the Node with our last write; none if the annotation is missing or damaged."""
    try:
        note = json.loads(live.metadata.annotations.get(OWNED, '{"resources": []}'))
        keys = {kind: tuple(note.get(kind, ())) for kind in ("labels", "annotations", "conditions", "taints", "resources")}
    except (ValueError, AttributeError, TypeError):
        return Owned()
    intact = all(isinstance(key, str) for kind in keys.values() for key in kind)
    if not intact:
        return Owned()
    return Owned(**keys) if "resources" in note else evolve(Owned(**keys), resources=None)
