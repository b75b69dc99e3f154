"""Decides whether an existing Node without our label may be adopted. Pure.

Invariant: a Node whose kubelet may be alive is not adopted, because its pods would run twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from vkubelet.api.objects import Lease, Node
from vkubelet.api.registration import OWNED
from vkubelet.clock import parse_rfc3339
from vkubelet.node.lease import DURATION

_REMEDY = "choose another node name, or stop that kubelet and delete the Node; node.adopt_foreign: true adopts it as it is"


def foreign_kubelet(node: Node, lease: Lease | None, *, version: str, now: datetime) -> str:
    """Returns which other kubelet serves the Node, and the remedy; "" when there is none. `version` is the kubelet version we report.

    A Node with our annotation was ours and lacks only its label; it was registered before the annotation named the instance.
    """
    if OWNED in node.metadata.annotations:
        return ""
    reported = (node.status.get("nodeInfo") or {}).get("kubeletVersion") or ""
    if reported not in ("", version):
        return f"a kubelet of version {reported} has registered it; {_REMEDY}"
    spec = lease.spec if lease is not None else {}
    renewed = spec.get("renewTime") or ""
    # A kubelet with a longer Lease also renews it less often.
    if renewed and _moment(renewed) + timedelta(seconds=max(DURATION, spec.get("leaseDurationSeconds") or 0)) > now:
        return f"its Lease was renewed at {renewed}, so its kubelet is alive; {_REMEDY}"
    return ""


def _moment(text: str) -> datetime:
    """Parses a time; one that Python cannot represent counts as current, because it proves nothing."""
    try:
        return parse_rfc3339(text)
    except ValueError:
        return parse_rfc3339("9999-12-31T00:00:00Z")
