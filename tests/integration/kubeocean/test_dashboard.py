"""`kubeocean dashboard` against two real clusters: its pages show what the clusters have, and end with the command."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.integration.kubeocean.conftest import Scene
from tests.integration.kubeocean.console import SCRIPT
from tests.support.bound import get
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage


@asynccontextmanager
async def dashboard(kubeconfig: Path) -> AsyncIterator[str]:
    """Runs the command; the address of its first page. It has to end by Ctrl-C without an error."""
    pipe = asyncio.subprocess.PIPE
    flags = ("--no-open", "--interval", "2", "--kubeconfig", str(kubeconfig))
    process = await asyncio.create_subprocess_exec(str(SCRIPT), "dashboard", *flags, stdout=pipe, stderr=pipe)
    assert process.stdout is not None and process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{43}/", line)
        assert found is not None, line or (await process.stderr.read()).decode()
        yield found.group()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0 and await process.stderr.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.timeout(900)
async def test_pages_show_nodes_pods_and_windows_of_real_clusters(common: Scene, stage: Stage) -> None:
    bound, (node, *_) = common.bound, common.vnodes
    await stage.create("web", labels={"app": "web"})
    await stage.running("web")
    offered = (await get(bound.hub, "node", node))["status"]["allocatable"]["cpu"]
    async with dashboard(bound.hub.client_config("dashboard-of-all", ["system:masters"])) as address, aiohttp.ClientSession() as session:

        async def text(path: str) -> str:
            async with session.get(address + path) as answer:
                assert answer.status == 200, (path, await answer.text())
                return await answer.text()

        overview = await text("")
        assert f"binding={bound.name}" in overview and f"nodes/{node}" in overview

        async def listed() -> bool:
            return f"{stage.namespace}/web" in await text(f"nodes/{node}")

        await eventually(listed, "the pod is on the page of its node")
        page = await text(f"nodes/{node}")
        assert f"<b>{offered}</b>" in page and f"all-of-{bound.name}" in page and "has no node behind" not in page
        pod = await text(f"pods/{stage.namespace}/web")
        assert "Nothing keeps it from running" in pod and common.nodes[0] in pod
        assert f"all-of-{bound.name} has no time windows" in await text("calendar?days=7")
        async with session.get(address.rsplit("/", 2)[0] + "/") as answer:
            assert answer.status == 404


@pytest.mark.timeout(600)
async def test_a_user_without_rights_sees_their_names_and_no_data(common: Scene) -> None:
    kubeconfig = common.bound.hub.client_config("dashboard-of-nothing", [])
    async with dashboard(kubeconfig) as address, aiohttp.ClientSession() as session, session.get(address + "problems") as answer:
        text = await answer.text()
        for resource in ("clusterbindings.cloud.tencent.com", "nodes", "pods"):
            assert f"you may not list {resource}" in text
        assert common.vnodes[0] not in text and f"ClusterBinding {common.bound.name}" not in text
