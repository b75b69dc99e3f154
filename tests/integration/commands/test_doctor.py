"""`kubeocean doctor` where an API server does not serve, or the user may not read what a check needs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kubeocean.commands.doctor import Doctor
from kubeocean.commands.output import Format
from kubeocean.model.crds import CLUSTERBINDINGS, definition
from tests.faults.model.server import ApiModel
from tests.support.served_model import served
from vkubelet.api.codec import decode_yaml
from vkubelet.commands.clusters import Choice
from vkubelet.commands.findings import result
from vkubelet.commands.terminal import Terminal
from vkubelet.testing.clock import ManualClock


@pytest.mark.parametrize("broken", [True, False], ids=["503", "no server"])
async def test_an_api_server_that_does_not_serve_is_an_error(tmp_path: Path, broken: bool) -> None:
    out = io.StringIO()
    async with served(ApiModel(now=ManualClock().now)) as api:
        api.broken = broken
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig", "me")
        if not broken:
            kubeconfig.write_text(kubeconfig.read_text().replace(api.url, "http://127.0.0.1:1"))
        choice = Choice("computing cluster", "--kubeconfig, --context", kubeconfig)
        with pytest.raises(SystemExit) as ended:
            await Doctor(hub=choice, worker=None, binding="", terminal=Terminal(out), output=Format.TABLE).run()
    assert ended.value.code == 1 and "error    API server: the computing cluster" in out.getvalue()


@pytest.mark.parametrize(
    ("refused", "skipped"),
    [
        ("nodes", {"nodes", "kubelet port", "certificate requests", "DaemonSets", "waiting pods", "pod network"}),
        ("pods", {"DaemonSets", "waiting pods", "pod network"}),
    ],
)
async def test_no_check_passes_whose_input_may_not_be_read(tmp_path: Path, refused: str, skipped: set[str]) -> None:
    model = ApiModel(now=ManualClock().now)
    model.define(decode_yaml(definition(CLUSTERBINDINGS)))
    spec = {"clusterID": "demo", "mountNamespace": "mnt", "secretRef": {"name": "s", "namespace": "default"}}
    model.apply("/apis/cloud.tencent.com/v1beta1/clusterbindings/demo", {"metadata": {"name": "demo"}, "spec": spec}, user="me")
    async with served(model) as api:
        api.refused["me"] = {refused}
        choice = Choice("computing cluster", "", api.write_kubeconfig(tmp_path / "kubeconfig", "me"))
        made = Doctor(hub=choice, worker=None, binding="", terminal=Terminal(io.StringIO()), output=Format.TABLE)
        results = {each.check: result(each) for each in await made.examine()}
    assert {check for check, found in results.items() if found == "skipped"} >= skipped
