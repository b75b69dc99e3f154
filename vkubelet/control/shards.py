"""Decides which shard has a name, and which replica holds the Lease of a shard. Pure.

Rendezvous hashing: each shard has a weight for each name, and the highest one has it. With one more shard, names move to that one only.

Invariant: these decisions are advice, and replicas may see the Leases at different moments. That a shard has one holder follows from its
Lease alone.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from attrs import frozen

MOST_SHARDS: Final = 16
"""Each replica watches once for each shard."""

COUNT: Final = "vkubelet.io/shards"
"""Annotation of a Lease: the number of shards by which its holder divides the names; without it, 1."""
WANTED_BY: Final = "vkubelet.io/wanted-by"
"""Annotation of the Lease of a shard: the replica that asks its holder for it."""

RESERVED: Final = 6.0
"""Seconds for which a shard that was handed over waits for the replica that asked for it."""
_STEP: Final = 2.0
"""Seconds that a replica leaves a released shard to others, for each shard that it holds."""
_UNEVEN: Final = 2
"""Difference of two replicas, in shards, from which one is handed over."""


@frozen
class Shard:
    """One part of all names. The only one has all of them."""

    index: int = 0
    count: int = 1

    @property
    def is_only(self) -> bool:
        return self.count == 1

    @property
    def is_first(self) -> bool:
        """Whether it has what exists once for all shards."""
        return self.index == 0

    def owns(self, name: str) -> bool:
        """Checks whether a name belongs to this shard."""
        return self.is_only or shard_of(name, self.count) == self.index

    def lease(self, leader: str) -> str:
        """Returns the name of its Lease, by that of the leader Lease: the first shard has that one."""
        return leader if self.is_first else f"{leader}.shard-{self.index}"


ONLY: Final = Shard()


@lru_cache(maxsize=65536)
def shard_of(name: str, count: int) -> int:
    """Returns the number of the shard to which a name belongs."""
    return max(range(count), key=lambda index: (_weight(name, index), index))


def _weight(name: str, index: int) -> int:
    return int.from_bytes(blake2b(f"{index}/{name}".encode(), digest_size=8).digest(), "big")


@frozen(kw_only=True)
class ShardLease:
    """The Lease of a shard, as it was read last."""

    holder: str = ""
    """Identity of the replica that holds it; "" when it is free."""
    wanted_by: str = ""
    died: bool = False
    """Whether it is free because its holder did not renew it."""
    free_for: float = 0.0
    """Seconds since it was first seen free."""
    count: int = 1
    """Number of shards of its holder."""


Leases = Mapping[int, ShardLease]
"""The Leases by the numbers of the shards."""


def held(leases: Leases) -> Counter[str]:
    """Counts the shards of each replica that holds any."""
    return Counter(lease.holder for lease in leases.values() if lease.holder)


def other_count(leases: Leases, count: int) -> ShardLease | None:
    """Returns a Lease whose holder divides the names by another count, so that a name could have two owners; None without one."""
    return next((lease for lease in leases.values() if lease.holder and lease.count != count), None)


def may_acquire(replica: str, leases: Leases, index: int) -> bool:
    """Checks whether a replica is to acquire the free Lease of a shard now.

    That of a holder that died is acquired at once. A released one is left to the replica that asked for it, then to those with fewer
    shards.
    """
    lease = leases[index]
    if lease.died or lease.wanted_by == replica:
        return True
    if lease.wanted_by and lease.free_for < RESERVED:
        return False
    return lease.free_for >= _STEP * held(leases)[replica]


def wanted(replica: str, leases: Leases) -> int | None:
    """Returns the shard for which a replica is to ask its holder; None for none: nothing is free, and one request is made at a time."""
    if any(not lease.holder or lease.wanted_by for lease in leases.values()):
        return None
    counts = held(leases)
    richest, most = max(counts.items(), key=lambda each: (each[1], each[0]), default=("", 0))
    if most - counts[replica] < _UNEVEN:
        return None
    its = [index for index, lease in leases.items() if lease.holder == richest]
    return max(its, key=lambda index: (_weight(replica, index), index))


def to_hand_over(replica: str, leases: Leases) -> int | None:
    """Returns the shard that a replica is to hand to another that asks for it; None for none."""
    counts = held(leases)
    for index, lease in sorted(leases.items()):
        is_asked = lease.holder == replica and lease.wanted_by not in ("", replica)
        if is_asked and counts[replica] - counts[lease.wanted_by] >= _UNEVEN:
            return index
    return None
