"""DNS names of Services in leased pods: the zone that pods search, and the rewrites of CoreDNS that lead from names to mirrors. Pure.

A pod in the worker searches the zone of the mount namespace first, then `services_zone`. The mirror of Service `web` in namespace `shop` of
the hub is `web--shop`. The rewrites translate three forms of name, each optionally below the name of a pod, or of a port:

    web.shop                     as web.shop.MOUNT.svc.WORKER
    web.shop.svc.HUB             as web.shop.svc.HUB.MOUNT.svc.WORKER
    web, searched by pods        as web.shop.MOUNT.kubeocean.internal

Invariant: only names below these two zones are rewritten, so no other pod of the worker resolves anything differently.
"""

import re
from typing import Final

_PRIVATE: Final = "kubeocean.internal"
_LABEL: Final = "([^.]+)"
_BELOW: Final = "(.+[.])?"


def services_zone(mount_namespace: str) -> str:
    """Returns the zone that leased pods search, below their namespace."""
    return f"{mount_namespace}.{_PRIVATE}"


def rewrites(mount_namespace: str, *, hub_domain: str, worker_domain: str) -> list[tuple[str, str, str, str]]:
    """Returns for each form of name the pattern of the question, its replacement, the pattern of the answer, and its replacement."""
    mirrors = f"{mount_namespace}.svc.{worker_domain}."
    answer = f"^{_BELOW}{_LABEL}--{_LABEL}[.]{_quoted(mirrors)}$"
    zones = (f"svc.{hub_domain}.{mirrors}", f"{services_zone(mount_namespace)}.", mirrors)
    return [
        (f"^{_BELOW}{_LABEL}[.]{_LABEL}[.]{_quoted(zone)}$", f"{{1}}{{2}}--{{3}}.{mirrors}", answer, f"{{1}}{{2}}.{{3}}.{zone}")
        for zone in zones
    ]


def corefile(mount_namespace: str, *, hub_domain: str, worker_domain: str) -> str:
    """Returns the lines for the server block of the worker's Corefile, before the plugin `kubernetes`."""
    rules = rewrites(mount_namespace, hub_domain=hub_domain, worker_domain=worker_domain)
    return "".join(
        f"rewrite stop {{\n    name regex {question} {mirror}\n    answer name {answer} {name}\n}}\n"
        for question, mirror, answer, name in rules
    )


def _quoted(name: str) -> str:
    return re.escape(name).replace("\\-", "-").replace("\\.", "[.]")
