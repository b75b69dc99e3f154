"""The identities of the agent on a hub: the one that may ask to join, and the one that the hub issued (pure).

Invariant: an issued identity counts for the hub that the bootstrap kubeconfig names, and for no other.
"""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Self

import yaml
from attrs import evolve, field, frozen

from fleet.agent.agent_settings import AgentSettings
from fleet.api import keys
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json, JsonView
from vkubelet.client import kubeconfig
from vkubelet.client.connection import Connection, connection_from_kubeconfig
from vkubelet.client.credentials import Credentials
from vkubelet.client.tls import ClientCertificate, Tls
from vkubelet.clock import Clock
from vkubelet.control.certificates import CERTIFICATE, KEY, Name, Pair, Request, belongs_together, common_name_of, end_of, pair_of
from vkubelet.errors import SettingsError

KUBECONFIG: Final = "kubeconfig"
CLUSTER: Final = "cluster-name"
AGENT: Final = "agent-name"
PENDING_KEY: Final = "request.key"
"""Entry of the Secret with the key of a request that is not signed yet, so that a restart continues with this request."""
_USER: Final = "agent"


@frozen(kw_only=True)
class Bootstrap:
    """The content of a bootstrap Secret."""

    secret: str
    connection: Connection = field(repr=False, eq=False)
    cluster: JsonView = field(repr=False)
    """The section of the kubeconfig about the hub: server, proxy, CA."""
    context: str
    digest: bytes = field(repr=False)
    """The complete kubeconfig."""

    @classmethod
    def parse(cls, secret: str, data: bytes) -> Self:
        """Reads the kubeconfig. Raises SettingsError naming the Secret and the field, never a value."""
        try:
            connection = connection_from_kubeconfig(data)
        except SettingsError as error:
            raise SettingsError(f"Secret {secret}, key {KUBECONFIG}", str(error)) from error
        access = kubeconfig.pick([kubeconfig.parse(data, KUBECONFIG, None)])
        return cls(
            secret=secret,
            connection=connection,
            cluster=access.cluster.values,
            context=str(decode_yaml(data)["current-context"]),
            digest=data,
        )

    def leads_to(self, other: "Bootstrap") -> bool:
        """Checks that both name the same hub, as a client reaches it."""
        return (self.cluster, self.context) == (other.cluster, other.context)

    def issued_kubeconfig(self, cluster: str) -> bytes:
        """Returns the kubeconfig of the issued identity, which names the files of its Secret."""
        user = {"client-certificate": CERTIFICATE, "client-key": KEY}
        context = {"cluster": "hub", "user": _USER, "namespace": cluster}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.context,
            "clusters": [{"name": "hub", "cluster": dict(self.cluster)}],
            "users": [{"name": _USER, "user": user}],
            "contexts": [{"name": self.context, "context": context}],
        }
        return yaml.safe_dump(body, sort_keys=False).encode()

    def connection_with(self, credentials: Credentials) -> Connection:
        """Returns the connection to the same hub with another identity alone."""
        tls = self.connection.tls
        plain = Tls(evolve(tls.source, certificate=None, key=None)) if tls is not None else None
        return evolve(self.connection, tls=plain, credentials=credentials)


class IssuedCertificate:
    """Credentials with a certificate that is replaced while connections use it: later requests use the next one."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    async def authorization(self, clock: Clock) -> str:
        return ""

    def certificate(self) -> ClientCertificate | None:
        return ClientCertificate(self.pair.certificate, self.pair.key)

    def expires(self) -> datetime | None:
        return end_of(self.pair)

    def invalidate(self, header: str) -> bool:
        return False


def agent_name(entries: Mapping[str, bytes]) -> str:
    """Returns the stored name of the agent, or a new one."""
    stored = entries.get(AGENT, b"").decode("ascii", "replace")
    return stored if stored and ":" not in stored else secrets.token_hex(8)


def flaw(entries: Mapping[str, bytes], bootstrap: Bootstrap, cluster: str, *, now: datetime) -> str:
    """Returns why the stored identity cannot be used; "" when it can. Its start is not checked, because the clock of
    the hub decides about that."""
    pair, text = pair_of(entries), entries.get(KUBECONFIG, b"")
    if pair is None or not belongs_together(pair):
        return "no certificate is stored"
    if AGENT not in entries or common_name_of(pair) != keys.user_name(cluster, agent_name(entries)):
        return "the stored certificate is that of another cluster"
    if not _same_hub(text, bootstrap):
        return f"Secret {bootstrap.secret} names another hub than the stored certificate"
    return "the stored certificate has expired" if now >= end_of(pair) else ""


def _same_hub(text: bytes, bootstrap: Bootstrap) -> bool:
    try:
        body = decode_yaml(text)
        return bool(body["clusters"][0]["cluster"] == bootstrap.cluster and body["current-context"] == bootstrap.context)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, IndexError, TypeError):
        return False


def certificate_request(settings: AgentSettings, agent: str) -> Request:
    """Returns what the agent of a cluster requests."""
    cluster = settings.cluster
    more = (keys.MANAGED_CLUSTERS_GROUP,) if settings.managed_clusters_group else ()
    return Request(
        name=Name(keys.user_name(cluster, agent), (keys.cluster_group(cluster), *more)),
        signer=keys.CLIENT_SIGNER,
        usages=keys.CLIENT_USAGES,
        prefix=f"{cluster}-",
        labels={keys.CLUSTER_NAME: cluster},
        seconds=settings.client_cert_expiration,
    )


def record(settings: AgentSettings) -> Json:
    """Returns the ManagedCluster with which the agent asks to join."""
    metadata: Json = {"name": settings.cluster}
    metadata |= {name: dict(values) for name, values in (("labels", settings.labels), ("annotations", settings.annotations)) if values}
    configs = [{"url": each.url, **({"caBundle": each.ca_bundle} if each.ca_bundle else {})} for each in settings.client_configs]
    return {"metadata": metadata, "spec": {"managedClusterClientConfigs": configs} if configs else {}}
