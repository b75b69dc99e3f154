"""The dashboard of the program `kubeocean manager`: served by every replica, only where the settings say so."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from tests.integration.dashboard.readers import NODES, free_port, unverified
from tests.integration.manager.conftest import Computing, MakeBinding
from tests.support.program import PATIENCE, eventually
from vkubelet.api.rbac import RBAC, role_binding

READER = "reader-of-the-dashboard"


def got(port: int, path: str, token: str = "") -> tuple[int, str]:
    """Status and text; 0 where nothing listens."""
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=unverified()) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def reader(computing: Computing) -> str:
    """The token of a ServiceAccount that may list nodes."""
    subject = {"kind": "ServiceAccount", "name": READER, "namespace": "default"}
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": READER}, "rules": [NODES]}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": READER, "namespace": "default"}}
    items = [account, role, role_binding(READER, "", role=READER, subject=subject)]
    await computing.hub.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return (await computing.hub.kubectl("create", "token", "-n", "default", READER)).strip()


async def test_a_standby_replica_serves_the_dashboard_to_whom_the_cluster_knows(computing: Computing, bind: MakeBinding) -> None:
    token, port = await reader(computing), free_port()
    binding = bind()
    shown = {"enabled": True, "server": {"bind_address": "127.0.0.1", "port": port}}
    with computing.manager("shown", dashboard=shown) as standby:
        await eventually(lambda: got(port, "/")[0] == 401, "the dashboard is served", by=[standby])
        assert got(port, "/", "not.a.token") == (401, "Unauthorized")

        def page() -> str:
            status, text = got(port, "/", token)
            return text if status == 200 else ""

        text = await eventually(page, "the reader has got its right")
        assert "you may not list clusterbindings" in text and binding.name not in text
        assert computing.program.alive, "the other one leads"
    assert got(port, "/")[0] == 0, "it ends with its process"


@pytest.mark.parametrize(
    ("dashboard", "words"),
    [
        ({"enabled": True, "server": {"port": 70000}}, "dashboard.server.port"),
        ({"enabled": True, "server": {"certificate": "files"}}, "dashboard.server.certificate_file"),
        ({"enabled": True, "server": {"bind_address": "here"}}, "dashboard.server.bind_address"),
        ({"enabled": True, "interval": 0}, "dashboard.interval"),
    ],
)
async def test_a_wrong_setting_of_the_dashboard_is_refused_by_its_name(
    computing: Computing, dashboard: dict[str, object], words: str
) -> None:
    program = computing.manager("wrong", dashboard=dashboard)
    with program:
        code = program.process.wait(PATIENCE)
    assert code == 2 and words in program.tail(), program.tail()


async def test_a_port_that_is_taken_is_an_error_of_the_setting(computing: Computing) -> None:
    shown = {"enabled": True, "server": {"bind_address": "127.0.0.1", "port": computing.metrics_port}}
    program = computing.manager("taken", dashboard=shown)
    with program:
        code = program.process.wait(PATIENCE)
    assert code == 2 and "dashboard.server.port" in program.tail(), program.tail()
