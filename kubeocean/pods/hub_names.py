"""Translates messages of the worker about a physical pod into the names that the hub's user knows (pure).

Invariant: only names of the worker are replaced; the rest of a message stays.
"""

from __future__ import annotations

import re
from typing import Final

from kubeocean.model import keys
from kubeocean.model.references import references
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json, JsonView
from vkubelet.errors import PodRejected

_HASHED: Final = re.compile(r"-[0-9a-f]{32}")


def in_hub_names(text: str, pod: Pod, physical: Pod) -> str:
    """Returns the text with hub names in place of the worker's.

    Replaces the names of the pod and its node, of the copies it uses, and of the mount namespace where it is next to a name.
    """
    meta, there = pod.metadata, physical.metadata
    names = {there.name: meta.name, there.uid: meta.uid}
    if physical.node:
        names[physical.node] = pod.node
    if _HASHED.search(text.replace(there.name, "")):
        names |= _copies(pod)
    for name in sorted((name for name in names if name in text), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9.-]){re.escape(name)}(?!\.?[A-Za-z0-9]|-)", names[name].replace("\\", r"\\"), text)
    if there.namespace not in text:
        return text
    namespace = re.escape(there.namespace)
    beside = rf'(?<![A-Za-z0-9.-]){namespace}(?="?/)|(?<=_){namespace}(?=\()|(?<=namespace ){namespace}\b|(?<=namespace "){namespace}(?=")'
    return re.sub(beside, meta.namespace, text)


def _copies(pod: Pod) -> dict[str, str]:
    meta = pod.metadata
    try:
        named = [reference.name for reference in references(pod).objects]
    except PodRejected:
        return {}
    tokens = {keys.token_secret_name(meta.namespace, meta.name, meta.uid): f"{meta.name}-token"}
    return tokens | {keys.physical_name(meta.namespace, name): name for name in named}


def status_in_hub_names(status: JsonView, pod: Pod, physical: Pod) -> Json:
    """Returns the status with the messages of the pod, its conditions and its waiting containers in hub names.

    What a container wrote before it terminated (`terminated.message`) belongs to its user, and stays.
    """
    renamed: Json = dict(status)
    if text := status.get("message"):
        renamed["message"] = in_hub_names(text, pod, physical)
    renamed["conditions"] = [_renamed(each, pod, physical) for each in status.get("conditions") or ()]
    for kind in [name for name in status if name.lower().endswith("containerstatuses")]:
        renamed[kind] = [_waiting_renamed(each, pod, physical) for each in status[kind]]
    return renamed


def _waiting_renamed(entry: JsonView, pod: Pod, physical: Pod) -> JsonView:
    state: JsonView = entry.get("state") or {}
    if not (state.get("waiting") or {}).get("message"):
        return entry
    return {**entry, "state": {**state, "waiting": _renamed(state["waiting"], pod, physical)}}


def _renamed(holder: JsonView, pod: Pod, physical: Pod) -> Json:
    text = holder.get("message")
    return {**holder, "message": in_hub_names(text, pod, physical)} if text else dict(holder)
