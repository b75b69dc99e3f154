"""`fleet join`: lets an agent in a worker join it to a hub, and waits until it has.

Invariant: the token is sent to no server whose certificate was not verified, and stored in a Secret of the worker alone.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Final

from attrs import evolve, field, frozen

from fleet.api import keys
from fleet.api.clusters import AGENT_HEALTHY, CLUSTER_JOINED, MEMBER_JOINED, InternalMemberCluster, ManagedCluster, holds
from fleet.api.resources import INTERNALMEMBERCLUSTERS, MANAGEDCLUSTERS
from fleet.commands.deployment import agent_deployment, bootstrap_kubeconfig, secret_body, settings_body
from fleet.commands.init import CA, PUBLIC, ca_hash
from fleet.commands.objects import apply_all, confirm
from fleet.commands.progress import Observed, Step, step_of
from vkubelet.api.objects import CONFIGMAPS, CSRS, EVENTS, SECRETS, Json, Key, Unknown
from vkubelet.api.rbac import Rule
from vkubelet.client.connection import Connection, connection_from_kubeconfig
from vkubelet.client.credentials import token_expiry
from vkubelet.client.rest import Client, Selection
from vkubelet.client.tls import Tls, TlsSource
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.manifests import commented
from vkubelet.commands.terminal import Progress, Terminal
from vkubelet.errors import ApiError, Forbidden, NotFound, SettingsError, Unauthorized, Unreachable

TOKEN_SECRET: Final = "hub-token"
KUBEFLEET: Final = "kubefleet"
_EVERY: Final = 1.0
_COMPARED_WITHIN: Final = 3.0
"""Seconds from joining on in which a hub that compares clocks has done so."""


@frozen(kw_only=True)
class JoinFlags:
    """What the worker joins, and how."""

    hub: str
    name: str
    token: str = field(repr=False)
    ca_hash: str = ""
    authority: bytes = b""
    """CA of the hub as PEM; empty: the one with `ca_hash`, else the roots of the system."""
    namespace: str = keys.NAMESPACE
    image: str = ""
    door: str = "ocm"
    labels: Mapping[str, str] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if not self.hub.startswith("https://"):
            raise SettingsError("--hub", "must be the URL of the hub's API server, beginning with https://")
        if keys.name_problem(self.name):
            raise SettingsError("--name", keys.name_problem(self.name))
        if not self.token:
            raise SettingsError("--token-file" if self.member else "--token", "is required; on the hub run: fleet init")

    @property
    def member(self) -> bool:
        return self.door == KUBEFLEET

    @property
    def settings(self) -> Json:
        """The section `agent:` of the settings of the agent."""
        own: Json = {"cluster": self.name, "namespace": self.namespace}
        if self.labels:
            own["labels"] = dict(self.labels)
        return {**own, "door": KUBEFLEET, "token": {"secret": TOKEN_SECRET}} if self.member else own


@frozen(kw_only=True)
class Join:
    """One run of the command; `roles` grant the agent its rights in the worker, for the reasons in `rules`."""

    choice: clusters.Choice
    flags: JoinFlags
    roles: Sequence[Json]
    rules: Sequence[Rule]
    only_print: bool = False
    foreground: bool = False
    """Whether the agent runs in the process of the caller, which goes on afterwards, instead of a Deployment."""
    yes: bool
    timeout: float
    terminal: Terminal
    clock: Clock = field(factory=SystemClock)

    async def run(self) -> Json:
        """Installs the agent and waits until the cluster is joined. Raises VKubeletError."""
        if self.only_print:
            # The hub is not asked: these manifests may be made where it cannot be reached.
            self.terminal.write_line(self._manifests(self._objects(self.flags.authority)).rstrip())
            return {}
        authority = await self._authority()
        connection = self._hub_connection(authority)
        taken = await self._check_token(connection)
        async with clusters.opened(self.choice) as worker:
            objects = self._objects(authority)
            self.terminal.write_line(f"In the {self.choice.title}, {worker.connection.url}, these objects are created:\n")
            self.terminal.write_line(self._manifests(_without_secrets(objects)))
            confirm(self.terminal, "Apply this?", yes=self.yes)
            await apply_all(worker, objects, choice=self.choice, terminal=self.terminal)
            if not self.foreground:
                async with Client(connection, clock=self.clock) as hub:
                    await self._wait(worker, hub, taken=taken)
        return {"name": self.flags.name, "hub": self.flags.hub, "joined": not self.foreground}

    def _objects(self, authority: bytes) -> list[Json]:
        flags = self.flags
        token = "" if flags.member else flags.token
        kubeconfig = bootstrap_kubeconfig(server=flags.hub, authority=authority, token=token)
        secrets = [secret_body(keys.BOOTSTRAP_SECRET, flags.namespace, {"kubeconfig": kubeconfig})]
        if flags.member:
            secrets.append(secret_body(TOKEN_SECRET, flags.namespace, {"token": flags.token}))
        runs = [] if self.foreground else [agent_deployment(flags.image, flags.namespace)]
        return [*self.roles, *secrets, settings_body(flags.settings, flags.namespace), *runs]

    def _manifests(self, objects: Sequence[Json]) -> str:
        return commented(objects, self.rules)

    # --- The hub, before any write ----------------------------------------------------------------------------------------------------

    async def _authority(self) -> bytes:
        """Returns the CA of the hub, after it was compared with the hash. Raises CommandFailed."""
        flags = self.flags
        if flags.authority or not flags.ca_hash:
            return flags.authority
        # Nothing is sent but this question: the certificate of the server is not verified yet.
        unverified = Connection(flags.hub, tls=Tls(TlsSource(insecure=True)))
        async with Client(unverified, clock=self.clock) as client:
            found = await self._answered(client, lambda: client.get(CONFIGMAPS, Key(PUBLIC, keys.HUB)))
        if isinstance(found, ApiError):
            remedy = "on the hub run: fleet init; or pass its CA with --ca-file"
            raise clusters.CommandFailed(f"the hub {flags.hub} does not show its CA: {found}; {remedy}")
        authority = str((found.body.get("data") or {}).get(CA, "")).encode()
        if ca_hash(authority) != flags.ca_hash:
            what = f"--ca-hash: the hub {flags.hub} has a CA with another hash, {ca_hash(authority)}"
            raise clusters.CommandFailed(f"{what}; check the URL, and on the hub run: fleet init")
        return authority

    async def _check_token(self, connection: Connection) -> bool:
        """Asks the hub with the token; returns whether the name is that of a cluster that is joined. Raises CommandFailed."""
        flags = self.flags
        async with Client(connection, clock=self.clock) as hub:
            key = Key(keys.member_namespace(flags.name), flags.name)
            if flags.member:
                found = await self._answered(hub, lambda: hub.get(INTERNALMEMBERCLUSTERS, key))
            else:
                found = await self._answered(hub, lambda: hub.get(MANAGEDCLUSTERS, flags.name))
        if isinstance(found, Unauthorized):
            raise clusters.CommandFailed(refused_token(flags.hub, flags.token, now=self.clock.now()))
        if isinstance(found, Forbidden) and not flags.member:
            raise clusters.CommandFailed(f"the hub {flags.hub} does not let this token join clusters: {found}; on the hub run: fleet init")
        return not isinstance(found, ApiError) and not flags.member and holds(ManagedCluster.parse(found).conditions, CLUSTER_JOINED)

    async def _answered(self, client: Client, ask: Callable[[], Awaitable[Unknown]]) -> Unknown | ApiError:
        """Asks until the hub answers, if only by a refusal. Raises CommandFailed when it does not in time."""
        progress = Progress(self.terminal, self.clock)
        try:
            while True:
                try:
                    return await ask()
                except Unreachable as error:
                    text = f"the hub {client.connection.url} is not reached: {error.message}; check --hub, and that the hub is up"
                except ApiError as error:
                    return error
                progress.update(text)
                if progress.seconds >= self.timeout:
                    raise clusters.CommandFailed(text)
                await self.clock.sleep(_EVERY)
        finally:
            progress.end()

    def _hub_connection(self, authority: bytes) -> Connection:
        text = bootstrap_kubeconfig(server=self.flags.hub, authority=authority, token=self.flags.token)
        return connection_from_kubeconfig(text.encode())

    # --- Waiting ----------------------------------------------------------------------------------------------------------------------

    async def _wait(self, worker: Client, hub: Client, *, taken: bool) -> None:
        progress, since, joined_at = Progress(self.terminal, self.clock), self.clock.now(), inf
        start = Observed(name=self.flags.name, hub=self.flags.hub, namespace=self.flags.namespace, taken=taken, since=since, now=since)
        try:
            while True:
                seen = await self._observe(worker, hub, start)
                step = await self._member_step(hub, seen) if self.flags.member else step_of(seen)
                progress.update(step.text)
                joined_at = min(joined_at, progress.seconds) if step.joined else inf
                if step.joined and (step.final or progress.seconds - joined_at >= _COMPARED_WITHIN):
                    return
                if progress.seconds >= self.timeout:
                    goes_on = "the agent goes on, and the same command continues from here"
                    raise clusters.CommandFailed(f"not joined after {progress.seconds:.0f} s: {step.text}; {goes_on}")
                await self.clock.sleep(_EVERY)
        finally:
            progress.end()

    async def _observe(self, worker: Client, hub: Client, start: Observed) -> Observed:
        with clusters.explained(self.choice):
            complaint = await self._complaint(worker, start.since)
            entries = await self._stored(worker)
        issued = "tls.crt" in entries and base64.b64decode(entries.get("cluster-name", "")).decode() == self.flags.name
        seen = evolve(start, now=self.clock.now(), complaint=complaint, issued=issued)
        if self.flags.member:
            return seen
        try:
            record = await hub.get(MANAGEDCLUSTERS, self.flags.name)
            requests = (await hub.list(CSRS, Selection(labels=f"{keys.CLUSTER_NAME}={self.flags.name}"))).items
            return evolve(seen, record=ManagedCluster.parse(record), requests=requests)
        except NotFound:
            return seen
        except Unauthorized:
            return evolve(seen, problem=refused_token(self.flags.hub, self.flags.token, now=seen.now))
        except ApiError as error:
            return evolve(seen, problem=f"the hub {self.flags.hub} is not reached: {error}; check that the hub is up")

    async def _stored(self, worker: Client) -> Mapping[str, str]:
        """Returns the entries of the Secret with the issued certificate, of which the key is not used."""
        found = await clusters.find_named(worker, SECRETS, keys.HUB_SECRET, namespace=self.flags.namespace)
        return (found.body.get("data") or {}) if found is not None else {}

    async def _complaint(self, worker: Client, since: datetime) -> str:
        """Returns the last warning of the agent since the start of the command."""
        where = Selection(self.flags.namespace, fields=f"involvedObject.kind=Deployment,involvedObject.name={keys.AGENT},type=Warning")
        events = [each.body for each in (await worker.list(EVENTS, where)).items]
        recent = [each for each in events if str(each.get("lastTimestamp") or "") >= f"{since:%Y-%m-%dT%H:%M:%SZ}"]
        last = max(recent, key=lambda each: str(each["lastTimestamp"]), default={})
        return str(last.get("message", ""))

    async def _member_step(self, hub: Client, seen: Observed) -> Step:
        name = self.flags.name
        try:
            found = await hub.get(INTERNALMEMBERCLUSTERS, Key(keys.member_namespace(name), name))
        except (NotFound, Forbidden):
            return Step(
                f"the hub has no MemberCluster {name} with this identity; on the hub create it: kubectl apply -f membercluster.yaml"
            )
        except Unauthorized:
            return Step(refused_token(self.flags.hub, self.flags.token, now=seen.now))
        except ApiError as error:
            return Step(f"the hub {self.flags.hub} is not reached: {error}; check that the hub is up")
        agent = InternalMemberCluster.parse(found).state.agent()
        if agent is None or not holds(agent.conditions, MEMBER_JOINED):
            return Step(f"the agent has not reported yet: {seen.complaint or f'in the worker check: kubectl -n {seen.namespace} get pods'}")
        healthy = "" if holds(agent.conditions, AGENT_HEALTHY) else ", and its API server is not healthy"
        return Step(f"cluster {name} is a member of the hub {self.flags.hub}{healthy}", joined=True)


def refused_token(hub: str, token: str, *, now: datetime) -> str:
    """Returns what is wrong with a token that a hub refused, with the remedy; never the token."""
    expiry = token_expiry(token)
    remedy = "on the hub run `fleet init` for a new one"
    if expiry is not None and expiry <= now:
        return f"the token expired at {expiry:%Y-%m-%d %H:%M}Z; {remedy}"
    return f"the hub {hub} refuses the token; {remedy}"


def _without_secrets(objects: Sequence[Json]) -> list[Json]:
    """Returns the objects for people: a Secret without its values."""
    return [{**each, "data": dict.fromkeys(each["data"], "<hidden>")} if each["kind"] == "Secret" else each for each in objects]
