"""The fixtures for authors of providers, and what loading them costs a test run that needs no cluster."""

from __future__ import annotations

import subprocess
import sys

from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet_providers.minimal import Minimal

LOAD = """
import sys
import vkubelet.testing.plugin
print(*sorted(sys.modules))
"""


def test_plugin_loads_no_clusters_and_no_suite() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "vkubelet.testing.host" in loaded
    assert not [name for name in loaded if name.startswith(("vkubelet.testing.cluster", "vkubelet.testing.conformance"))]


async def test_host_records_the_calls_of_a_provider(vkubelet_host: RecordingHost, vkubelet_clock: ManualClock) -> None:
    minimal, pod = Minimal(), make_pod(node="minimal")
    minimal.host = vkubelet_host
    await minimal.sync_pod(pod)
    assert vkubelet_host.clock is vkubelet_clock
    assert vkubelet_host.latest(pod.ref.uid).pod == pod.ref
