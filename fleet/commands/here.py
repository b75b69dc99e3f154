"""`fleet doctor --here`: examines the agent in a worker, and its hub as the agent reaches it.

Invariant: the key of the agent is used to read from the hub alone, and never shown.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import yaml
from attrs import define, evolve, field, frozen

from fleet.api import keys
from fleet.api.clusters import ManagedCluster
from fleet.api.resources import CLUSTER_LEASES, MANAGEDCLUSTERS
from fleet.commands import checks
from vkubelet.api import objects
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json, JsonView, Key
from vkubelet.api.rbac import Rule, checks_of
from vkubelet.client.connection import Connection, connection_from_kubeconfig
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters, examination, findings, reading
from vkubelet.control.certificates import CERTIFICATE, KEY, PairSecret
from vkubelet.errors import NotFound, SettingsError, Unauthorized

SETTINGS: Final = "settings.yaml"
JOIN: Final = "on the hub run `fleet init`, and the line that it prints in this cluster"


@frozen(kw_only=True)
class Agent:
    """What the settings of an agent mean for its worker."""

    cluster: str
    secrets: Sequence[str]
    """The bootstrap Secrets."""
    member: bool
    """Whether it joins with a token instead of a certificate."""
    token: str = ""
    """Secret with that token; "" when it has another source."""
    rules: Sequence[Rule]


Read = Callable[[JsonView], Agent]
"""Reads the settings file. Raises SettingsError."""


def issued_kubeconfig(bootstrap: bytes, entries: Mapping[str, bytes], *, token: bytes) -> bytes:
    """Returns the kubeconfig of a bootstrap Secret with the identity that its hub issued, or the token of a member, instead of its own."""
    body, issued = decode_yaml(bootstrap), decode_yaml(entries.get("kubeconfig", b"{}")) or {}
    user: Json = {"token": token.decode("ascii", "replace").strip()} if token else {}
    if CERTIFICATE in entries and KEY in entries and _server_of(issued) == _server_of(body):
        user = {f"client-{name}-data": base64.b64encode(entries[at]).decode() for name, at in (("certificate", CERTIFICATE), ("key", KEY))}
    if user:
        body["users"] = [{**each, "user": user} for each in body["users"]]
    return yaml.safe_dump(body).encode()


def _server_of(kubeconfig: JsonView) -> object:
    return [each["cluster"]["server"] for each in kubeconfig.get("clusters") or ()]


@define(kw_only=True)
class WorkerExamination:
    """Examines the agent in a namespace of the worker."""

    reader: reading.Reader
    log: examination.Log
    read: Read
    namespace: str
    clock: Clock = field(factory=SystemClock)
    _agent: Agent | None = field(default=None, init=False)
    _entries: Mapping[str, bytes] = field(factory=dict, init=False)

    async def run(self) -> None:
        """Performs all checks."""
        subject, check = self.reader.choice.title, self.log.check
        await check(subject, "API server", examination.server(self.reader, self.clock))
        await check(subject, "settings", self._settings())
        await check(subject, "process", self._process())
        await check(subject, "reports", self._reports())
        if self._agent is None:
            return
        await check(subject, "rights", self._rights(self._agent))
        if not self._agent.member:
            await check(subject, "certificate", self._certificate(self._agent))
        for secret in self._agent.secrets:
            await check(f"hub of Secret {secret}", "connection", self._hub(self._agent, secret))

    async def _settings(self) -> Iterable[findings.Finding]:
        found = await self.reader.get(objects.CONFIGMAPS, Key(self.namespace, keys.AGENT))
        if found is None:
            return [findings.error(f"namespace {self.namespace} has no agent; {JOIN}")]
        try:
            self._agent = self.read(decode_yaml((found.body.get("data") or {}).get(SETTINGS, "{}")) or {})
        except (SettingsError, yaml.YAMLError) as problem:
            edit = f"{self.reader.choice.kubectl} edit configmap -n {self.namespace} {keys.AGENT}"
            return [findings.error(f"ConfigMap {found.key}, key {SETTINGS}: {problem}", edit)]
        return ()

    async def _process(self) -> Iterable[findings.Finding]:
        key = Key(self.namespace, keys.AGENT)
        deployment, lease = await self.reader.get(objects.DEPLOYMENTS, key), await self.reader.get(CLUSTER_LEASES, key)
        return checks.process(key, deployment, lease, now=self.clock.now(), kubectl=self.reader.choice.kubectl)

    async def _reports(self) -> Iterable[findings.Finding]:
        about = f"involvedObject.kind=Deployment,involvedObject.name={keys.AGENT}"
        return checks.complaints(await self.reader.list(objects.EVENTS, Selection(self.namespace, fields=about)), now=self.clock.now())

    async def _rights(self, agent: Agent) -> Iterable[findings.Finding]:
        account = Key(self.namespace, keys.AGENT)
        lacking = await examination.lacking(self.reader, account, checks_of(agent.rules))
        return checks.rights(account, lacking, remedy=f"fleet join --hub URL --name {agent.cluster} --token TOKEN --ca-hash HASH")

    async def _secret(self, name: str) -> Mapping[str, bytes]:
        with clusters.explained(self.reader.choice):
            return await PairSecret(self.reader.client, Key(self.namespace, name)).load()

    async def _certificate(self, agent: Agent) -> Iterable[findings.Finding]:
        self._entries = await self._secret(keys.HUB_SECRET)
        return checks.identity(f"{self.namespace}/{keys.HUB_SECRET}", agent.cluster, self._entries, now=self.clock.now())

    # --- The hub, as the agent reaches it -----------------------------------------------------------------------------------------------

    async def _hub(self, agent: Agent, secret: str) -> Iterable[findings.Finding]:
        where = f"Secret {self.namespace}/{secret}"
        bootstrap = (await self._secret(secret)).get("kubeconfig", b"")
        if not bootstrap:
            return [findings.error(f'{where} does not exist, or has no key "kubeconfig"; {JOIN}')]
        token = (await self._secret(agent.token)).get("token", b"") if agent.token else b""
        try:
            first = connection_from_kubeconfig(bootstrap)
            connection = connection_from_kubeconfig(issued_kubeconfig(bootstrap, self._entries, token=token))
        except SettingsError as problem:
            return [findings.error(f"{where}, key kubeconfig: {problem}; {JOIN}")]
        if first.expires is not None and first.expires <= self.clock.now() and CERTIFICATE not in self._entries and not agent.member:
            return [findings.error(f"the token in {where} has expired, and the agent has no certificate; {JOIN}")]
        return await self._asked(agent, connection, where)

    async def _asked(self, agent: Agent, connection: Connection, where: str) -> Iterable[findings.Finding]:
        choice = evolve(self.reader.choice, what=f"hub {connection.url}", flags=where, kubeconfig=None, context="")
        async with Client(connection, clock=self.clock) as hub:
            found = await examination.server(reading.Reader(hub, choice), self.clock)
            if agent.member or any(each.level is findings.Level.ERROR for each in found):
                return found
            try:
                with clusters.explained(choice, passing=(NotFound, Unauthorized)):
                    record = ManagedCluster.parse(await hub.get(MANAGEDCLUSTERS, agent.cluster))
            except NotFound:
                return [*found, findings.warning(f"the hub has no ManagedCluster {agent.cluster}; the agent creates it when it may")]
            except Unauthorized:
                return [*found, findings.error(f"the hub {connection.url} refuses the identity of the agent; {JOIN}")]
        return [*found, *checks.consent(agent.cluster, record)]
