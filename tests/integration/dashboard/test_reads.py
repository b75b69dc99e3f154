"""Commands over several bindings read the hub once: the number of requests does not grow with the bindings."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest

from kubeocean.commands.app import hub_of
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.output import Format
from kubeocean.commands.top import By, Top, View
from kubeocean.dashboard import source
from kubeocean.dashboard.observer import Observer
from tests.integration.dashboard.clusters import ADMIN, BINDINGS, NOW, filled
from tests.support.served_model import served
from tests.support.turns import counted_turns
from vkubelet.client.connection import connection_from_kubeconfig
from vkubelet.client.rest import Client
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Terminal
from vkubelet.testing.clock import ManualClock


async def test_top_lists_pods_and_metrics_of_the_hub_once_for_all_bindings(tmp_path: Path) -> None:
    hub, _ = filled(ManualClock(NOW))
    async with served(hub) as api:
        choice = hub_of(api.write_kubeconfig(tmp_path / "kubeconfig", ADMIN), "")
        top = Top(hub=choice, worker=None, binding="", by=By.BINDINGS, view=View.HUB, terminal=Terminal(io.StringIO()), output=Format.JSON)
        with pytest.raises(SystemExit):
            await top.run()
        asked = Counter(api.requests)
    assert len(BINDINGS) == 2 and asked["GET /api/v1/pods"] == 1 and asked["GET /apis/metrics.k8s.io/v1beta1/nodes"] == 1, asked


async def test_doctor_reads_the_deployment_of_a_binding_once(tmp_path: Path) -> None:
    hub, _ = filled(ManualClock(NOW))
    async with served(hub) as api:
        choice = hub_of(api.write_kubeconfig(tmp_path / "kubeconfig", ADMIN), "")
        doctor = Doctor(hub=choice, worker=None, binding="oslo", terminal=Terminal(io.StringIO()), output=Format.JSON)
        done = await doctor.examine()
        asked = Counter(api.requests)
    path = "GET /apis/apps/v1/namespaces/kubeocean-system/deployments/kubeocean-syncer-oslo"
    assert asked[path] == 1, asked
    assert {"process", "rights in the hub"} <= {each.check for each in done}


async def test_pods_are_read_in_pages_and_processed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Leases of the manager are renewed while a dashboard reads many pods."""
    clock = ManualClock(NOW)
    hub, _ = filled(clock, pods=1200)
    async with served(hub) as api, Client(connection_from_kubeconfig(api.kubeconfig(ADMIN).encode())) as client:
        async with counted_turns() as turns:
            monkeypatch.setattr(source, "pod_state", turns.counted(source.pod_state))
            observer = Observer(source.Source(client, clusters.Choice("computing cluster", "--context"), clock), clock, 10.0)
            fleet = await observer.current()
        pages = Counter(api.requests)["GET /api/v1/pods"]
    assert fleet.pods is not None and turns.calls.total() == len(fleet.pods) > 1000
    assert pages >= 3 and max(turns.calls.values()) <= 200, turns.calls
