"""Access of pods in the worker to the hub's API server and DNS: environment, host aliases, DNS settings (pure).

Invariant: the user's entries are kept; ours come first where order counts, and the user's win where a name must be unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kubeocean.model.crds import ApiServerAccess, DnsAccess
from kubeocean.model.fields import is_address
from vkubelet.api.shapes import Json, JsonView

# Limits of core/v1 validation (MaxDNSNameservers, MaxDNSSearchPaths, MaxDNSSearchListChars).
_MOST_SERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_LONGEST_SEARCHES: Final = 2048

_FOLLOWS_CLUSTER: Final = frozenset({"ClusterFirst", "ClusterFirstWithHostNet"})


def api_server_environment(access: ApiServerAccess | None) -> dict[str, str]:
    """Returns the variables that in-cluster clients read; the other KUBERNETES_* of a kubelet are for Docker links and not set."""
    if access is None:
        return {}
    return {"KUBERNETES_SERVICE_HOST": access.host, "KUBERNETES_SERVICE_PORT": str(access.port)}


def host_aliases(aliases: Sequence[JsonView], access: ApiServerAccess | None, *, domain: str) -> list[Json]:
    """Returns the user's aliases, and one that maps the usual names of the API server to its host, if that is an IP address."""
    kept = [dict(alias) for alias in aliases]
    if access is None or not is_address(access.host):
        return kept
    hostnames = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", f"kubernetes.default.svc.{domain}"]
    return [*kept, {"ip": access.host, "hostnames": hostnames}]


def set_dns(spec: Json, access: DnsAccess | None, *, namespace: str) -> None:
    """Replaces the cluster DNS policies of `spec` by the hub's DNS; without access the worker's stays.

    ClusterFirst with `hostNetwork` means the node's own DNS (documented for `dnsPolicy`), so it is not changed.
    """
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    of_the_node = policy == "ClusterFirst" and spec.get("hostNetwork")
    if access is None or policy not in _FOLLOWS_CLUSTER or of_the_node:
        return
    config: JsonView = spec.get("dnsConfig") or {}
    searches = [f"{namespace}.svc.{access.domain}", f"svc.{access.domain}", access.domain]
    spec["dnsPolicy"] = "None"
    spec["dnsConfig"] = {
        "nameservers": _distinct([*access.servers, *(config.get("nameservers") or ())])[:_MOST_SERVERS],
        "searches": _fitting(_distinct([*searches, *(config.get("searches") or ())])),
        "options": _options({"ndots": {"name": "ndots", "value": "5"}}, config.get("options") or ()),
    }


def _options(ours: Mapping[str, Json], users: Iterable[JsonView]) -> list[Json]:
    merged = {**ours, **{option.get("name", ""): dict(option) for option in users}}
    return list(merged.values())


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _fitting(searches: Sequence[str]) -> list[str]:
    """Returns the first search domains, as many as Kubernetes accepts."""
    fitting = list(searches[:_MOST_SEARCHES])
    while len(" ".join(fitting)) > _LONGEST_SEARCHES:
        fitting.pop()
    return fitting
