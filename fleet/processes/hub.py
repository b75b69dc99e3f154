"""The process `fleet hub`: watches the records of all clusters on every replica, and runs the controllers on the leader.

Invariant: no controller runs before the watches that it reads are complete, and a kind that is not served stops only its own controllers.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from fleet.api import keys
from fleet.clusters.guard import GuardRails
from fleet.clusters.hub import Hub, start
from fleet.clusters.mirror import Mirror
from fleet.clusters.profiles import Profiles
from fleet.clusters.registry import Registry
from fleet.hub_settings import HubProcessSettings
from fleet.kubefleet.exports import Exports
from fleet.kubefleet.members import Members
from fleet.ocm.acceptor import Acceptor
from fleet.ocm.approver import Approver
from fleet.ocm.health import Health
from fleet.ocm.sets import ClusterSets
from vkubelet.api.objects import DEPLOYMENTS, NAMESPACES, Key, Unknown
from vkubelet.client.connection import Connection
from vkubelet.clock import Clock, SystemClock
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import NotFound, VKubeletError
from vkubelet.process import LeaderProcess, run_process
from vkubelet.settings import FollowedSettings

log = logging.getLogger(__name__)

MISSING_KINDS = "MissingKinds"
_CHECKED_EVERY = 5.0
_MODULES = {"profiles": "inventory", "members": "kubefleet", "mirrors": "kubefleet", "exports": "kubefleet"}
"""Modules of the parts that are not of registration."""


class Part(Protocol):
    """One controller with its own watches."""

    @property
    def informers(self) -> Sequence[Informer[Unknown]]: ...

    async def run(self) -> None: ...


class HubProcess(LeaderProcess):
    """All controllers of the hub."""

    def __init__(self, settings: HubProcessSettings, *, connection: Connection, clock: Clock | None = None) -> None:
        super().__init__(
            connection=connection,
            settings=settings,
            field_manager=keys.HUB,
            component=keys.HUB,
            host=socket.gethostname(),
            lease=settings.leader.name or keys.HUB,
            clock=clock or SystemClock(),
        )
        hub = Hub(self.client, self.recorder, self.clock, self.metrics)
        self._own = own = settings.hub
        self.registry = Registry(hub, with_members="kubefleet" in settings.modules)
        self._namespaces = hub.informer(NAMESPACES)
        self._health = Health(hub, self.registry)
        sets = ClusterSets(hub, self.registry)
        self._parts: dict[str, Part] = {
            "acceptance": Acceptor(hub, self.registry, self._namespaces, namespace=own.namespace),
            "requests": Approver(hub, self.registry, trusted=own.auto_approve_users),
            "health": self._health,
            "sets": sets,
            "guard rails": GuardRails(hub, own.administrators),
        }
        if "inventory" in settings.modules:
            profiles = Profiles(
                hub,
                self.registry,
                sets.namespaces_of,
                bindings=sets.informers,
                namespace=own.profile_namespace,
                threshold=own.heartbeat_threshold,
            )
            sets.on_change(profiles.check_all)
            self._parts["profiles"] = profiles
        members = self.registry.members
        if members is not None:
            self._parts["members"] = Members(
                hub,
                self.registry,
                members,
                namespaces=self._namespaces,
                force_after=own.force_leave_after,
                published="profiles" in self._parts,
            )
            self._parts["mirrors"] = Mirror(hub, self.registry, members)
            self._parts["exports"] = Exports(hub, self.registry, members)

    @property
    def _informers(self) -> list[Informer[Unknown]]:
        own = [informer for part in self._parts.values() for informer in part.informers]
        return [*self.registry.informers, self._namespaces, *own]

    def watch(self, group: asyncio.TaskGroup) -> None:
        start(group, self._informers)
        group.create_task(self._health.watch(), name="breaks of watches")

    async def serve(self, group: asyncio.TaskGroup) -> None:
        for name, part in self._parts.items():
            group.create_task(part.run(), name=name)
        group.create_task(self._record_missing(), name="missing kinds")

    def unready(self) -> str | None:
        """Returns which watches of the hub are not complete, and why; a standby has all of them too."""
        missing = [f"{each.resource} ({each.last_error or 'not listed yet'})" for each in self._informers if not each.ever_synced]
        waiting = "".join(f"; {text}" for text in self.waiting())
        return f"watches of the hub are not synced: {'; '.join(missing)}{waiting}" if missing else None

    def waiting(self) -> list[str]:
        """Returns for each module that waits for kinds which the hub does not serve a sentence that names them."""
        found: dict[str, list[str]] = {}
        members = [] if self.registry.members is None else [self.registry.members.informer]
        owned = [("kubefleet", members), ("registration", self.registry.cluster_informers)]
        owned += [(_MODULES.get(name, "registration"), list(part.informers)) for name, part in self._parts.items()]
        for module, informers in owned:
            absent = [str(each.resource) for each in informers if not each.ever_synced and isinstance(each.last_error, NotFound)]
            found.setdefault(module, []).extend(absent)
        return [
            f"module {module} waits: the hub does not serve {', '.join(kinds)}; run: fleet init" for module, kinds in found.items() if kinds
        ]

    async def _record_missing(self) -> None:
        """Records each of these sentences once, about the Deployment of this process if there is one."""
        recorded: set[str] = set()
        while not all(each.ever_synced for each in self._informers):
            for text in self.waiting():
                if text not in recorded:
                    recorded.add(text)
                    await self._record(text)
            await self.clock.sleep(_CHECKED_EVERY)

    async def _record(self, text: str) -> None:
        log.warning("%s", text)
        try:
            found = await self.client.get(DEPLOYMENTS, Key(self._own.namespace, keys.HUB))
        except VKubeletError as error:
            log.debug("no Event, as the Deployment cannot be read: %s", error)
            return
        self.recorder.event(ObjectReference.of(DEPLOYMENTS, found), MISSING_KINDS, text, warning=True)


def run_hub(read: Callable[[], HubProcessSettings]) -> None:
    """Runs in this process until SIGTERM or SIGINT, polling `read` for changed settings. Raises VKubeletError."""
    chosen = read()
    followed = FollowedSettings(chosen, read=lambda: (read(), None))
    run_process(lambda connection: HubProcess(chosen, connection=connection), followed)
