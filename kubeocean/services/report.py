"""Computes the condition ServicesMirrored: which names of Services resolve in leased pods, and what is missing. Pure.

Invariant: equal states give equal messages; counts that change with every Service are not part of them.
"""

from collections.abc import Iterable
from typing import Final

from kubeocean.binding.conditions import Lists, Observation, not_mirrored
from kubeocean.services.mirror import MASTER_SERVICE
from kubeocean.worker.cluster import Mount
from vkubelet.api.objects import Unknown
from vkubelet.logformat import few

_NAMED: Final = 5
_REMEDY: Final = "in the worker, `kubeocean bind` and the chart kubeocean-worker grant the rights, in the hub the chart kubeocean"


def mirroring(
    namespaces: frozenset[str], services: Iterable[Unknown], *, lists: Lists, problems: Iterable[str], has_dns: bool, mount: Mount
) -> Observation | None:
    """Returns the state of the mirrors of Services in these namespaces of the hub; None without a namespace.

    `lists` are those on which all mirrors depend, `problems` the Services that have no mirror, `has_dns` whether pods use the hub's DNS.
    """
    if not namespaces:
        return None
    if (state := not_mirrored("Services", "are not mirrored", lists, remedy=_REMEDY)) is not None:
        return state
    named = few(sorted(namespaces), _NAMED)
    spaces = f"namespace {mount.namespace}" if mount.is_shared else f"the namespaces {mount.namespace}-*"
    text = f"Services of {named} have mirrors in {spaces} of the worker; {_resolution(has_dns)}"
    listed = (each.key for each in services if each.metadata.namespace in namespaces and each.key != MASTER_SERVICE)
    hashed = [str(key) for key in listed if not mount.is_resolved(key)]
    if hashed and not has_dns:
        text += f"; {_unresolved(few(sorted(hashed), _NAMED), mount)}"
    failed = sorted(set(problems))
    if failed:
        return Observation(False, "Incomplete", f"{few(failed, _NAMED, separator='; ')}; {text}")
    return Observation(True, "Mirrored", text)


def _unresolved(named: str, mount: Mount) -> str:
    if mount.is_shared:
        return f"no name leads to {named}, whose names and namespaces have more than 61 characters or contain --"
    return f"only the short name leads to {named}, whose namespace in the worker has a hashed name"


def _resolution(has_dns: bool) -> str:
    if has_dns:
        return "names resolve by the DNS of the hub, to the addresses in the hub; the variables of Services contain those of the mirrors"
    return (
        "NAME, NAME.NAMESPACE and the full name resolve if the DNS of the worker has the rewrites that `kubeocean dns` prints;"
        " the variables of Services contain the addresses of the mirrors"
    )
