"""Computes the condition NetworkPoliciesMirrored: which policies of the hub apply in the worker, and what of them does not. Pure.

Invariant: equal states give equal messages.
"""

from collections.abc import Sequence
from typing import Final

from attrs import evolve

from kubeocean.binding.conditions import Lists, Observation, not_mirrored
from kubeocean.worker.cluster import Mount
from vkubelet.logformat import few

_NAMED: Final = 5
_REMEDY: Final = "in the worker, `kubeocean bind` and the chart kubeocean-worker grant the rights, in the hub the chart kubeocean"


def mirroring(
    namespaces: Sequence[str],
    *,
    lists: Lists,
    lacking: Sequence[str],
    is_lacking_everywhere: bool,
    problems: Sequence[str],
    mount: Mount,
) -> Observation | None:
    """Returns the state of the mirrors for these namespaces of the hub; None without one.

    `lists` are those of the hub and of namespaces, `lacking` are refused ones of worker namespaces, `problems` what is not carried over.
    """
    if is_lacking_everywhere and not lists.refused:
        lists = evolve(lists, refused=few(sorted(lacking), _NAMED, separator="; "))
    if (state := not_mirrored("NetworkPolicies of the hub", "do not apply in the worker", lists, remedy=_REMEDY)) is not None:
        return state
    failed = sorted({*problems, *lacking})
    if not (namespaces or failed):
        return None
    named = few(sorted(namespaces), _NAMED)
    text = f"NetworkPolicies of {named} have mirrors in the namespaces {mount.namespace}-* of the worker"
    text += "; they select pods of this binding in these namespaces: pods in the hub are peers by spec.ipBlock alone"
    if failed:
        return Observation(False, "Incomplete", f"{few(failed, _NAMED, separator='; ')}; {text}")
    return Observation(True, "Mirrored", text)
