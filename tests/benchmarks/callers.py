"""Requests of both API servers by client, verb and resource, from their audit logs.

Invariant: watches are not counted, as they end whenever a client ends; leader election and renewals of node Leases are not either, as their
number follows from the time that a burst takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from tests.support.audit import end_of, entries
from vkubelet.testing.cluster import ControlPlane

_COMPARED = ("vkubelet", "Python")
"""User agents of kubeocean and of the ideal pipeline."""


@define
class Callers:
    """What clients ask of the API servers from now on."""

    planes: Mapping[str, ControlPlane]
    _from: dict[str, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._from = {side: end_of(plane.audit_log) for side, plane in self.planes.items()}

    def read(self) -> Mapping[str, float]:
        """Returns the number of answered requests, as in "hub vkubelet: patch pods/status"."""
        found: Counter[str] = Counter()
        for side in self.planes:
            made = entries(self.planes[side].audit_log, since=self._from[side])
            found.update(f"{side} {_named(entry)}" for entry in made if _counts(entry))
        return dict(found)


def _counts(entry: Mapping[str, Any]) -> bool:
    resource = entry.get("objectRef", {}).get("resource")
    return entry["stage"] == "ResponseComplete" and entry["verb"] != "watch" and resource != "leases"


def _named(entry: Mapping[str, Any]) -> str:
    subject, code = entry.get("objectRef", {}), entry.get("responseStatus", {}).get("code", 200)
    what = "/".join(filter(None, (subject.get("resource", entry["requestURI"].partition("?")[0]), subject.get("subresource", ""))))
    return f"{client(entry.get('userAgent', ''))}: {entry['verb']} {what}{'' if code < 300 else f' {code}'}"


def client(agent: str) -> str:
    """Returns the program of a user agent, with the controller when it names one; both that are compared have one name.

    >>> client("kube-controller-manager/v1.34.4 (linux/amd64) kubernetes/1/system:serviceaccount:kube-system:job-controller")
    'kube-controller-manager job-controller'
    """
    program, _, rest = agent.partition("/")
    if program in _COMPARED:
        return "program"
    return f"{program} {rest.rpartition(':')[2]}" if ":" in rest else program
