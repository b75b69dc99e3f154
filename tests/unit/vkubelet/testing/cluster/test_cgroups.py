"""Cgroup hierarchies are read from the list of mounts.

Invariant: pure; no cgroup is made here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import cgroups
from vkubelet.testing.cluster.processes import ClusterError


def test_all_hierarchies_of_both_versions_are_found(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "proc /proc proc rw 0 0\n"
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
        encoding="ascii",
    )
    assert cgroups.hierarchies(mounts) == [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/unified")]


@pytest.mark.parametrize("name", ["", "/"])
async def test_the_root_cgroup_is_never_removed(name: str) -> None:
    with pytest.raises(ClusterError, match="not ours"):
        await cgroups.remove(name, SystemClock())
