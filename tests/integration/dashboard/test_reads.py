"""Commands over several bindings read the hub once: the number of requests does not grow with the bindings."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest

from kubeocean.commands import clusters
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.output import Format
from kubeocean.commands.terminal import Terminal
from kubeocean.commands.top import By, Top, View
from tests.integration.dashboard.clusters import ADMIN, BINDINGS, NOW, filled
from tests.support.served_model import served
from vkubelet.testing.clock import ManualClock


async def test_top_lists_pods_and_metrics_of_the_hub_once_for_all_bindings(tmp_path: Path) -> None:
    hub, _ = filled(ManualClock(NOW))
    async with served(hub) as api:
        choice = clusters.hub_of(api.write_kubeconfig(tmp_path / "kubeconfig", ADMIN), "")
        top = Top(hub=choice, worker=None, binding="", by=By.BINDINGS, view=View.HUB, terminal=Terminal(io.StringIO()), output=Format.JSON)
        with pytest.raises(SystemExit):
            await top.run()
        asked = Counter(api.requests)
    assert len(BINDINGS) == 2 and asked["GET /api/v1/pods"] == 1 and asked["GET /apis/metrics.k8s.io/v1beta1/nodes"] == 1, asked


async def test_doctor_reads_the_deployment_of_a_binding_once(tmp_path: Path) -> None:
    hub, _ = filled(ManualClock(NOW))
    async with served(hub) as api:
        choice = clusters.hub_of(api.write_kubeconfig(tmp_path / "kubeconfig", ADMIN), "")
        doctor = Doctor(hub=choice, worker=None, binding="oslo", terminal=Terminal(io.StringIO()), output=Format.JSON)
        done = await doctor.examine()
        asked = Counter(api.requests)
    path = "GET /apis/apps/v1/namespaces/kubeocean-system/deployments/kubeocean-syncer-oslo"
    assert asked[path] == 1, asked
    assert {"process", "rights in the hub"} <= {each.check for each in done}
