"""Tests of limits as control groups say them, and of their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkubelet_providers.process.cgroups import Cgroups, Hierarchy, Limits, parse_mounts, parse_pairs, settings_v1, settings_v2, shares

CONTAINER = {"resources": {"limits": {"cpu": "500m", "memory": "32Mi"}, "requests": {"cpu": "250m"}}}


def test_limits_are_read_from_the_spec() -> None:
    assert Limits.of(CONTAINER) == Limits(cpu=500, cpu_request=250, memory=32 << 20)
    assert Limits.of({"resources": {"limits": {"cpu": 2}}}) == Limits(cpu=2000, cpu_request=2000)
    assert Limits.of({}) == Limits()


def test_limits_are_written_as_each_version_wants_them() -> None:
    one, two = dict(settings_v1(Limits.of(CONTAINER))), dict(settings_v2(Limits.of(CONTAINER)))
    assert one["cpu.shares"] == "256" and one["cpu.cfs_quota_us"] == "50000" and one["memory.limit_in_bytes"] == str(32 << 20)
    assert two["cpu.weight"] == "10" and two["cpu.max"] == "50000 100000" and two["memory.oom.group"] == "1"
    assert dict(settings_v1(Limits())) == {"cpu.shares": "2", "cpu.cfs_quota_us": "-1"}
    assert dict(settings_v2(Limits())) == {"cpu.weight": "1", "cpu.max": "max 100000"}


@pytest.mark.parametrize(("milli", "expected"), [(None, 2), (1, 2), (100, 102), (1000, 1024), (10**9, 262144)])
def test_shares_are_the_kubelets(milli: int | None, expected: int) -> None:
    assert shares(milli) == expected


def test_mounts_of_both_versions_are_found() -> None:
    text = (
        "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "cgroup /sys/fs/a\\040b cgroup rw,xattr,name=systemd 0 0\n"
    )
    assert parse_mounts(text) == [
        Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), ["cpu", "cpuacct"], 1),
        Hierarchy(Path("/sys/fs/cgroup/unified"), (), 2),
        Hierarchy(Path("/sys/fs/a b"), [], 1),
    ]
    assert parse_pairs("oom_kill 3\nnonsense\nanon 12\nx y\n") == {"oom_kill": 3, "anon": 12}


def test_numbers_of_version_2(tmp_path: Path) -> None:
    place = tmp_path / "base/poduid/main.0"
    place.mkdir(parents=True)
    (place / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (place / "memory.current").write_text("1000\n")
    (place / "memory.stat").write_text("anon 600\ninactive_file 300\npgfault 7\npgmajfault 2\n")
    (place / "memory.max").write_text("max\n")
    usage = Cgroups("base", [Hierarchy(tmp_path, ["cpu", "memory"], 2)]).usage("uid", "main.0")
    assert (usage.cpu_seconds, usage.memory_bytes, usage.rss_bytes, usage.memory_limit_bytes) == (2.5, 700, 600, None)


def test_numbers_of_version_1(tmp_path: Path) -> None:
    place = tmp_path / "base/poduid/main.0"
    place.mkdir(parents=True)
    (place / "cpuacct.usage").write_text("1500000000\n")
    (place / "memory.usage_in_bytes").write_text("1000\n")
    (place / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (place / "memory.stat").write_text("total_rss 500\ntotal_inactive_file 100\n")
    hierarchies = [Hierarchy(tmp_path, ["cpuacct"], 1), Hierarchy(tmp_path, ["memory"], 1)]
    usage = Cgroups("base", hierarchies).usage("uid", "main.0")
    assert (usage.cpu_seconds, usage.memory_bytes, usage.rss_bytes, usage.memory_limit_bytes) == (1.5, 900, 500, None)


def test_a_host_without_them_is_no_error() -> None:
    none = Cgroups.find("")
    none.create("uid", "main.0", limits=Limits(cpu=1), pod_cpu=0)
    assert none.join_files("uid", "main.0") == [] and none.remove("uid") and not none.kill("uid") and not none.limits("memory")


def test_groups_that_programs_have_made_go_with_theirs(tmp_path: Path) -> None:
    (tmp_path / "base/poduid/main.0/own/deep").mkdir(parents=True)
    groups = Cgroups("base", [Hierarchy(tmp_path, ["cpu"], 2)])
    assert groups.remove("uid") and not list((tmp_path / "base").iterdir())


def test_of_version_2_only_what_is_handed_down_is_kept(tmp_path: Path) -> None:
    """Such as in a container, whose uppermost group holds processes and so gives nothing on."""
    (tmp_path / "base/keepers").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    for path in (tmp_path, tmp_path / "base"):
        (path / "cgroup.subtree_control").mkdir()
    assert Hierarchy(tmp_path, (), 2).handed_down("base").controllers == []
