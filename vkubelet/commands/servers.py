"""Checks of one API server: its version, its clock, and its definition of our custom resources.

Invariant: nothing here depends on what a cluster is used for, so the checks hold for the hub and for each worker.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from vkubelet.api.objects import JsonView
from vkubelet.commands.findings import Finding, error, warning
from vkubelet.logformat import few

OLDEST: Final = (1, 30)
_SKEW: Final = timedelta(seconds=5)
_SCHEMA: Final = "openAPIV3Schema"


def version(cluster: str, answer: JsonView) -> Iterator[Finding]:
    """Checks the answer to GET /version."""
    found = tuple(int(part) for part in re.findall(r"\d+", f"{answer.get('major')} {answer.get('minor')}")[:2])
    if found < OLDEST:
        required = ".".join(map(str, OLDEST))
        yield error(f"{cluster}: its API server is {answer.get('gitVersion') or 'unknown'}; upgrade it to {required} or newer")


def answered(header: str | None) -> datetime | None:
    """Parses the header Date of a response; None when it is missing, or a proxy has written another form."""
    try:
        found = parsedate_to_datetime(header) if header else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def clock(cluster: str, answered: datetime | None, *, sent: datetime, received: datetime) -> Iterator[Finding]:
    """Checks the time at which the server answered, in seconds without fractions, against the time here between sending and receiving."""
    if answered is None:
        return
    early, late = sent - timedelta(seconds=1) - answered, answered - received
    skew = max(early, late)
    if skew > _SKEW:
        order = "behind" if early > late else "ahead of"
        remedy = "time windows, tokens and certificates depend on it; synchronize both by NTP"
        yield warning(
            f"{cluster}: the clock of its API server is {skew.total_seconds():.0f} s {order} that of this machine; {remedy}",
            "timedatectl timesync-status",
        )


def definition(cluster: str, stored: JsonView | None, ours: JsonView, *, kubectl: str, install: str) -> Iterator[Finding]:
    """Checks that a CustomResourceDefinition is stored, established, and has every field of ours; `install` is the command that creates
    or updates it."""
    name, kind = ours["metadata"]["name"], ours["spec"]["names"]["kind"]
    if stored is None:
        yield error(f"{cluster}: it has no CustomResourceDefinition {name}; create it", install)
        return
    conditions: Sequence[JsonView] = (stored.get("status") or {}).get("conditions") or ()
    if not any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
        yield error(f"{cluster}: the CustomResourceDefinition of {kind} is not established", f"{kubectl} describe crd {name}")
    absent = sorted(fields(ours) - fields(stored))
    if absent:
        text = f"the CustomResourceDefinition of {kind} is old, and drops the fields {few(absent)}; update it"
        yield error(f"{cluster}: {text}", install)


def fields(definition: JsonView) -> set[str]:
    """Returns the paths of all fields of the served versions: `spec.timeZone`, `spec.timeWindows.start`."""
    out: set[str] = set()
    for each in definition["spec"]["versions"]:
        if each.get("served"):
            out |= set(_paths((each.get("schema") or {}).get(_SCHEMA) or {}, ""))
    return out


def _paths(schema: JsonView, prefix: str) -> Iterator[str]:
    inner = schema.get("items") if schema.get("type") == "array" else schema
    for name, each in ((inner or {}).get("properties") or {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield path
        yield from _paths(each, path)
