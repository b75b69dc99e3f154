"""Performs the checks of a command `doctor`, and checks what it examines of every cluster: API server, definitions, rights of identities.

Invariant: nothing is written but reviews; a check whose input may not be read is skipped, and names the right.
"""

import shlex
from collections.abc import Awaitable, Iterable
from typing import Final

import aiohttp
from attrs import define, evolve, field

from vkubelet.api import objects
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import Json, Key
from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.clock import Clock
from vkubelet.commands import clusters, servers
from vkubelet.commands.findings import Checked, Finding, error
from vkubelet.commands.reading import MissingRight, Reader, missing_right
from vkubelet.control.rights import lacking_rights
from vkubelet.errors import ApiError, Forbidden

PROBE_TIMEOUT: Final = 10.0


@define
class Log:
    """Results in the order of the checks; proposed commands of `program` get the flags that select `hub`, unless they select a cluster."""

    hub: clusters.Choice
    done: list[Checked] = field(factory=list)
    program: str = field(kw_only=True)

    async def check(self, subject: str, name: str, work: Awaitable[Iterable[Finding]]) -> None:
        """Performs a check, or records why it is skipped."""
        try:
            self.done.append(Checked(subject=subject, check=name, findings=[self._complete(each) for each in await work]))
        except (clusters.CommandFailed, ApiError) as error:
            self.done.append(Checked(subject=subject, check=name, skipped=str(error)))

    def _complete(self, finding: Finding) -> Finding:
        flags = "".join(f" {shlex.quote(word)}" for word in self.hub.arguments)
        return evolve(finding, commands=[each + flags if self._is_open(each) else each for each in finding.commands])

    def _is_open(self, command: str) -> bool:
        """Checks for a command of ours that does not select a cluster yet."""
        return command.startswith(f"{self.program} ") and " --context " not in command

    def findings(self, subject: str) -> list[Finding]:
        return [finding for each in self.done if each.subject == subject for finding in each.findings]


async def server(reader: Reader, clock: Clock) -> list[Finding]:
    """Checks the version and the clock of an API server."""
    call, sent = Call("GET", "/version", "get /version", "get"), clock.now()
    try:
        with clusters.explained(reader.choice, passing=Forbidden):
            async with reader.client.transport.open(call, aiohttp.ClientTimeout(total=PROBE_TIMEOUT)) as response:
                received, date = clock.now(), response.headers.get("Date")
                body = decode_json(await response.read())
    except clusters.CommandFailed as failure:
        return [error(str(failure))]
    title = reader.choice.title
    return [*servers.version(title, body), *servers.clock(title, servers.answered(date), sent=sent, received=received)]


async def definition(reader: Reader, ours: Json, *, kubectl: str, install: str) -> list[Finding]:
    """Checks a CustomResourceDefinition, which the command `install` creates or updates. Raises CommandFailed."""
    found = await reader.get(objects.CRDS, ours["metadata"]["name"])
    return list(servers.definition(reader.choice.title, found.body if found else None, ours, kubectl=kubectl, install=install))


async def lacking(reader: Reader, account: Key, wanted: Iterable[Check]) -> tuple[Check, ...]:
    """Returns the rights that a ServiceAccount lacks. Raises MissingRight, ApiError."""
    try:
        return await lacking_rights(reader.client, wanted, review=lambda check: _granted(reader.client, account, check))
    except Forbidden as error:
        raise MissingRight(missing_right(reader.choice, "create", objects.SUBJECTACCESSREVIEWS)) from error


async def _granted(client: Client, account: Key, check: Check) -> bool:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{account.namespace}", "system:authenticated"]
    user = f"system:serviceaccount:{account.namespace}:{account.name}"
    body = {"spec": {"resourceAttributes": check.attributes, "user": user, "groups": groups}}
    review = await client.create(objects.SUBJECTACCESSREVIEWS, body)
    return (review.body.get("status") or {}).get("allowed") is True
