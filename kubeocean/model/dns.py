"""DNS names of Services in leased pods: the zone that pods search, and the rewrites of CoreDNS that lead from names to mirrors. Pure.

A pod in the worker searches the zone of its namespace first, then `services_zone`. The mirror of Service `web` in namespace `shop` of the
hub is `web--shop` in the mount namespace, or `web` in namespace `MOUNT-shop`. Below, SPACE is the namespace of the pod, MOUNT or `MOUNT-…`.
The rewrites translate three forms of name, each optionally below the name of a pod, or of a port:

    web.shop                     as web.shop.SPACE.svc.WORKER
    web.shop.svc.HUB             as web.shop.svc.HUB.SPACE.svc.WORKER
    web, searched by pods        as web.shop.MOUNT.kubeocean.internal

Invariant: only names of two labels and more below these zones are rewritten, so no other pod of the worker resolves anything differently.
"""

import re
from typing import Final

from kubeocean.model import keys

_PRIVATE: Final = "kubeocean.internal"
_LABEL: Final = "([^.]+)"
_BELOW: Final = "(.+[.])?"


def services_zone(mount_namespace: str) -> str:
    """Returns the zone that leased pods search, below their namespace."""
    return f"{mount_namespace}.{_PRIVATE}"


def rewrites(identity: keys.Identity, *, hub_domain: str, worker_domain: str) -> list[tuple[str, str]]:
    """Returns for each form of name the pattern of the question, and the name of the mirror."""
    mount, worker = identity.mount_namespace, f"svc.{worker_domain}."
    shared = identity.mapping == keys.SINGLE
    space = f"{_quoted(mount)}{'' if shared else '-[^.]+'}[.]{_quoted(worker)}"
    mirror = f"{{1}}{{2}}--{{3}}.{mount}.{worker}" if shared else f"{{1}}{{2}}.{mount}-{{3}}.{worker}"
    zones = (f"{_quoted(f'svc.{hub_domain}.')}{space}", _quoted(f"{services_zone(mount)}."), space)
    return [(f"^{_BELOW}{_LABEL}[.]{_LABEL}[.]{zone}$", mirror) for zone in zones]


def corefile(identity: keys.Identity, *, hub_domain: str, worker_domain: str) -> str:
    """Returns the lines for the server block of the worker's Corefile, before the plugin `kubernetes`."""
    rules = rewrites(identity, hub_domain=hub_domain, worker_domain=worker_domain)
    return "".join(f"rewrite stop {{\n    name regex {question} {mirror}\n    answer auto\n}}\n" for question, mirror in rules)


def _quoted(name: str) -> str:
    return re.escape(name).replace("\\-", "-").replace("\\.", "[.]")
