"""The hubs of one worker, one at a time: from the bootstrap Secret to the membership, and to the next hub where this one does not respond.

Invariant: a missing or invalid bootstrap Secret stops nothing; the agent reports it and waits. A change of the Secret is followed.
"""

import asyncio
from typing import Final

from fleet.agent.agent_settings import KUBEFLEET
from fleet.agent.identity import KUBECONFIG, Bootstrap, IssuedCertificate, flaw
from fleet.agent.members import MemberAgent
from fleet.agent.membership import Membership, Next, Over
from fleet.agent.namespaces import ManagedNamespaces, hub_label
from fleet.agent.tokens import token_source
from fleet.agent.worker import Worker
from fleet.api import keys
from vkubelet.api.objects import Key
from vkubelet.client.rest import Client
from vkubelet.control.certificates import CERTIFICATE, PairSecret, pair_of
from vkubelet.errors import SettingsError, VKubeletError, first_error

_SECRET_EVERY: Final = 10.0
_WATCHED_EVERY: Final = 5.0


class Hubs:
    """Joins the hubs of the settings in their order; `client` is that of the worker."""

    def __init__(self, worker: Worker, client: Client, store: PairSecret) -> None:
        self._worker = worker
        self._client = client
        self._store = store
        self._joined = False
        self._membership: Membership | None = None

    async def run(self) -> None:
        """Runs until cancelled. Raises LeadershipLost."""
        names = self._worker.settings.bootstrap_secrets
        at = await self._first()
        while True:
            if await self._serve(names[at]) is Next.OTHER_HUB:
                at = (at + 1) % len(names)

    async def _first(self) -> int:
        """Returns the hub that issued the stored certificate, or the first."""
        for at, name in enumerate(self._worker.settings.bootstrap_secrets):
            try:
                bootstrap = await self._read(name)
                if not flaw(await self._store.load(), bootstrap, self._worker.settings.cluster, now=self._worker.clock.now()):
                    return at
            except VKubeletError:
                continue
        return 0

    async def _serve(self, secret: str) -> Next:
        bootstrap = await self._bootstrap(secret)
        if bootstrap is None:
            return Next.OTHER_HUB
        self._joined, self._membership, then = False, None, Next.AGAIN
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(bootstrap), name="bootstrap Secret")
                await (self._be_member(bootstrap) if self._worker.settings.door == KUBEFLEET else self._join(bootstrap))
        except* Over as ends:
            over = first_error(ends)
            then = over.then
            if over.discard:
                await self._discard()
        return then

    async def _join(self, bootstrap: Bootstrap) -> None:
        """Joins the hub and stays joined. Raises Over, LeadershipLost."""
        worker = self._worker
        stored = await self._load()
        pair, problem = pair_of(stored), flaw(stored, bootstrap, worker.settings.cluster, now=worker.clock.now())
        if problem or pair is None:
            worker.situation.proceeds("Joining", f"joining the hub {bootstrap.connection.url}, because {problem}")
            async with asyncio.TaskGroup() as group:
                watched = group.create_task(self._watch_bootstrap(), name="hub")
                pair = await worker.registration.join(bootstrap)
                watched.cancel()
        self._joined = True
        issued = IssuedCertificate(pair)
        connection = bootstrap.connection_with(issued)
        # Without a fence: a worker whose API server is down is reported too. The Lease on the hub keeps a second agent from writing.
        async with Client(connection, field_manager=keys.AGENT, clock=worker.clock, metrics=worker.metrics) as hub:
            async with asyncio.TaskGroup() as group:
                if KUBEFLEET in worker.settings.modules:
                    group.create_task(MemberAgent(worker=worker, hub=hub).run(), name="member")
                self._membership = joined = Membership(worker=worker, hub=hub, bootstrap=bootstrap, issued=issued)
                managed = ManagedNamespaces(
                    settings=worker.settings,
                    situation=worker.situation,
                    clock=worker.clock,
                    worker=self._client,
                    hub=hub,
                    record=joined.record,
                    label=hub_label(bootstrap.connection.url),
                )
                group.create_task(managed.run(), name="managed namespaces")
                await joined.run()

    async def _be_member(self, bootstrap: Bootstrap) -> None:
        """Reports to the InternalMemberCluster with the token of the settings, until cancelled."""
        worker, self._joined = self._worker, True
        connection = bootstrap.connection_with(token_source(worker.settings, self._client))
        async with Client(connection, field_manager=keys.AGENT, clock=worker.clock, metrics=worker.metrics) as hub:
            await MemberAgent(worker=worker, hub=hub, alone=True).run()

    async def _watch_bootstrap(self) -> None:
        """Stops joining when the hub does not answer, where another hub can be used. Raises Over."""
        settings, clock = self._worker.settings, self._worker.clock
        while True:
            await clock.sleep(_WATCHED_EVERY)
            silent = clock.monotonic() - self._worker.registration.answered_at
            if len(settings.bootstrap_secrets) > 1 and silent > settings.lost_hub_after:
                raise Over(Next.OTHER_HUB)

    # --- Secrets of the worker --------------------------------------------------------------------------------------------------------

    async def _bootstrap(self, secret: str) -> Bootstrap | None:
        """Waits for a valid bootstrap Secret; returns None when another hub has one."""
        while True:
            try:
                return await self._read(secret)
            except VKubeletError as error:
                self._worker.situation.waits("NoBootstrap", _remedy(secret, error, self._worker.settings.namespace))
            await self._worker.clock.sleep(_WATCHED_EVERY)
            if len(self._worker.settings.bootstrap_secrets) > 1:
                return None

    async def _read(self, secret: str) -> Bootstrap:
        """Reads a bootstrap Secret. Raises SettingsError, ApiError."""
        entries = await PairSecret(self._client, Key(self._worker.settings.namespace, secret)).load()
        if KUBECONFIG not in entries:
            raise SettingsError(f"Secret {secret}", f"does not exist, or has no key {KUBECONFIG}")
        return Bootstrap.parse(secret, entries[KUBECONFIG])

    async def _load(self) -> dict[str, bytes]:
        """Reads the stored identity; waits while the worker does not respond."""
        while True:
            try:
                return await self._store.load()
            except VKubeletError as error:
                self._worker.situation.waits("SecretNotRead", f"cannot read Secret {self._store.key} in the worker: {error}")
            await self._worker.clock.sleep(_WATCHED_EVERY)

    async def _discard(self) -> None:
        try:
            await self._store.save({CERTIFICATE: None})
        except VKubeletError as error:
            self._worker.situation.warns("SecretNotWritten", f"cannot write Secret {self._store.key} in the worker: {error}")

    async def _follow(self, bootstrap: Bootstrap) -> None:
        """Stops the membership when the Secret names another hub, and joining when it changes at all. Raises Over."""
        while True:
            await self._worker.clock.sleep(_SECRET_EVERY)
            try:
                found = await self._read(bootstrap.secret)
            except VKubeletError as error:
                self._worker.situation.warns("NoBootstrap", _remedy(bootstrap.secret, error, self._worker.settings.namespace))
                continue
            removed = self._membership is not None and self._membership.removed
            if found.digest != bootstrap.digest and (removed or not self._joined or not found.leads_to(bootstrap)):
                self._worker.situation.warns("BootstrapChanged", f"Secret {bootstrap.secret} changed and is followed")
                # To a hub that removed the cluster, a new Secret is the consent of the worker's owner to join again.
                raise Over(Next.AGAIN, discard=removed)


def _remedy(secret: str, error: VKubeletError, namespace: str) -> str:
    return f"the bootstrap kubeconfig cannot be used: {error}; in the worker run `fleet join`, or create Secret {secret} in {namespace}"
