"""What it takes to show usage, and what it costs the worker, on simulated nodes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.integration.kubeocean.conftest import Scene
from tests.support.audit import Audit
from tests.support.bound import apply, condition, roles_for
from tests.support.load import Load, Request
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import CommandFailed

PAGES = ("stats/summary", "metrics/resource", "metrics/cadvisor", "metrics/probes")
SAMPLE = "worker-metrics-rbac.yaml"
SCRAPERS = 24


def path(stage: Stage, page: str) -> str:
    return f"/api/v1/nodes/{stage.vnode}/proxy/{page}"


@pytest.fixture
async def granted(stage: Stage) -> AsyncIterator[Stage]:
    """The worker's owner has applied the sample."""
    bound = stage.bound
    roles = roles_for(bound.user, SAMPLE, name=bound.name, namespaces={"kubeocean-worker": bound.mount})
    await apply(bound.worker, *roles)
    try:
        yield stage
    finally:
        for role in roles:
            await bound.worker.kubectl("delete", role["kind"], role["metadata"]["name"])


async def test_without_the_right_the_answer_says_what_to_grant_and_nothing_else_suffers(common: Scene, stage: Stage) -> None:
    for page in PAGES:
        with pytest.raises(CommandFailed) as refused:
            await stage.bound.hub.kubectl("get", "--raw", path(stage, page))
        text = refused.value.stderr.replace('\\"', '"')
        assert 'cannot get resource "nodes/proxy"' in text and "grants `get` on `nodes/proxy`" in text and SAMPLE in text
    node = await stage.home.get("nodes", stage.vnode)
    assert node is not None and condition(node, "Ready") == "True"
    await stage.create("runs-all-the-same")
    await stage.running("runs-all-the-same")
    assert common.program.alive


async def test_with_the_right_the_pages_show_the_pods_of_the_binding_under_their_names(granted: Stage) -> None:
    await granted.create("shown")
    virtual = await granted.running("shown")

    async def page(name: str) -> str:
        try:
            return await granted.bound.hub.kubectl("get", "--raw", path(granted, name))
        except CommandFailed as error:
            # RBAC of the worker takes a moment to hear of it.
            assert "nodes/proxy" in error.stderr, error.stderr
            return ""

    for name in PAGES[:2]:
        text = await eventually(lambda name=name: page(name), f"{name} is shown")  # type: ignore[misc]
        assert "shown" in text and granted.namespace in text
        assert granted.physical_name("shown") not in text and granted.bound.mount not in text
    assert virtual["metadata"]["uid"] in await page("stats/summary")


async def test_many_scrapers_at_once_cost_the_worker_one_request(granted: Stage) -> None:
    hub, raw = granted.bound.hub, path(granted, "metrics/resource")

    async def allowed() -> bool:
        try:
            return bool(await hub.kubectl("get", "--raw", raw))
        except CommandFailed:
            return False

    await eventually(allowed, "the right has arrived")
    audit, begin = Audit(granted.bound.worker, granted.bound.user), time.monotonic()
    await Load(hub.kubeconfig, connections=SCRAPERS).send(Request("GET", raw, {}) for _ in range(SCRAPERS))
    seconds = time.monotonic() - begin
    print(f"{SCRAPERS} scrapers were answered in {seconds:.1f} s")
    asked = [call for call in audit.calls() if call.what == "nodes/proxy" and call.code == 200]
    # A page is given for a second, which may have begun before.
    assert len(asked) <= 2 + seconds, asked
    assert len(asked) < SCRAPERS


async def test_unknown_page_is_not_found_at_the_virtual_node_nor_requested_of_the_worker(granted: Stage) -> None:
    audit = Audit(granted.bound.worker, granted.bound.user)
    with pytest.raises(CommandFailed, match="could not find|NotFound|404"):
        await granted.bound.hub.kubectl("get", "--raw", path(granted, "metrics/nothing"))
    assert not [call for call in audit.calls() if call.what == "nodes/proxy"]
