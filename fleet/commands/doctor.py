"""`fleet doctor`: examines a hub with its clusters, and prints each problem with the commands that correct it.

Invariant: nothing is written but reviews. A check whose input may not be read is skipped, and names the right.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import attrs
from attrs import define, field, frozen

from fleet.api import keys
from fleet.api.clusters import ManagedCluster, MemberCluster
from fleet.api.resources import CLUSTER_LEASES, CLUSTERCLAIMS, DEFINED, MANAGEDCLUSTERS, MEMBERCLUSTERS, admission_policies, definition
from fleet.commands import checks
from fleet.core.requests import ClientRequest, content_flaw
from fleet.core.view import view_of
from vkubelet.api import objects
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.api.objects import Json, Key, Resource, Unknown
from vkubelet.api.rbac import Rule, checks_of
from vkubelet.client.rest import Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters, examination, findings, reading
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import NotFound

PROGRAM: Final = "fleet"
INIT: Final = "fleet init"
_OF_A_CLUSTER: Final[Sequence[Resource[Unknown]]] = (
    objects.CLUSTERROLEBINDINGS,
    objects.CLUSTERROLES,
    objects.ROLEBINDINGS,
    CLUSTER_LEASES,
)
"""Kinds of the objects that the hub creates for each cluster and deletes with it; the namespace of a cluster stays."""


Examine = Callable[[reading.Reader, examination.Log], Awaitable[None]]
"""Performs checks with a reader of the chosen cluster."""


@frozen(kw_only=True)
class Doctor:
    """One run of the command; `examine` performs the checks of a hub or of a worker."""

    choice: clusters.Choice
    examine: Examine
    terminal: Terminal

    async def run(self) -> list[Json]:
        """Prints the results of all checks; returns them. Raises VKubeletError."""
        log = examination.Log(self.choice, program=PROGRAM)
        async with clusters.opened(self.choice) as cluster:
            await self.examine(reading.Reader(cluster, self.choice), log)
        for line in findings.blocks(log.done, wide=True):
            self.terminal.write_line(line)
        made: list[Json] = json.loads(json.dumps([attrs.asdict(each, recurse=True) for each in log.done]))
        return made


@define(kw_only=True)
class HubExamination:
    """Examines the hub; `rules` are those of the process in `namespace`."""

    reader: reading.Reader
    log: examination.Log
    rules: Sequence[Rule]
    namespace: str
    clock: Clock = field(factory=SystemClock)
    _managed: dict[str, ManagedCluster] = field(factory=dict, init=False)
    _members: dict[str, MemberCluster] = field(factory=dict, init=False)
    _requests: Sequence[ClientRequest] = field(default=(), init=False)
    _records: tuple[Sequence[Unknown] | None, Sequence[Unknown] | None] = field(default=(None, None), init=False)
    """Those of both kinds, None for one that was not read or is not served."""

    @property
    def kubectl(self) -> str:
        return self.reader.choice.kubectl

    async def run(self) -> None:
        """Performs all checks."""
        subject, check = self.reader.choice.title, self.log.check
        await check(subject, "API server", examination.server(self.reader, self.clock))
        await check(subject, "definitions", self._definitions())
        await check(subject, "process", self._process())
        await check(subject, "rights of the process", self._rights())
        await check(subject, "admission policies", self._admission())
        await check(subject, "records", self._read())
        await check(subject, "requests", self._foreign())
        await check(subject, "orphans", self._orphans())
        for name in sorted(self._managed.keys() | self._members.keys()):
            await check(f"cluster {name}", "fields", self._fields(name))
            await check(f"cluster {name}", "state", self._state(name))

    async def _listed(self, resource: Resource[Unknown], where: Selection = Selection()) -> Sequence[Unknown] | None:
        """Lists objects; None when their kind is not served, which the check of definitions reports. Raises CommandFailed."""
        try:
            return await self.reader.list(resource, where)
        except clusters.CommandFailed as error:
            if isinstance(error.__cause__, NotFound):
                return None
            raise

    async def _definitions(self) -> Iterable[findings.Finding]:
        found: list[findings.Finding] = []
        for each in DEFINED:
            if each != CLUSTERCLAIMS:
                ours = decode_yaml(definition(each))
                found += await examination.definition(self.reader, ours, kubectl=self.kubectl, install=INIT)
        return found

    async def _process(self) -> Iterable[findings.Finding]:
        key = Key(self.namespace, keys.HUB)
        deployment, lease = await self.reader.get(objects.DEPLOYMENTS, key), await self.reader.get(CLUSTER_LEASES, key)
        return checks.process(key, deployment, lease, now=self.clock.now(), kubectl=self.kubectl)

    async def _rights(self) -> Iterable[findings.Finding]:
        account = Key(self.namespace, keys.HUB)
        if await self.reader.get(objects.DEPLOYMENTS, account) is None:
            raise clusters.CommandFailed("the user of the process is unknown, as it has no Deployment")
        return checks.rights(account, await examination.lacking(self.reader, account, checks_of(self.rules)), remedy=INIT)

    async def _admission(self) -> Iterable[findings.Finding]:
        wanted = [(each["kind"], each["metadata"]["name"]) for each in decode_yaml_documents(admission_policies()) if each]
        found = set()
        for resource in (objects.ADMISSIONPOLICIES, objects.ADMISSIONPOLICYBINDINGS):
            found |= {(resource.kind, each.metadata.name) for each in await self.reader.list(resource)}
        return checks.admission(wanted, found)

    async def _read(self) -> Iterable[findings.Finding]:
        """Reads the records and requests for the checks that follow."""
        self._requests = [ClientRequest.parse(each) for each in await self.reader.list(objects.CSRS, Selection(labels=keys.CLUSTER_NAME))]
        managed, members = [await self._listed(each) for each in (MANAGEDCLUSTERS, MEMBERCLUSTERS)]
        self._records = (managed, members)
        self._managed = {each.metadata.name: ManagedCluster.parse(each) for each in managed or ()}
        self._members = {each.metadata.name: MemberCluster.parse(each) for each in members or ()}
        return ()

    def _known(self) -> tuple[Sequence[Unknown], Sequence[Unknown] | None]:
        """Returns the records of both kinds. Raises CommandFailed when those of clusters are unknown: nothing is foreign or left then."""
        managed, members = self._records
        if managed is None:
            raise clusters.CommandFailed("the records of clusters were not read")
        return managed, members

    async def _foreign(self) -> Iterable[findings.Finding]:
        self._known()
        return checks.requests(self._requests, self._managed, kubectl=self.kubectl)

    async def _orphans(self) -> Iterable[findings.Finding]:
        managed, members = self._known()
        kubectl, ours = self.kubectl, Selection(labels=keys.CLUSTER_NAME)
        listed = [(kind, each) for kind in _OF_A_CLUSTER for each in await self.reader.list(kind, ours)]
        owned = [(kind, each, each.metadata.labels[keys.CLUSTER_NAME]) for kind, each in listed]
        found = [*checks.orphans(owned, self._managed.keys() | self._members.keys(), kubectl=kubectl)]
        if members is not None:
            copies = [(MEMBERCLUSTERS, each, each.metadata.name) for each in members if _is_mirror(each)]
            spaces = await self.reader.list(objects.NAMESPACES, Selection(labels=keys.MEMBER_NAME))
            mirrors = [(MANAGEDCLUSTERS, each, each.metadata.name) for each in managed if _is_mirror(each)]
            mirrors += [(objects.NAMESPACES, each, each.metadata.labels[keys.MEMBER_NAME]) for each in spaces]
            found += checks.orphans(mirrors, self._members, kubectl=kubectl)
            found += checks.orphans(copies, self._managed, kubectl=kubectl)
        return found

    async def _fields(self, name: str) -> Iterable[findings.Finding]:
        return checks.records(self._managed.get(name), self._members.get(name), kubectl=self.kubectl)

    async def _state(self, name: str) -> Iterable[findings.Finding]:
        managed = self._managed.get(name)
        pending = any(each.cluster == name and not each.decided and not content_flaw(each) for each in self._requests)
        return checks.state(view_of(managed, self._members.get(name)), managed, pending=pending)


def _is_mirror(obj: Unknown) -> bool:
    return keys.ORIGIN in obj.metadata.annotations
