"""`fleet leave`: removes a cluster, from the hub or from the worker.

Invariant: what is deleted was shown and confirmed, each deletion names the UID, and namespaces stay.
"""

from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from fleet.api import keys
from fleet.api.clusters import ManagedCluster, MemberCluster, condition_of
from fleet.api.resources import MANAGEDCLUSTERS, MEMBERCLUSTERS
from fleet.commands.objects import confirm
from fleet.core.view import Door, origin_of
from vkubelet.api import objects
from vkubelet.api.objects import Json, Key, Resource, Unknown
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Progress, Terminal
from vkubelet.errors import NotFound

TOKEN_SECRET: Final = "hub-token"
Record = tuple[Resource[Unknown], Unknown]
"""One of the two records of a cluster."""
_EVERY: Final = 1.0
_WAITS: Final = {
    MANAGEDCLUSTERS.kind: "its works and addons are removed",
    MEMBERCLUSTERS.kind: "its agent has to acknowledge that it leaves",
}
"""What the hub does while a record is deleted, where this has no message about it."""


@frozen(kw_only=True)
class Leave:
    """One run of the command on the hub; after `force_after` seconds, if that is set, the hub removes what the agent did not."""

    choice: clusters.Choice
    name: str
    force_after: int | None
    yes: bool
    timeout: float
    terminal: Terminal
    clock: Clock = field(factory=SystemClock)

    async def run(self) -> Json:
        """Deletes the record and waits until it is deleted. Raises VKubeletError."""
        async with clusters.opened(self.choice) as hub:
            records = await self._records(hub)
            resource, found = records[0]
            what = f"{resource.kind} {self.name}"
            confirm(self.terminal, f"Delete {what}, and with it all works and addons of the cluster?", yes=self.yes)
            with clusters.explained(self.choice):
                await self._limit(hub, records)
                await hub.delete(resource, self.name, uid=found.metadata.uid)
            for each, record in records:
                await self._follow(hub, each, record.metadata.uid)
        self.terminal.write_line(f"{what} is deleted. Namespace {self.name} stays on the hub, and the agent in the worker.")
        self.terminal.write_line("To remove the agent, in the worker run: fleet leave --here")
        return {"name": self.name, "deleted": [what]}

    async def _limit(self, hub: Client, records: Sequence[Record]) -> None:
        """Annotates the records with the time after which their removal is forced, if there is one. Raises ApiError."""
        if self.force_after is None:
            return
        for resource, found in records:
            change = {"metadata": {"uid": found.metadata.uid, "annotations": {keys.FORCE_CLEANUP: str(self.force_after)}}}
            await hub.patch(resource, self.name, change, kind=PatchKind.MERGE)

    async def _records(self, hub: Client) -> list[Record]:
        """Returns the record by whose deletion the cluster leaves, then its mirror, which the hub deletes. Raises CommandFailed."""
        found = {}
        with clusters.explained(self.choice):
            for resource in (MANAGEDCLUSTERS, MEMBERCLUSTERS):
                found[resource.kind] = await clusters.find_named(hub, resource, self.name)
        managed, member = found[MANAGEDCLUSTERS.kind], found[MEMBERCLUSTERS.kind]
        if managed is None and member is None:
            raise clusters.CommandFailed(f"the {self.choice.title} has no cluster {self.name}; to list them run: fleet get clusters")
        origin = origin_of(ManagedCluster.parse(managed) if managed else None, MemberCluster.parse(member) if member else None)
        pairs = [(MANAGEDCLUSTERS, managed), (MEMBERCLUSTERS, member)]
        if member is not None and origin.door is Door.KUBEFLEET:
            pairs.reverse()
        first, *others = [(resource, obj) for resource, obj in pairs if obj is not None]
        # A record that another client has created stays.
        return [first, *(each for each in others if each[1].metadata.annotations.get(keys.ORIGIN) == origin.door.value)]

    async def _follow(self, hub: Client, resource: Resource[Unknown], uid: str) -> None:
        progress = Progress(self.terminal, self.clock)
        try:
            while True:
                with clusters.explained(self.choice):
                    found = await clusters.find_named(hub, resource, self.name)
                if found is None or found.metadata.uid != uid:
                    return
                left = condition_of(ManagedCluster.parse(found).conditions, "Deleting")
                text = left.message if left is not None and left.message else _WAITS[resource.kind]
                progress.update(text)
                if progress.seconds >= self.timeout:
                    remedy = f"if its agent is gone for ever, run: fleet leave {self.name} --force-after 60"
                    raise clusters.CommandFailed(f"{resource.kind} {self.name} is not deleted after {self.timeout:.0f} s: {text}; {remedy}")
                await self.clock.sleep(_EVERY)
        finally:
            progress.end()


@frozen(kw_only=True)
class LeaveHere:
    """One run of the command in the worker: removes the agent."""

    choice: clusters.Choice
    namespace: str
    yes: bool
    terminal: Terminal

    async def run(self) -> Json:
        """Removes the agent with its rights and identities. Raises VKubeletError."""
        wide = keys.AGENT if self.namespace == keys.NAMESPACE else f"{keys.AGENT}-{self.namespace}"
        named: list[tuple[Resource[Unknown], Key]] = [
            (objects.DEPLOYMENTS, Key(self.namespace, keys.AGENT)),
            *((objects.SECRETS, Key(self.namespace, name)) for name in (keys.HUB_SECRET, keys.BOOTSTRAP_SECRET, TOKEN_SECRET)),
            (objects.CONFIGMAPS, Key(self.namespace, keys.AGENT)),
            *((each, Key(self.namespace, keys.AGENT)) for each in (objects.ROLEBINDINGS, objects.ROLES, objects.SERVICEACCOUNTS)),
            *((each, Key("", wide)) for each in (objects.CLUSTERROLEBINDINGS, objects.CLUSTERROLES)),
        ]
        async with clusters.opened(self.choice) as worker:
            with clusters.explained(self.choice):
                found = [
                    (resource, obj)
                    for resource, key in named
                    if (obj := await clusters.find_named(worker, resource, key.name, namespace=key.namespace)) is not None
                ]
            if not found:
                self.terminal.write_line(f"The {self.choice.title} has no agent in namespace {self.namespace}.")
                return {"deleted": []}
            self.terminal.write_line(f"In the {self.choice.title} these objects are deleted:\n")
            for resource, obj in found:
                self.terminal.write_line(f"  {resource.kind} {obj.key}")
            confirm(self.terminal, "Delete them?", yes=self.yes)
            with clusters.explained(self.choice):
                for resource, obj in found:
                    await self._delete(worker, resource, obj)
        self.terminal.write_line(
            f"The agent is removed. Namespace {self.namespace} stays, and so does what works delivered to this cluster."
        )
        self.terminal.write_line("To remove the record of the cluster, on the hub run: fleet leave NAME")
        return {"deleted": [f"{resource.kind} {obj.key}" for resource, obj in found]}

    async def _delete(self, worker: Client, resource: Resource[Unknown], obj: Unknown) -> None:
        try:
            await worker.delete(resource, obj.key, uid=obj.metadata.uid, propagation="Background")
        except NotFound:
            return
