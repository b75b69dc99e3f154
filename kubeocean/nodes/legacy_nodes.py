"""Adopts Nodes that Kubeocean (Go) left behind, without a change of what users set on them.

Invariant: only what its own record lists counts as set by it; after adoption such a Node is like one that we declared. What is written is
decided by a pure function, which unbinding uses too.
"""

import base64
import binascii
import json
import logging
from collections.abc import Sequence

from kubeocean.model import keys
from vkubelet.api.names import OWNED
from vkubelet.api.objects import NODES, Json, Node
from vkubelet.client.rest import Client, PatchKind
from vkubelet.errors import NotFound

log = logging.getLogger(__name__)

_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_TAINTS = (keys.TAINT_VNODE, keys.TAINT_UNSCHEDULABLE, keys.TAINT_CLOSED, keys.TAINT_DELETING)


async def adopt(client: Client, live: Node | None) -> None:
    """Removes the finalizer of Kubeocean (Go), as it blocks the deletion of the Node (rule `node-deleted-by-a-person`). Raises ApiError."""
    change = inherited(live) if live is not None else None
    if live is None or change is None:
        return
    try:
        await client.patch(NODES, live.metadata.name, change, kind=PatchKind.MERGE)
        log.info("node of Kubeocean (Go) is adopted")
    except NotFound:
        log.debug("virtual node is deleted")


def inherited(live: Node) -> Json | None:
    """Returns the merge patch that makes a Node of Kubeocean (Go) ours, or None when it is no such Node or was adopted before."""
    meta = live.metadata
    if keys.FINALIZER_VNODE not in meta.finalizers:
        return None
    left = [each for each in meta.finalizers if each != keys.FINALIZER_VNODE]
    change: Json = {"metadata": {"uid": meta.uid, "finalizers": left, "resourceVersion": meta.resource_version}}
    expected = keys.ExpectedMetadata.decode(meta.annotations.get(keys.EXPECTED_METADATA, ""))
    annotations: Json = {}
    if expected is not None and OWNED not in meta.annotations:
        owned = {
            "labels": sorted(expected.labels),
            "annotations": sorted({*expected.annotations, keys.EXPECTED_METADATA}),
            "conditions": [c["type"] for c in live.status.get("conditions") or () if c["type"] in _CONDITIONS],
            "taints": _taints(live),
        }
        annotations[OWNED] = json.dumps(owned, separators=(",", ":"))
    if keys.DELETION_TAINT_TIME in meta.annotations:
        # A deletion that was started and abandoned: it also cordoned the Node.
        annotations[keys.DELETION_TAINT_TIME] = None
        change["spec"] = {"unschedulable": None}
    if annotations:
        change["metadata"]["annotations"] = annotations
    return change


def _taints(live: Node) -> list[str]:
    there = {taint["key"] for taint in live.spec.get("taints") or ()}
    return sorted(there & {*_TAINTS, *_expected_taints(live.metadata.annotations.get(keys.EXPECTED_METADATA, ""))})


def _expected_taints(text: str) -> Sequence[str]:
    try:
        value = json.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return ()
    taints = value.get("taints") if isinstance(value, dict) else None
    return [str(taint.get("key", "")) for taint in taints or () if isinstance(taint, dict)] if isinstance(taints, list) else ()
