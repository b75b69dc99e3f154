"""Tests of what the host says of itself."""

from __future__ import annotations

from vkubelet_providers.process import machine
from vkubelet_providers.process.keeper import procfs


def test_numbers_of_the_host_are_parsed() -> None:
    assert machine.parse_meminfo("MemTotal:  1024 kB\nHugePages_Total:  3\n") == {"MemTotal": 1 << 20, "HugePages_Total": 3}
    assert machine.parse_cpu("cpu  100 20 30 999 999 4 6 0 0 0\ncpu0 1\n") == 160 / procfs.TICKS
    text = "Inter-|\n face |\n  eth0: 100 1 2 0 0 0 0 0 200 3 4 0 0 0 0 0\n"
    network = machine.parse_networks(text)["eth0"]
    assert (network.received_bytes, network.receive_errors, network.sent_bytes, network.send_errors) == (100, 2, 200, 4)
