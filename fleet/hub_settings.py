"""Settings of the processes of a fleet.

Invariant: an invalid setting is refused when a process starts, by its name in YAML.
"""

from collections.abc import Sequence
from typing import Final, Literal

from attrs import field, frozen

from fleet.api import keys
from vkubelet import settings
from vkubelet.api.names import is_dns_label
from vkubelet.api.objects import Json, JsonView
from vkubelet.errors import SettingsError

SHORTEST_LEAVE, LONGEST_LEAVE = 30.0, 3600.0

Module = Literal["registration", "inventory", "kubefleet"]


@frozen(kw_only=True)
class HubSettings:
    """The section `hub:` of the settings file of `fleet hub`; all times are seconds. The list `modules:` beside it names what runs:
    `registration`, which is required, `inventory` and `kubefleet`; by default all of them."""

    namespace: str = "fleet-system"
    """Namespace of this process, of its leader Lease and of the gateway."""
    auto_approve_users: Sequence[str] = ()
    """User names of bootstrap identities whose certificates are approved, and whose clusters are accepted once, without a person."""
    profile_namespace: str = "fleet-system"
    """Namespace of the ClusterProfiles of MemberClusters."""
    heartbeat_threshold: float = 60.0
    """Age of the heartbeat of a member from which on its ClusterProfile reports MemberAgentHeartbeatLost; at least the member's own
    heartbeat period with its jitter, and 5 s."""
    force_leave_after: float = 900.0
    """Delay after which a MemberCluster is removed although its agent has not acknowledged that it leaves."""
    administrators: Sequence[str] = ()
    """Users and groups who alone, beside this process, write the namespaces fleet-* and the definitions of the fleet; by default there is
    no such limit. Include yourself."""

    def __attrs_post_init__(self) -> None:
        for name in ("namespace", "profile_namespace"):
            if not is_dns_label(getattr(self, name)):
                raise SettingsError(f"hub.{name}", "must be the name of a namespace: lower case letters, digits and '-'")
        if not SHORTEST_LEAVE <= self.force_leave_after <= LONGEST_LEAVE:
            raise SettingsError("hub.force_leave_after", f"must be from {SHORTEST_LEAVE:g} to {LONGEST_LEAVE:g} seconds")
        if self.heartbeat_threshold <= 0:
            raise SettingsError("hub.heartbeat_threshold", "must be more than 0 seconds")
        if not all(each.isprintable() and each.strip() and not set(each) & set("'\"\\") for each in self.administrators):
            raise SettingsError("hub.administrators", "must be names of users or groups, without quotes and backslashes")


@frozen(kw_only=True)
class HubProcessSettings:
    """All settings of `fleet hub`."""

    modules: Sequence[Module] = ("registration", "inventory", "kubefleet")
    """Modules that run: registration (always), inventory (ClusterProfiles), kubefleet (the API of KubeFleet beside the other one)."""
    hub: HubSettings = field(factory=HubSettings)
    cluster: settings.ClusterSettings = field(factory=settings.ClusterSettings)
    leader: settings.LeaderSettings = field(factory=settings.LeaderSettings)
    health: settings.HealthSettings = field(factory=settings.HealthSettings)
    log: settings.LogSettings = field(factory=settings.LogSettings)

    def __attrs_post_init__(self) -> None:
        if "registration" not in self.modules:
            raise SettingsError("modules", "must contain registration: without it no cluster joins")


_HUB_LEASE: Final = keys.HUB


def read_hub_settings(data: JsonView) -> HubProcessSettings:
    """Reads the decoded settings file of `fleet hub`. Raises SettingsError."""
    own = data.get("hub")
    namespace = own.get("namespace") if isinstance(own, dict) else None
    defaults: Json = {"leader": {"enabled": True, "namespace": namespace or keys.NAMESPACE, "name": _HUB_LEASE}}
    return settings.convert(settings.merged(defaults, data), HubProcessSettings)
