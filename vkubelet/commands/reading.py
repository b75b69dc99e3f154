"""Reads of a command that name the missing right when an API server refuses them.

Invariant: a refusal names the cluster, the verb, the resource, and a command with which its owner can grant the right.
"""

from collections.abc import Sequence
from typing import TypeVar

from attrs import define, field

from vkubelet.api.objects import Key, KubeObject, Resource
from vkubelet.client.rest import Client, Selection
from vkubelet.commands.clusters import Choice, CommandFailed, explained
from vkubelet.errors import Forbidden, NotFound

T = TypeVar("T", bound=KubeObject)


class MissingRight(CommandFailed):
    """The user may not read what the command needs."""


@define
class Reader:
    """Reads one cluster; `missing` collects the refusals of reads without which the command continues."""

    client: Client
    choice: Choice
    missing: list[str] = field(factory=list)

    async def list(self, resource: Resource[T], where: Selection = Selection()) -> Sequence[T]:
        """Lists objects. Raises MissingRight, CommandFailed."""
        try:
            with explained(self.choice, passing=Forbidden):
                return (await self.client.list(resource, where)).items
        except Forbidden as error:
            raise MissingRight(missing_right(self.choice, "list", resource, namespace=where.namespace)) from error

    async def list_if_allowed(self, resource: Resource[T], where: Selection = Selection(), *, otherwise: str) -> Sequence[T] | None:
        """Lists objects; None when the user may not, which `missing` then names with what is absent `otherwise`."""
        try:
            return await self.list(resource, where)
        except MissingRight as error:
            self.missing.append(f"{otherwise}: {error}")
            return None

    async def get(self, resource: Resource[T], key: Key | str) -> T | None:
        """Gets an object; None when it does not exist. Raises MissingRight, CommandFailed."""
        try:
            with explained(self.choice, passing=(Forbidden, NotFound)):
                return await self.client.get(resource, key)
        except NotFound:
            return None
        except Forbidden as error:
            namespace = key.namespace if isinstance(key, Key) else ""
            raise MissingRight(missing_right(self.choice, "get", resource, namespace=namespace)) from error

    async def get_if_allowed(self, resource: Resource[T], key: Key | str, *, otherwise: str) -> T | None:
        """Gets an object; None when it does not exist, or the user may not, which `missing` then names."""
        try:
            return await self.get(resource, key)
        except MissingRight as error:
            self.missing.append(f"{otherwise}: {error}")
            return None


def missing_right(choice: Choice, verb: str, resource: Resource[T], *, namespace: str = "") -> str:
    """Returns the sentence that names a right in a cluster, with the command that grants it (pure)."""
    name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    where = f" in namespace {namespace}" if namespace else ""
    kind = "role" if namespace else "clusterrole"
    scope = f" -n {namespace}" if namespace else ""
    grant = f"kubectl create {kind} reader{scope} --verb={verb} --resource={name}"
    return f"you may not {verb} {name}{where} in the {choice.title}; ask its owner to bind you a role with that right: {grant}"
