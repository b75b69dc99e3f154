"""The settings of `fleet agent`.

Invariant: a value that cannot work is refused at the start, by its path in YAML.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from attrs import field, frozen

from fleet.api import keys
from vkubelet import settings
from vkubelet.api.names import is_dns_subdomain
from vkubelet.api.objects import Json, JsonView
from vkubelet.errors import SettingsError

OCM: Final = "ocm"
KUBEFLEET: Final = "kubefleet"
_SHORTEST_CERTIFICATE: Final = 3600


@frozen(kw_only=True)
class ClientConfig:
    """An address of the worker's API server, as published in its ManagedCluster."""

    url: str
    """URL with the scheme https."""
    ca_bundle: str = ""
    """CA certificates as base64; empty: those of the client."""


@frozen(kw_only=True)
class TokenSettings:
    """The token by which a worker is a member of a hub with KubeFleet's API; exactly one of the three."""

    file: str = ""
    """File, such as that of a projected volume."""
    secret: str = ""
    """Secret in `agent.namespace` with the key `token`."""
    provider: str = ""
    """Name of an installed token provider (entry point `fleet.token_providers`)."""


@frozen(kw_only=True)
class AgentSettings:
    """The section `agent:`."""

    cluster: str = ""
    """Name of this cluster on the hub."""
    namespace: str = keys.NAMESPACE
    """Namespace of the worker in which the agent runs and has its Secrets."""
    door: Literal["ocm", "kubefleet"] = OCM
    """API by which the cluster joins: Open Cluster Management with a certificate, or KubeFleet with a token."""
    bootstrap_secrets: Sequence[str] = (keys.BOOTSTRAP_SECRET,)
    """Secrets with the key `kubeconfig`, one for each hub; the next one is used when a hub denies the cluster or does not respond."""
    lost_hub_after: float = 600.0
    """Seconds without a renewal of the Lease after which the next hub is used, where there is one; and seconds for which a hub refuses the
    certificate before another one is requested."""
    labels: Mapping[str, str] = field(factory=dict)
    """Labels with which the record of the cluster is created."""
    annotations: Mapping[str, str] = field(factory=dict)
    """Annotations likewise; their names start with `agent.open-cluster-management.io`."""
    client_configs: Sequence[ClientConfig] = ()
    """Addresses of the worker's API server for others; none where nothing can reach it."""
    client_cert_expiration: int | None = None
    """Requested validity of certificates in seconds, at least 3600; null: the signer decides."""
    managed_clusters_group: bool = False
    """Request a certificate that also has the group of all clusters."""
    cluster_properties: bool = False
    """Report ClusterProperty objects (about.k8s.io) as claims too; they win over ClusterClaims of the same name."""
    managed_namespaces: bool = True
    """Create the namespaces that sets of the cluster prescribe; without it the agent has no right to write namespaces."""
    token: TokenSettings = field(factory=TokenSettings)
    """For the door kubefleet."""
    modules: Sequence[Literal["kubefleet"]] = ()
    """`kubefleet`: also report to the InternalMemberCluster, where the hub serves both APIs."""

    def __attrs_post_init__(self) -> None:
        problem = keys.name_problem(self.cluster) if self.cluster else "required: the name of this cluster on the hub"
        if problem:
            raise SettingsError("agent.cluster", problem)
        if not self.bootstrap_secrets or not all(map(is_dns_subdomain, self.bootstrap_secrets)):
            raise SettingsError("agent.bootstrap_secrets", "must name one or more Secrets")
        if self.client_cert_expiration is not None and self.client_cert_expiration < _SHORTEST_CERTIFICATE:
            raise SettingsError("agent.client_cert_expiration", f"must be {_SHORTEST_CERTIFICATE} or more seconds, or null")
        if self.lost_hub_after <= 0:
            raise SettingsError("agent.lost_hub_after", "must be more than 0 seconds")
        for at, each in enumerate(self.client_configs):
            if not each.url.startswith("https://"):
                raise SettingsError(f"agent.client_configs[{at}].url", "must begin with https://")
        for name in self.annotations:
            if not name.startswith(keys.AGENT_PREFIX):
                raise SettingsError("agent.annotations", f"{name} must begin with {keys.AGENT_PREFIX}")
        if self.door == KUBEFLEET and sum(map(bool, (self.token.file, self.token.secret, self.token.provider))) != 1:
            raise SettingsError("agent.token", "must have one of file, secret and provider, because agent.door is kubefleet")


@frozen(kw_only=True)
class AgentProcessSettings:
    """All settings of `fleet agent`; `cluster` is how it reaches the worker in which it runs."""

    agent: AgentSettings
    cluster: settings.ClusterSettings = field(factory=settings.ClusterSettings)
    leader: settings.LeaderSettings = field(factory=settings.LeaderSettings)
    health: settings.HealthSettings = field(factory=settings.HealthSettings)
    log: settings.LogSettings = field(factory=settings.LogSettings)


def read_agent_settings(data: JsonView) -> AgentProcessSettings:
    """Reads the decoded settings file. Raises SettingsError."""
    own = data.get("agent")
    namespace = own.get("namespace") if isinstance(own, dict) else None
    defaults: Json = {"agent": {}, "leader": {"enabled": True, "namespace": namespace or keys.NAMESPACE, "name": keys.AGENT}}
    return settings.convert(settings.merged(defaults, data), AgentProcessSettings)
