"""Classifies an object by the owner that its marks name: this binding, another one, Kubeocean (Go), or none. Pure.

Invariant: an object is changed or deleted only if it is OURS, or if it names no owner and the caller adds its own proof (rule
`owner-mark`): a pod has the UID of a pod on one of our nodes; a copy names its original, which records that this binding copies it.
"""

import enum
from typing import Final

from kubeocean.model import keys
from vkubelet.api.objects import ObjectMeta


class Ownership(enum.Enum):
    """The owner of an object, as seen from one binding of one hub."""

    OURS = "ours"
    ANOTHERS = "another's"
    """Of another binding, of this hub or of another one: never changed or deleted."""
    LEGACY = "legacy"
    """Created by Kubeocean (Go), whose objects have the label `managed-by` and name no owner."""
    UNMARKED = "unmarked"
    """Not created by a Kubeocean, or another client removed its labels and annotations."""


UNOWNED: Final = frozenset({Ownership.LEGACY, Ownership.UNMARKED})
"""What names no owner. Of pods both count alike: the label of one of Kubeocean (Go) may be missing."""


class Mark(enum.Enum):
    """Where an object has the mark of its owner."""

    OBJECT = "object"
    """In the worker: in annotations, which only we write; the label counts where another client removed the annotations."""
    MOUNT = "mount"
    """On a mount namespace: in its own annotation, since the namespace itself is not ours."""
    NODE = "node"
    """On a Node or CSINode in the hub: a label with the clusterID, the same for one that Kubeocean (Go) created for this binding."""


def classify(meta: ObjectMeta, owner: keys.Owner, *, mark: Mark = Mark.OBJECT) -> Ownership:
    """Returns the ownership of an object that has at most one owner."""
    managed = meta.labels.get(keys.MANAGED_BY) == keys.MANAGED
    match mark:
        case Mark.OBJECT:
            named = keys.Owner.of(meta)
            value, ours = (named.mark if named else meta.labels.get(keys.OWNER, "")), owner.mark
        case Mark.MOUNT:
            value, ours = meta.annotations.get(keys.MOUNT_OWNER, ""), owner.mark
        case Mark.NODE:
            value, ours = (meta.labels.get(keys.PHYSICAL_CLUSTER_ID, "") if managed else ""), owner.cluster_id
    if value:
        return Ownership.OURS if value == ours else Ownership.ANOTHERS
    return Ownership.LEGACY if managed and mark is Mark.OBJECT else Ownership.UNMARKED


def classify_finalizer(finalizer: str, owner: keys.Owner) -> Ownership:
    """Returns the ownership of one finalizer of an object that several bindings use: a policy, or an object of the hub that is copied.

    Kubeocean (Go) and we share the finalizer of a copied object, which contains the clusterID.
    """
    if finalizer == keys.FINALIZER_POLICY:
        return Ownership.LEGACY
    ours = (keys.policy_finalizer(owner), keys.object_finalizer(owner.cluster_id))
    if finalizer.startswith((keys.POLICY_CLAIM, keys.object_finalizer(""))):
        return Ownership.OURS if finalizer in ours else Ownership.ANOTHERS
    return Ownership.UNMARKED
