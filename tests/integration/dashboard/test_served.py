"""Who sees what on the dashboard of the manager, judged by a real API server: its client CA, TokenReview, SubjectAccessReview and RBAC."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from tests.integration.dashboard.readers import (
    BINDINGS,
    EVENTS,
    LIST_PODS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    Served,
    apply,
    serving,
    unverified,
)
from tests.support.program import PATIENCE, eventually
from vkubelet.testing.cluster import ControlPlane

PATHS = ("/", "/nodes", "/problems", "/calendar", "/ledger", "/events", "/static/style.css", "/absent")


def names(stand: Served) -> tuple[str, ...]:
    """What only a reader with a right may see."""
    return (stand.mark, *stand.teams, "node-01")


async def test_a_caller_without_credentials_gets_401_whatever_the_path(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        for path in (*PATHS, f"/nodes/{stand.node}", f"/pods/{stand.teams[0]}/pod-of-{stand.teams[0]}"):
            for token in ("", "not.a.token"):
                page = await stand.get(path, token)
                assert (page.status, page.text, page.headers["WWW-Authenticate"]) == (401, "Unauthorized", "Bearer"), path
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(stand.url.replace("https", "http"))


async def test_a_reader_without_rights_sees_nothing(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        token = await stand.reader()
        team = stand.teams[0]
        for path in ("/", "/nodes", "/problems", "/calendar", "/ledger", f"/nodes/{stand.node}"):
            page = await stand.get(path, token)
            assert page.status == 403 and "you may not list nodes" in page.text, (path, page.text)
            assert not any(name in page.text for name in names(stand)), page.text
        page = await stand.get(f"/pods/{team}/pod-of-{team}", token)
        assert page.status == 403, page.text


async def test_a_reader_of_one_namespace_sees_its_pods_and_nothing_else(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        mine, other = stand.teams
        token = await stand.reader(namespace=mine, narrow=[LIST_PODS])
        first = await stand.shown("/", token, mine)
        texts = [first.text]
        for path in ("/nodes", "/problems", "/calendar", "/ledger"):
            page = await stand.get(path, token)
            assert page.status == 200, (path, page.text)
            texts.append(page.text)
        for text in texts:
            assert other not in text and stand.mark not in text and "node-01" not in text, text
        assert "you may not list nodes" in texts[2] and "you may not list clusterbindings" in texts[2]
        # To list pods is not to get one.
        assert (await stand.get(f"/pods/{mine}/pod-of-{mine}", token)).status == 403
        gets = await stand.reader(namespace=mine, narrow=[PODS, EVENTS])
        await stand.shown(f"/pods/{mine}/pod-of-{mine}", gets, f"pod-of-{mine}")
        assert (await stand.get(f"/pods/{other}/pod-of-{other}", gets)).status == 403
        assert (await stand.get(f"/nodes/{stand.node}", gets)).status == 404


async def test_a_reader_of_nodes_alone_sees_no_pods_and_no_worker(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        token = await stand.reader(NODES)
        first = await stand.shown("/nodes", token, stand.node)
        assert not any(team in first.text for team in stand.teams)
        node = await stand.get(f"/nodes/{stand.node}", token)
        assert node.status == 200 and "Allocatable" not in node.text and not any(team in node.text for team in stand.teams), node.text
        overview = await stand.get("/", token)
        assert "you may not list them" in overview.text and "you may not list clusterbindings" in overview.text


async def test_the_worker_is_shown_to_readers_of_the_secret_of_its_binding(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        without = await stand.reader(NODES, BINDINGS, LIST_PODS, NAMESPACES)
        page = await stand.shown(f"/nodes/{stand.node}", without, "you may not get secrets")
        assert "Allocatable" not in page.text and f"{stand.mark}-half decides" not in page.text
        calendar = await stand.get("/calendar", without)
        assert "you may not get secrets" in calendar.text
        all_rights = await stand.reader(NODES, BINDINGS, PODS, NAMESPACES, EVENTS, SECRETS)
        page = await stand.shown(f"/nodes/{stand.node}", all_rights, "Allocatable")
        assert f"{stand.mark}-half" in page.text and all(team in page.text for team in stand.teams), page.text
        calendar = await stand.get("/calendar", all_rights)
        assert calendar.status == 200 and "you may not" not in calendar.text and stand.mark in calendar.text
        pod = await stand.get(f"/pods/{stand.teams[1]}/pod-of-{stand.teams[1]}", all_rights)
        assert pod.status == 200 and "What was changed for the worker" in pod.text, pod.text


async def test_a_client_certificate_of_the_cluster_names_the_reader(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        user = f"ann-{stand.mark}"
        meta = {"name": user}
        rbac, subject = "rbac.authorization.k8s.io/v1", {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
        await apply(
            hub,
            {"apiVersion": rbac, "kind": "ClusterRole", "metadata": meta, "rules": [NODES]},
            {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": meta, "roleRef": role, "subjects": [subject]},
        )
        stand.made.append(("clusterrole,clusterrolebinding", user))
        hub.authority.client(user, []).write(tmp_path, "ann")

        async def shown() -> bool:
            context = unverified()
            context.load_cert_chain(tmp_path / "ann.crt", tmp_path / "ann.key")
            try:
                return stand.node in (await stand.get("/nodes", context=context)).text
            except (aiohttp.ClientError, ssl.SSLError):
                # The client CA is not read yet.
                return False

        await eventually(shown, "the reader is known by its certificate")


async def test_open_pages_are_notified_and_a_proxy_names_their_path(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        token = await stand.reader(NODES, LIST_PODS)
        page = await stand.shown("/nodes", token, stand.node)
        assert f'href="/nodes/{stand.node}"' in page.text and page.headers["Cache-Control"] == "no-store"
        below = await stand.get("/nodes", token, headers={"X-Forwarded-Prefix": "/kubeocean"})
        assert f'href="/kubeocean/nodes/{stand.node}"' in below.text
        for prefix in ("//evil.example", "/a/../b", '/"><script>', "kubeocean"):
            assert (await stand.get("/nodes", token, headers={"X-Forwarded-Prefix": prefix})).status == 400
        connector = aiohttp.TCPConnector(ssl=unverified())
        async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as session:
            async with session.get(stand.url + "/events") as events:
                assert events.status == 200
                await hub.kubectl("taint", "node", stand.node, "kubeocean.io/out-of-time-windows=true:NoSchedule")
                async with asyncio.timeout(PATIENCE):
                    while b"event: change" not in await events.content.readline():
                        pass
        assert "Closed" in (await stand.get(f"/nodes/{stand.node}", token)).text
