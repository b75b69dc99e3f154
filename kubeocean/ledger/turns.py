"""Which policy decided about a node in which part of a time, by the policies' windows. Pure.

Invariant: the parts of a time are contiguous and cover it; a part belongs to the policy by which `leasing.policy` decides in it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from attrs import define, field

from kubeocean.leasing.policy import Terms, in_force
from kubeocean.ledger.account import HOURS, Part
from kubeocean.model.crds import ResourceLeasingPolicy

_FAR: Final = datetime.max.replace(tzinfo=UTC)
_DETAILED: Final = timedelta(hours=HOURS)
"""Earlier parts are in no hour of the ledger; they count for the policy that decided at the start of this time."""
_MOST_PARTS: Final = 256
_MOST_SETS: Final = 64


@define
class Turns:
    """The parts of the time of each set of policies, as far as they were asked for. Sets are known by the identity of their policies."""

    _known: dict[tuple[object, ...], tuple[Sequence[ResourceLeasingPolicy], list[Part]]] = field(factory=dict)

    def parts(self, valid: Sequence[ResourceLeasingPolicy], terms: Terms, *, start: datetime, end: datetime) -> list[Part]:
        """Returns the parts of a time, by which of the valid policies that match a node decides; the best policy is the first."""
        if not valid:
            return [Part("", start, end)]
        since = max(start, end - _DETAILED)
        known = self._until(valid, terms, since, end)
        clipped = [Part(part.policy, max(part.start, since), min(part.end, end)) for part in known if part.end > since and part.start < end]
        return [*([Part(clipped[0].policy, start, since)] if start < since else []), *clipped]

    def _until(self, valid: Sequence[ResourceLeasingPolicy], terms: Terms, start: datetime, end: datetime) -> list[Part]:
        key = (terms.zone, *map(id, valid))
        _, parts = self._known.get(key, (valid, []))
        if not parts or start < parts[0].start or len(parts) > _MOST_PARTS:
            if len(self._known) >= _MOST_SETS:
                self._known.clear()
            parts = []
            self._known[key] = (valid, parts)
        while not parts or parts[-1].end < end:
            moment = parts[-1].end if parts else start
            policy, edge = in_force(valid, terms=terms, instant=moment)
            parts.append(Part(policy.name, moment, edge or _FAR))
        return parts
