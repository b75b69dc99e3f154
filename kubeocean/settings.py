"""Settings of the two processes of kubeocean: `provider:` of the process of a binding, and `manager:` of the manager.

Invariant: everything about a worker cluster is in its ClusterBinding. An invalid setting is refused when a process starts, by its name in
YAML.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind, problems_of
from vkubelet import settings
from vkubelet.api.names import is_dns_label
from vkubelet.api.objects import Json, JsonView
from vkubelet.control.shards import MOST_SHARDS
from vkubelet.errors import SettingsError
from vkubelet.https import HttpsSettings

MANAGER_LEASE = "kubeocean-manager"
LEAST_READING, LONGEST_READING = 2.0, 60.0
"""Seconds between two readings of the hub for a dashboard. Its ledger counts a reading for at most two minutes."""
_OWN_FLAGS = (("provider", "binding"), ("instance",))
_PLACES_OF_KINDS = (
    ("provider", "extra_kinds"),
    ("manager", "syncer_settings", "provider", "extra_kinds"),
    ("syncer", "settings", "provider", "extra_kinds"),
    ("extraKinds",),
)
"""Where the setting is in the files of the two processes, and in the values of the two charts."""
_OWN_VARIABLES = frozenset({"POD_IP", "POD_NAME"})


@frozen(kw_only=True)
class KubeoceanSettings:
    """The section `provider:` of the settings file; all times are seconds."""

    binding: str = ""
    """Name of the ClusterBinding this process serves."""
    probe_interval: float = 10.0
    """Interval of the probes of the worker's API server."""
    unreachable_after: float = 40.0
    """Silence of the worker after which the nodes are retained: kept, but closed to new pods."""
    reconnect_interval: float = 10.0
    """Delay before a failed connection is retried; a change of the binding or of its Secret retries at once."""
    retire_share: float = 0.1
    """Share of the nodes that may be retired within a minute without confirmation, but always one."""
    evictions_per_second: float = 10.0
    """Rate of reclaiming, for the entire binding."""
    unscheduled_after: float = 300.0
    """A physical pod that the worker has not scheduled for so long is deleted, so that its pod is replaced elsewhere."""
    unused_copy_after: float = 300.0
    """A ConfigMap or Secret copy that no pod has used for so long is deleted."""
    pod_network_probe_interval: float = 60.0
    """Interval of the connections to addresses of leased pods by which the condition PodNetworkRouted is found; 0: none."""
    pod_workers: int = 32
    """Number of physical pods that are reconciled concurrently."""
    time_zone: str = ""
    """IANA zone of time windows whose policy and binding name none; empty: `$TZ`, else UTC."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the computing cluster."""
    extra_kinds: Sequence[ExtraKind] = ()
    """Further kinds whose objects have mirrors in the worker, with the rewriting of labels and namespaces."""
    shards: int = 1
    """Number of parts into which the nodes are divided, each served by one of the replicas; 1: one replica serves all nodes."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.shards <= MOST_SHARDS:
            raise SettingsError("provider.shards", f"must be from 1 to {MOST_SHARDS}")
        for path, sentence in problems_of(self.extra_kinds):
            raise SettingsError(f"provider.extra_kinds{path}", sentence)


@frozen(kw_only=True)
class ManagerSettings:
    """The section `manager:` of the settings file; all times are seconds."""

    image: str = ""
    """Required: the image of the process of a binding; it contains the command `kubeocean`."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Pull policy of that image."""
    image_pull_secrets: Sequence[str] = ()
    """Names of Secrets in the namespace below, for a registry with authentication."""
    namespace: str = "kubeocean-system"
    """Namespace of the Deployments of bindings."""
    replicas: int = 2
    """Number of processes of each binding: one serves, or as many as it has shards; the others are on standby."""
    autoscaled: bool = False
    """A HorizontalPodAutoscaler sets the number of processes of each binding, and `replicas` is not written."""
    resources: Mapping[str, Any] = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    """Requests and limits of each of them, as in a container."""
    priority_class: str = ""
    """PriorityClass of their pods."""
    tolerations: Sequence[Mapping[str, Any]] = ()
    """Tolerations of their pods."""
    node_selector: Mapping[str, str] = {}
    """Labels of the nodes on which they may run; virtual nodes never count."""
    topology_spread: Sequence[Mapping[str, Any]] = ()
    """Topology spread constraints of their pods; one without a labelSelector applies to the pods of the same binding."""
    affinity: Mapping[str, Any] = {}
    """Affinity of their pods; virtual nodes are always excluded, and without a podAntiAffinity the replicas prefer different nodes."""
    pod_annotations: Mapping[str, str] = {}
    """Annotations of their pods."""
    pod_labels: Mapping[str, str] = {}
    """Labels of their pods, in addition to those that select them."""
    pod_security_context: Mapping[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    """Security context of their pods, which replaces the default."""
    extra_env: Sequence[Mapping[str, Any]] = ()
    """Environment variables of the container, such as HTTPS_PROXY and NO_PROXY."""
    extra_volumes: Sequence[Mapping[str, Any]] = ()
    """Volumes of their pods, such as CA certificates of a proxy."""
    extra_volume_mounts: Sequence[Mapping[str, Any]] = ()
    """Where the container mounts these volumes."""
    service_account_annotations: Mapping[str, str] = {}
    """Annotations of their ServiceAccount."""
    syncer_settings: Mapping[str, Any] = {}
    """Merged over the settings file of each of these processes, such as `provider: {time_zone: Europe/Berlin}`."""
    recheck_interval: float = 60.0
    """Interval of the checks whether worker clusters respond and which rights we have in them."""
    retry_limit: float = 30.0
    """Longest delay before a binding that cannot be served is rechecked."""
    workers: int = 32
    """Number of bindings that are reconciled concurrently; unreachable worker clusters must not delay the others."""

    def __attrs_post_init__(self) -> None:
        if not self.image:
            raise SettingsError("manager.image", "name the image of the processes that serve bindings")
        if not is_dns_label(self.namespace):
            raise SettingsError("manager.namespace", "must be the name of a namespace: lower case letters, digits and '-'")
        if self.replicas < 1:
            raise SettingsError("manager.replicas", "must be at least 1; to stop serving a binding, delete it")
        if self.recheck_interval <= 0 or self.retry_limit <= 0:
            raise SettingsError("manager.recheck_interval", "must be more than 0 seconds, and so must manager.retry_limit")
        if self.workers < 1:
            raise SettingsError("manager.workers", "must be at least 1")
        for variable in self.extra_env:
            if variable.get("name") in _OWN_VARIABLES:
                raise SettingsError("manager.extra_env", f"{variable['name']} is set by the manager; remove it")
        _check_syncer_settings(self.syncer_settings)

    @property
    def extra_kinds(self) -> Sequence[ExtraKind]:
        """Further kinds that the processes mirror, and for which their roles grant rights."""
        return settings.convert(self.syncer_settings.get("provider") or {}, KubeoceanSettings, path="provider").extra_kinds


@frozen(kw_only=True)
class DashboardSettings:
    """The section `dashboard:` of the settings file of the manager: pages for everyone whom the cluster authenticates."""

    enabled: bool = False
    """Serve the dashboard over HTTPS; each reader sees what SubjectAccessReviews of the cluster allow."""
    interval: float = 10.0
    """Seconds between two readings of bindings, nodes and pods while a page is open; without one they are read once a minute."""
    server: HttpsSettings = field(factory=HttpsSettings)
    """Its address, certificate and authentication."""

    def __attrs_post_init__(self) -> None:
        if not LEAST_READING <= self.interval <= LONGEST_READING:
            raise SettingsError("dashboard.interval", f"must be from {LEAST_READING:g} to {LONGEST_READING:g} seconds")


@frozen(kw_only=True)
class ManagerProcessSettings:
    """All settings of `kubeocean manager`."""

    manager: ManagerSettings
    dashboard: DashboardSettings = field(factory=DashboardSettings)
    cluster: settings.ClusterSettings = field(factory=settings.ClusterSettings)
    leader: settings.LeaderSettings = field(factory=settings.LeaderSettings)
    health: settings.HealthSettings = field(factory=settings.HealthSettings)
    log: settings.LogSettings = field(factory=settings.LogSettings)


def read_manager_settings(data: JsonView) -> ManagerProcessSettings:
    """Reads the decoded settings file of the manager. Raises SettingsError."""
    own = data.get("manager")
    if not isinstance(own, dict) or not own.get("image"):
        raise SettingsError("manager.image", "name the image of the processes that serve bindings")
    defaults: Json = {"leader": {"enabled": True, "namespace": own.get("namespace") or keys.NAMESPACE, "name": MANAGER_LEASE}}
    try:
        return settings.convert(settings.merged(defaults, data), ManagerProcessSettings)
    except SettingsError as error:
        if not error.path.startswith("server."):
            raise
        raise in_dashboard(error) from error


def in_dashboard(error: SettingsError) -> SettingsError:
    """Returns the same error with the name that a setting of the listener has in the file of the manager."""
    return SettingsError(f"dashboard.{error.path}", str(error).partition(": ")[2])


def read_extra_kinds(path: Path) -> Sequence[ExtraKind]:
    """Reads the extra kinds of a settings file of either process, or of the values of either chart. Raises SettingsError."""
    data = settings.read_yaml(path)
    for place in _PLACES_OF_KINDS:
        found: Any = data
        for part in place:
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            return settings.convert({"extra_kinds": found}, KubeoceanSettings, path="provider").extra_kinds
    raise SettingsError(str(path), "has no provider.extra_kinds; name a file that lists the kinds")


def _check_syncer_settings(given: JsonView) -> None:
    """Validates the settings of the processes early: a wrong key would keep every binding's process from starting. Raises SettingsError."""
    for path in _OWN_FLAGS:
        found: Any = given
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        if found:
            raise SettingsError(f"manager.syncer_settings.{'.'.join(path)}", "is set by the manager for each binding; remove it")
    try:
        settings.convert({name: value for name, value in given.items() if name != "provider"}, settings.Settings)
        settings.convert(given.get("provider") or {}, KubeoceanSettings, path="provider")
    except SettingsError as error:
        raise SettingsError(f"manager.syncer_settings.{error.path}".rstrip("."), str(error).partition(": ")[2]) from error
