"""The clusters that a command uses, as named by flags.

Invariant: an error about a cluster names the flag that selected it.
"""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from vkubelet.api.objects import NAMESPACES, Json, Key, Resource, Unknown
from vkubelet.client.connection import Connection, load_connection
from vkubelet.client.rest import Client
from vkubelet.errors import ApiError, Forbidden, NotFound, SettingsError, Unauthorized, Unreachable, VKubeletError


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
