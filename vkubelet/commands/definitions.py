"""CustomResourceDefinitions that a command creates, and updates with its next version.

Invariant: the CRD of another client, or of a newer version, is never changed.
"""

import importlib.metadata
import re

from attrs import frozen

from vkubelet.api.codec import decode_yaml
from vkubelet.api.names import LAST_APPLIED, md5_hex
from vkubelet.api.objects import CRDS, Json, JsonView, ObjectMeta, Resource, Unknown, get_condition
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.commands.clusters import CommandFailed, find
from vkubelet.errors import AlreadyExists, Forbidden, NotFound

MANAGED_BY = "app.kubernetes.io/managed-by"
_ESTABLISHED_WITHIN = 30.0


@frozen(kw_only=True)
class Installer:
    """The client that creates definitions, and the annotations in which it stores the hash of their content, and its version."""

    name: str
    content: str
    version: str


async def ensure_definition(
    client: Client, resource: Resource[Unknown], *, text: str, installer: Installer, source: str, clock: Clock
) -> str:
    """Creates the CRD of `text`, or updates that of an earlier version, and waits for Established; returns what was done.

    A CRD of a Helm release, of `kubectl apply` or of a newer version is not changed. A user who may not read CRDs can go on where the
    kind is served. Raises CommandFailed where it is not.
    """
    body = _marked(text, installer)
    try:
        found, done = await find(client, CRDS, body), "unchanged"
        if found is None:
            found, done = await _create_definition(client, body), "created"
        elif is_outdated(found.metadata, body, installer):
            found, done = await client.replace(CRDS, _updated(found, body)), "updated"
    except Forbidden as error:
        if await _is_served(client, resource):
            return "unchanged"
        remedy = f"ask its owner to apply {source}"
        raise CommandFailed(f"this cluster does not serve {resource.kind}, and you may not create its CRD ({error}); {remedy}") from error
    deadline = clock.monotonic() + _ESTABLISHED_WITHIN
    while found is None or not _established(found):
        if clock.monotonic() > deadline:
            raise CommandFailed(f"CustomResourceDefinition {body['metadata']['name']} is not established; check its status.conditions")
        await clock.sleep(0.2)
        found = await find(client, CRDS, body)
    return done


def _marked(text: str, installer: Installer) -> Json:
    """Returns the CRD with the marks by which a later version of the installer recognizes it."""
    body: Json = decode_yaml(text)
    metadata = body["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), MANAGED_BY: installer.name}
    marks = {installer.content: md5_hex(text), installer.version: importlib.metadata.version("vkubelet")}
    metadata["annotations"] = {**metadata.get("annotations", {}), **marks}
    return body


def is_outdated(found: ObjectMeta, body: JsonView, installer: Installer) -> bool:
    """Checks that the installer created the CRD, with another content, in this version or an earlier one (pure)."""
    if found.labels.get(MANAGED_BY, installer.name) != installer.name or LAST_APPLIED in found.annotations:
        return False
    ours = body["metadata"]["annotations"]
    other_content = found.annotations.get(installer.content) != ours[installer.content]
    return other_content and _release(found.annotations.get(installer.version, "")) <= _release(ours[installer.version])


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _updated(found: Unknown, body: Json) -> Json:
    """Returns the CRD with the desired spec; labels and annotations of others are preserved."""
    now = found.body
    metadata = now["metadata"]
    for name in ("labels", "annotations"):
        metadata[name] = {**metadata.get(name, {}), **body["metadata"][name]}
    return {**now, "spec": body["spec"]}


async def _create_definition(client: Client, body: Json) -> Unknown | None:
    try:
        return await client.create(CRDS, body)
    except AlreadyExists:
        return None


async def _is_served(client: Client, resource: Resource[Unknown]) -> bool:
    try:
        await client.list(resource)
    except NotFound:
        return False
    except Forbidden:
        # The later write of an object of this kind will show.
        return True
    return True


def _established(definition: Unknown) -> bool:
    condition = get_condition((definition.body.get("status") or {}).get("conditions") or (), "Established")
    return condition is not None and condition["status"] == "True"
