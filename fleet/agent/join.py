"""Joins a hub as a ManagedCluster: creates the record, requests the certificate, stores and renews it.

Invariant: a key is stored in the worker before anything is requested for it, so that a restart continues with the same request; the stored
certificate is replaced only by one that the hub issued.
"""

import asyncio
import base64
import logging
import random
from datetime import datetime
from typing import Final

from fleet.agent import identity
from fleet.agent.agent_settings import AgentSettings
from fleet.agent.identity import AGENT, CLUSTER, KUBECONFIG, PENDING_KEY, Bootstrap, IssuedCertificate, agent_name
from fleet.agent.situation import Situation
from fleet.api import keys
from fleet.api.resources import MANAGEDCLUSTERS
from vkubelet.api.objects import CSRS, Unknown
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.control.certificates import (
    Issuer,
    Pair,
    PairSecret,
    RequestDenied,
    belongs_together,
    end_of,
    entries_of,
    is_request_of,
    new_key,
    pair_of,
    rotation_due,
)
from vkubelet.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unauthorized, Unavailable, VKubeletError

log = logging.getLogger(__name__)

REQUEST_LIMIT: Final = 10
"""Number of requests of one cluster that a hub holds; further ones would not be approved."""
_REFUSED_EVERY: Final = 30.0
_DENIED_FIRST, _DENIED_LIMIT = 30.0, 900.0
_LEFT_AT_RENEWAL: Final = (0.20, 0.25)
"""Share of its validity that a certificate has left when it is renewed; random, so that clusters that joined together disperse."""
_LEAST_PAUSE: Final = 60.0
"""Seconds from a renewal to the next one, or half of the validity that is left when that is less."""
_LONGEST_SLEEP: Final = 60.0
"""Seconds between two readings of the wall clock, which may be set, or go on while the machine is suspended."""


class CertificateExpired(VKubeletError):
    """The certificate expired before the hub issued the next one."""


class Registration:
    """The way of one worker to a certificate of a hub."""

    def __init__(self, settings: AgentSettings, store: PairSecret, *, situation: Situation, clock: Clock) -> None:
        self.answered_at = clock.monotonic()
        """Time of the last answer of the hub."""
        self.rotation_problem = ""
        """Why the certificate is not renewed although that is due."""
        self._settings = settings
        self._store = store
        self._situation = situation
        self._clock = clock
        self._denied = Backoff(first=_DENIED_FIRST, limit=_DENIED_LIMIT)
        self._failed = Backoff(first=1.0, limit=_REFUSED_EVERY)

    async def join(self, bootstrap: Bootstrap) -> Pair:
        """Asks until the hub has issued a certificate, and stores that."""
        self.answered_at = self._clock.monotonic()
        async with Client(bootstrap.connection, field_manager=keys.AGENT, clock=self._clock) as hub:
            return await self._until_issued(hub, bootstrap, first=True)

    async def renew(self, hub: Client, issued: IssuedCertificate, bootstrap: Bootstrap) -> None:
        """Replaces the certificate before it expires, until cancelled. Raises CertificateExpired."""
        while True:
            await self._sleep_until(rotation_due(issued.pair.certificate, 1 - random.uniform(*_LEFT_AT_RENEWAL)))
            try:
                async with asyncio.TaskGroup() as group:
                    limit = group.create_task(self._count_down(issued.pair))
                    issued.pair = await self._until_issued(hub, bootstrap, first=False)
                    limit.cancel()
            except* CertificateExpired as expired:
                raise CertificateExpired(str(expired.exceptions[0])) from expired
            self.rotation_problem = ""
            log.info("certificate renewed")
            # A signer may issue certificates that are old already, as it backdates them by more than they last.
            await self._clock.sleep(min(_LEAST_PAUSE, (end_of(issued.pair) - self._clock.now()).total_seconds() / 2))

    async def _count_down(self, pair: Pair) -> None:
        end = end_of(pair)
        await self._sleep_until(self._clock.now() + (end - self._clock.now()) / 2)
        remedy = f"on the hub run: fleet accept {self._settings.cluster}"
        self._situation.warns(
            "CertificateExpires", f"the hub has not renewed the certificate, which expires at {end:%Y-%m-%d %H:%M}Z; {remedy}"
        )
        await self._sleep_until(end)
        raise CertificateExpired("the certificate expired before the hub renewed it")

    async def _sleep_until(self, moment: datetime) -> None:
        while (left := (moment - self._clock.now()).total_seconds()) > 0:
            await self._clock.sleep(min(left, _LONGEST_SLEEP))

    # --- Requests ----------------------------------------------------------------------------------------------------------------------

    async def _until_issued(self, hub: Client, bootstrap: Bootstrap, *, first: bool) -> Pair:
        while True:
            try:
                if first:
                    await self._ensure_record(hub)
                return await self._issue(hub, bootstrap, first=first)
            except VKubeletError as error:
                if not isinstance(error, ApiError) or error.status:
                    self.answered_at = self._clock.monotonic()
                problem, wait = self._judged(error, hub.connection.url)
                self._report(problem, first=first)
                if isinstance(error, RequestDenied):
                    await self._discard_key()
            await self._clock.sleep(wait)

    def _judged(self, error: VKubeletError, url: str) -> tuple[str, float]:
        """Returns what to report about a failed attempt, and the seconds until the next one."""
        if isinstance(error, RequestDenied):
            wait = self._denied.next()
            return f"{error}; the next request follows in {wait:.0f} s, on the hub run then: fleet accept {self._settings.cluster}", wait
        if isinstance(error, Unauthorized):
            remedy = "on the hub run `fleet init` for a new token, then run the printed `fleet join`"
            return f"the hub {url} refuses the token or certificate of this cluster: {error.message}; {remedy}", _REFUSED_EVERY
        if isinstance(error, Forbidden):
            return f"the hub {url} refuses: {error}; on the hub run: fleet init", _REFUSED_EVERY
        return f"cannot join the hub {url}: {error}", self._failed.next()

    def _report(self, problem: str, *, first: bool) -> None:
        if first:
            self._situation.waits("CannotJoin", problem)
        elif problem != self.rotation_problem:
            self.rotation_problem = problem
            self._situation.warns("CertificateNotRenewed", problem)

    async def _ensure_record(self, hub: Client) -> None:
        """Creates the record; one that exists is left as it is, and whether it is that of this cluster is for the hub to decide."""
        try:
            await hub.get(MANAGEDCLUSTERS, self._settings.cluster)
        except NotFound:
            try:
                await hub.create(MANAGEDCLUSTERS, identity.record(self._settings))
            except AlreadyExists:
                return
            self._situation.proceeds("RecordCreated", f"created ManagedCluster {self._settings.cluster} on the hub")

    async def _issue(self, hub: Client, bootstrap: Bootstrap, *, first: bool) -> Pair:
        """Requests one certificate and stores it. Raises ApiError, RequestDenied, Unavailable."""
        stored = await self._store.load()
        agent, key = agent_name(stored), stored.get(PENDING_KEY)
        owner = {CLUSTER: self._settings.cluster.encode(), AGENT: agent.encode()}
        if key is None:
            known = pair_of(stored) if first else None
            if known is not None and not identity.flaw(stored, bootstrap, self._settings.cluster, now=self._clock.now()):
                # It was stored, and the answer to that did not arrive: another request would need a person again.
                return known
            key = new_key()
            await self._store.save({**owner, PENDING_KEY: key})
        issuer = Issuer(client=hub, clock=self._clock, waits=self._waits_for_approval if first else _approved_soon)
        name = await self._find_request(hub, key) or await issuer.post(identity.certificate_request(self._settings, agent), key)
        pair = Pair(await issuer.collect(name, still_wanted=self._answers), key)
        if not belongs_together(pair):
            raise RequestDenied(f"certificate request {name} got a certificate of another key")
        await self._store.save(
            {**entries_of(pair), **owner, KUBECONFIG: bootstrap.issued_kubeconfig(self._settings.cluster), PENDING_KEY: None}
        )
        self._denied.reset()
        self._failed.reset()
        return pair

    async def _find_request(self, hub: Client, key: bytes) -> str:
        """Returns the name of the request that exists for this key, "" for none. Raises Unavailable when no further one may be posted."""
        cluster = self._settings.cluster
        listed = (await hub.list(CSRS, Selection(labels=f"{keys.CLUSTER_NAME}={cluster}"))).items
        self.answered_at = self._clock.monotonic()
        own = [each.metadata.name for each in listed if is_request_of(_requested(each), key)]
        if not own and len(listed) >= REQUEST_LIMIT:
            remedy = f"on the hub run: kubectl delete certificatesigningrequests -l {keys.CLUSTER_NAME}={cluster}"
            raise Unavailable(f"the hub has {len(listed)} certificate requests of cluster {cluster} already; {remedy}")
        return own[0] if own else ""

    def _answers(self) -> bool:
        """Notes that the hub has answered; called between two reads of a request."""
        self.answered_at = self._clock.monotonic()
        return True

    def _waits_for_approval(self, name: str) -> None:
        remedy = f"on the hub run: fleet accept {self._settings.cluster}"
        self._situation.waits("RequestPending", f"certificate request {name} is not approved; {remedy}")

    async def _discard_key(self) -> None:
        try:
            await self._store.save({PENDING_KEY: None})
        except VKubeletError as error:
            self._situation.warns("SecretNotWritten", f"cannot write Secret {self._store.key}: {error}")


def _approved_soon(name: str) -> None:
    """The hub approves a renewal by itself; where it does not, the time that is left decides when that is reported."""


def _requested(csr: Unknown) -> bytes:
    try:
        return base64.b64decode(csr.body["spec"]["request"], validate=True)
    except (KeyError, TypeError, ValueError):
        return b""
