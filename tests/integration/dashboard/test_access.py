"""Who sees which page: the token and the Host decide about the request, the API server about its content."""

from __future__ import annotations

from contextlib import AsyncExitStack

import aiohttp

from kubeocean.dashboard.live import MOST_OF_A_READER, SILENCE
from tests.integration.dashboard.clusters import HOSTILE, READER, standing
from tests.support.program import eventually


async def test_nothing_is_shown_without_the_token_or_under_another_name() -> None:
    async with standing() as stand, aiohttp.ClientSession() as session:
        for path in ("", "/", "/nodes", f"/{stand.token[:-1]}x/", f"/{stand.token[:-1]}/nodes", "/x/static/style.css", "/x/events"):
            async with session.get(f"http://127.0.0.1:{stand.port}{path}") as answer:
                assert answer.status == 404 and "vnode" not in await answer.text(), path
        for host in ("attacker.example", f"attacker.example:{stand.port}", "127.0.0.1", "127.0.0.1:1"):
            async with session.get(f"{stand.address}/", headers={"Host": host}) as answer:
                assert answer.status == 421 and "vnode" not in await answer.text(), host
        async with session.post(f"{stand.address}/") as answer:
            assert answer.status == 405


async def test_every_answer_forbids_other_scripts_frames_and_caches() -> None:
    async with standing() as stand, aiohttp.ClientSession() as session:
        for path in ("/", "/nodes", "/static/live.js", "/nodes/absent", "/static/absent"):
            async with session.get(stand.address + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Referrer-Policy"] == "no-referrer"
                assert "Server" not in answer.headers


async def test_a_page_shows_only_what_its_reader_may_read() -> None:
    async with standing(user=READER) as stand, aiohttp.ClientSession() as session:
        stand.hub.refused[READER] = {"pods", "secrets"}

        async def text(path: str) -> str:
            async with session.get(stand.address + path) as answer:
                return await answer.text()

        first = await text("/")
        assert "you may not list them" in first and "team-a" not in first and "vnode-frankfurt-node-01" in first
        problems = await text("/problems")
        assert "you may not list pods" in problems and "kubectl create clusterrole" in problems
        assert "big" not in problems
        node = await text("/nodes/vnode-frankfurt-node-01")
        assert "you may not get secrets" in node and "Physical node" in node
        assert "you may not get pods" in await text("/pods/team-a/pulls")
        calendar = await text("/calendar")
        assert "you may not get secrets in namespace kubeocean-system" in calendar and "lunch" not in calendar
        stand.hub.refused[READER] = {"nodes", "clusterbindings", "pods"}
        await stand.clock.advance(10)
        hidden = await text("/")
        assert "frankfurt" not in hidden and "you may not list nodes" in hidden


async def test_every_page_is_complete_without_a_browser() -> None:
    words = {
        "/": "vnode-frankfurt-node-01",
        "/nodes?binding=frankfurt&state=Closed": "vnode-frankfurt-node-04",
        "/nodes/vnode-frankfurt-node-01": "it has the highest rank of those with an open window",
        "/pods/team-a/pulls": "ImagePullBackOff",
        "/problems": "ClusterBinding oslo",
        "/calendar?days=14": "closes to new pods",
        "/ledger": "Observed",
    }
    async with standing() as stand, aiohttp.ClientSession() as session:
        for path, text in words.items():
            async with session.get(stand.address + path) as answer:
                body = await answer.text()
                assert answer.status == 200 and text in body and body.rstrip().endswith("</html>"), (path, body)


async def test_free_text_of_a_cluster_is_escaped_on_every_page() -> None:
    async with standing() as stand, aiohttp.ClientSession() as session:
        for path in ("/", "/problems", "/nodes/vnode-frankfurt-node-07", "/pods/ml/big", "/nodes/vnode-oslo-edge-0", "/pods/team-a/pulls"):
            async with session.get(stand.address + path) as answer:
                body = await answer.text()
            assert answer.status == 200 and HOSTILE not in body and "<svg onload" not in body and "<img" not in body, path
        async with session.get(stand.address + "/nodes/%3Cscript%3Ealert(1)%3C%2Fscript%3E") as answer:
            assert answer.status == 404 and "<script>alert" not in await answer.text()
        async with session.get(stand.address + "/nodes", params={"binding": HOSTILE, "state": HOSTILE}) as answer:
            assert HOSTILE not in await answer.text()
        for days in ("0", "32", "x", "-1"):
            async with session.get(stand.address + "/calendar", params={"days": days}) as answer:
                assert answer.status == 400


async def test_a_failed_reading_leaves_the_last_one_with_its_age() -> None:
    async with standing() as stand, aiohttp.ClientSession() as session:
        async with session.get(stand.address + "/nodes") as answer:
            assert "vnode-frankfurt-node-01" in await answer.text()
        stand.hub.broken = True
        await stand.clock.advance(60)
        for path in ("/nodes", "/problems"):
            async with session.get(stand.address + path) as answer:
                text = await answer.text()
            assert answer.status == 200 and "Reading failed" in text and "1 min ago" in text, text
        stand.hub.broken = False
        await stand.clock.advance(10)
        async with session.get(stand.address + "/nodes") as answer:
            assert "Reading failed" not in await answer.text()


async def test_pages_that_were_left_count_no_longer_than_seconds() -> None:
    async with standing() as stand, aiohttp.ClientSession() as session:

        async def status() -> int:
            async with session.get(f"{stand.address}/events") as answer:
                return answer.status

        async with AsyncExitStack() as opened:
            for _ in range(MOST_OF_A_READER):
                await opened.enter_async_context(session.get(f"{stand.address}/events"))
            assert await status() == 503

        async def accepted() -> bool:
            return await status() == 200

        await eventually(accepted, "a page gets events", seconds=SILENCE / 2)
