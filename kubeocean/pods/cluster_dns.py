"""How a pod far from home finds the hub's API server and DNS: environment, host aliases, DNS settings (pure).

Invariant: what the user asked for is kept; ours comes first where order counts, and the user's wins where a name can be given once only.
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
    """What in-cluster clients look for; the other KUBERNETES_* of a kubelet are for Docker links and left alone."""
    if access is None:
        return {}
    return {"KUBERNETES_SERVICE_HOST": access.host, "KUBERNETES_SERVICE_PORT": str(access.port)}


def host_aliases(aliases: Sequence[JsonView], access: ApiServerAccess | None, *, domain: str) -> list[Json]:
    """The user's, and one that leads the usual names of the API server to its address, if that is an address."""
    kept = [dict(alias) for alias in aliases]
    if access is None or not is_address(access.host):
        return kept
    hostnames = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", f"kubernetes.default.svc.{domain}"]
    return [*kept, {"ip": access.host, "hostnames": hostnames}]


def set_dns(spec: Json, access: DnsAccess | None, *, namespace: str) -> None:
    """Turn the cluster's DNS policies of `spec` into the hub's DNS; without access the worker's stays.

    ClusterFirst on the host's network means the node's own DNS (documented for `dnsPolicy`), so that is left as it is.
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
    """As many as Kubernetes accepts, from the first."""
    fitting = list(searches[:_MOST_SEARCHES])
    while len(" ".join(fitting)) > _LONGEST_SEARCHES:
        fitting.pop()
    return fitting
