"""`fleet get clusters`: the clusters of a hub, with what is wrong and what to do.

Invariant: the result has the complete view of each cluster, of which the table shows a part.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import attrs
from attrs import frozen

from fleet.api import keys
from fleet.api.clusters import ManagedCluster, MemberCluster
from fleet.api.resources import MANAGEDCLUSTERS, MEMBERCLUSTERS
from fleet.core.view import Door, View, view_of
from vkubelet.api.objects import CSRS, Json, Resource, Unknown
from vkubelet.api.quantity import Quantity
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import rfc3339
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Terminal, table
from vkubelet.errors import NotFound

HEAD = ("NAME", "DOOR", "ACCEPTED", "JOINED", "AVAILABLE", "VERSION", "CPU", "MEMORY", "PROBLEM")


@frozen(kw_only=True)
class Get:
    """One run of the command."""

    choice: clusters.Choice
    terminal: Terminal

    async def run(self) -> list[Json]:
        """Prints the clusters; returns the view of each. Raises VKubeletError."""
        async with clusters.opened(self.choice) as hub:
            with clusters.explained(self.choice):
                views, pending = await self._views(hub), await self._pending(hub)
        for line in table([HEAD, *(_row(view, pending) for view in views)]):
            self.terminal.write_line(line)
        return [{**_encoded(view), "problem": problem(view, pending)} for view in views]

    async def _views(self, hub: Client) -> list[View]:
        managed = {each.metadata.name: ManagedCluster.parse(each) for each in await _listed(hub, MANAGEDCLUSTERS)}
        members = {each.metadata.name: MemberCluster.parse(each) for each in await _listed(hub, MEMBERCLUSTERS)}
        return [view_of(managed.get(name), members.get(name)) for name in sorted(managed.keys() | members.keys())]

    async def _pending(self, hub: Client) -> set[str]:
        """Returns the clusters with a request without a decision."""
        listed = (await hub.list(CSRS, Selection(labels=keys.CLUSTER_NAME))).items
        undecided = [each for each in listed if not (each.body.get("status") or {}).get("conditions")]
        return {each.metadata.labels[keys.CLUSTER_NAME] for each in undecided}


async def _listed(hub: Client, resource: Resource[Unknown]) -> Sequence[Unknown]:
    try:
        return (await hub.list(resource)).items
    except NotFound:
        return ()


def problem(view: View, pending: set[str]) -> str:
    """Returns what is wrong with a cluster, with the remedy; "" when nothing is (pure)."""
    accept = f"on the hub run: fleet accept {view.name}"
    if view.leaving:
        return f"it is being removed; to follow that run: fleet leave {view.name}"
    if not view.accepted or (view.door is Door.OCM and view.name in pending and not view.joined):
        return f"{'a request waits for approval' if view.name in pending else 'not accepted'}; {accept}"
    if view.problems:
        return "; ".join(map(str, view.problems))
    if not view.joined:
        return "its agent has not joined; in the worker run: fleet join"
    if view.name in pending:
        return f"the renewal of its certificate, or another cluster of its name, waits for approval; {accept}"
    if view.health.status != "True":
        return f"not available: {view.health.cause or 'its agent has not reported'}; in the worker check the agent"
    return ""


def _row(view: View, pending: set[str]) -> Sequence[str]:
    amounts = [str(view.usage.allocatable.get(name, "")) for name in ("cpu", "memory")]
    states = ["yes" if each else "no" for each in (view.accepted, view.joined)]
    return (view.name, view.door.name.lower(), *states, view.health.status, view.version, *amounts, problem(view, pending))


def _encoded(view: View) -> Json:
    return cast(Json, _plain(attrs.asdict(view, recurse=True)))


def _plain(value: object) -> Any:
    """Returns a value of ours as JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Quantity):
        return str(value)
    return getattr(value, "value", value)
