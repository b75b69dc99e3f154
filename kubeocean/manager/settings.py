"""Settings of the manager: above all, how the process of a binding is run.

Invariant: an invalid setting is refused when the process starts, by its name in YAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from kubeocean.model import keys
from kubeocean.settings import KubeoceanSettings
from vkubelet import settings
from vkubelet.api.names import is_dns_label
from vkubelet.api.shapes import Json, JsonView
from vkubelet.errors import SettingsError
from vkubelet.settings import ClusterSettings, HealthSettings, LeaderSettings, LogSettings

LEASE = "kubeocean-manager"
_OWN_FLAGS = (("provider", "binding"), ("instance",))


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
    """Number of processes of each binding: one serves, the others are on standby."""
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
            raise SettingsError("manager.namespace", "is not the name of a namespace")
        if self.replicas < 1:
            raise SettingsError("manager.replicas", "must be at least 1; to stop serving a binding, delete it")
        if self.recheck_interval <= 0 or self.retry_limit <= 0:
            raise SettingsError("manager.recheck_interval", "and retry_limit must be more than 0 seconds")
        if self.workers < 1:
            raise SettingsError("manager.workers", "must be at least 1")
        _check_syncer_settings(self.syncer_settings)


@frozen(kw_only=True)
class ProcessSettings:
    """All settings of `kubeocean manager`."""

    manager: ManagerSettings
    cluster: ClusterSettings = field(factory=ClusterSettings)
    leader: LeaderSettings = field(factory=LeaderSettings)
    health: HealthSettings = field(factory=HealthSettings)
    log: LogSettings = field(factory=LogSettings)


def read(data: JsonView) -> ProcessSettings:
    """Reads a decoded settings file. Raises SettingsError."""
    own = data.get("manager")
    if not isinstance(own, dict) or not own.get("image"):
        raise SettingsError("manager.image", "name the image of the processes that serve bindings")
    defaults: Json = {"leader": {"enabled": True, "namespace": own.get("namespace") or keys.NAMESPACE, "name": LEASE}}
    return settings.convert(settings.merged(defaults, data), ProcessSettings)


def _check_syncer_settings(given: JsonView) -> None:
    """Validates the settings of the processes early: a wrong key would keep every binding's process from starting. Raises SettingsError."""
    for path in _OWN_FLAGS:
        found: Any = given
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        if found:
            raise SettingsError(f"manager.syncer_settings.{'.'.join(path)}", "is set for each binding; remove it")
    try:
        settings.convert({name: value for name, value in given.items() if name != "provider"}, settings.Settings)
        settings.convert(given.get("provider") or {}, KubeoceanSettings, path="provider")
    except SettingsError as error:
        raise SettingsError(f"manager.syncer_settings.{error.path}".rstrip("."), str(error).partition(": ")[2]) from error
