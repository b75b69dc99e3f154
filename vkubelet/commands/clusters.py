"""The clusters that a command uses, as named by flags, and the CRDs that it creates in them.

Invariant: an error about a cluster names the flag that selected it; the CRD of another client, or of a newer version, is never changed.
"""

import asyncio
import importlib.metadata
import re
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from vkubelet.api.codec import decode_yaml
from vkubelet.api.names import LAST_APPLIED, md5_hex
from vkubelet.api.objects import CRDS, NAMESPACES, Json, JsonView, Key, ObjectMeta, Resource, Unknown, get_condition
from vkubelet.client.connection import Connection, load_connection
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.errors import AlreadyExists, ApiError, Forbidden, NotFound, SettingsError, Unauthorized, Unreachable, VKubeletError

MANAGED_BY = "app.kubernetes.io/managed-by"
_ESTABLISHED_WITHIN = 30.0


class CommandFailed(VKubeletError):
    """A command did not reach its goal; the message contains the problem and the remedy."""


@frozen
class Choice:
    """A kubeconfig and a context, and the flags that named them."""

    what: str
    flags: str
    kubeconfig: Path | None = None
    context: str = ""
    field_manager: str = "vkubelet"
    otherwise: str = ""
    """What a user can do where these credentials do not suffice for the purpose of the command."""

    @property
    def title(self) -> str:
        return f"{self.what} (context {self.context})" if self.context else self.what

    @property
    def arguments(self) -> list[str]:
        """Flags that select this cluster, of kubectl and of our commands that read it as their computing cluster."""
        return [
            *(["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []),
            *(["--context", self.context] if self.context else []),
        ]

    @property
    def kubectl(self) -> str:
        """`kubectl` with these flags, quoted for a shell."""
        return shlex.join(["kubectl", *self.arguments])

    @property
    def helm(self) -> str:
        """`helm` with its flags for the same cluster, quoted for a shell."""
        return shlex.join(["helm", *("--kube-context" if word == "--context" else word for word in self.arguments)])


def check_timeout(seconds: float) -> float:
    """Returns the timeout in seconds. Raises SettingsError."""
    if not seconds >= 0:
        raise SettingsError("--timeout", "must be 0 or more seconds")
    return seconds


async def connection_of(choice: Choice) -> Connection:
    """Loads the connection. Raises SettingsError naming the flags."""
    try:
        return await load_connection(kubeconfig=choice.kubeconfig, context=choice.context)
    except SettingsError as error:
        raise SettingsError(choice.flags, str(error)) from error


@asynccontextmanager
async def opened(choice: Choice) -> AsyncIterator[Client]:
    """Opens a client for the cluster. Raises SettingsError naming the flags."""
    async with Client(await connection_of(choice), field_manager=choice.field_manager) as client:
        yield client


@contextmanager
def explained(choice: Choice, *, passing: type[ApiError] | tuple[type[ApiError], ...] = ()) -> Iterator[None]:
    """Translates errors of an API server to CommandFailed with the remedy; those of the classes `passing` stay."""
    try:
        yield
    except passing:
        raise
    except Unreachable as error:
        raise CommandFailed(f"the {choice.title} does not respond: {error}; check {choice.flags} and the network") from error
    except Unauthorized as error:
        raise CommandFailed(f"the {choice.title} does not accept these credentials: {error}; check {choice.flags}") from error
    except Forbidden as error:
        remedy = "ask its owner for that right, or to run the command"
        raise CommandFailed(f"the {choice.title} refuses: {error}; {remedy}") from error
    except ApiError as error:
        raise CommandFailed(f"the {choice.title} refuses: {error}") from error


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command until it finishes or is interrupted."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is undone, and the same command continues from there", file=sys.stderr)
        raise SystemExit(130) from None


async def uid_of(client: Client) -> str:
    """Returns the UID that identifies the cluster; "" for a user who may not read it."""
    try:
        return (await client.get(NAMESPACES, "kube-system")).metadata.uid
    except Forbidden:
        return ""


async def find(client: Client, resource: Resource[Unknown], body: Json) -> Unknown | None:
    """Returns the object of the name that `body` has, or None."""
    metadata = body["metadata"]
    return await find_named(client, resource, metadata["name"], namespace=metadata.get("namespace", ""))


async def find_named(client: Client, resource: Resource[Unknown], name: str, *, namespace: str = "") -> Unknown | None:
    try:
        return await client.get(resource, Key(namespace, name))
    except NotFound:
        return None


# --- Definitions --------------------------------------------------------------------------------------------------------------------------


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
