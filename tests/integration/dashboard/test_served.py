"""Who sees what on the dashboard of the manager, judged by a real API server: its client CA, TokenReview, SubjectAccessReview and RBAC."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from kubeocean.model import keys
from tests.integration.dashboard.readers import (
    BINDINGS,
    BUDGETS,
    EVENTS,
    LIST_PODS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    Served,
    apply,
    free_port,
    serving,
    unverified,
)
from tests.integration.server.backend import RUNNING, Backend
from tests.integration.server.backend import serving as kubelet
from tests.support.program import PATIENCE, eventually
from vkubelet.api.objects import PODS as PODS_KIND
from vkubelet.api.objects import Key, PodRef
from vkubelet.api.rbac import RBAC
from vkubelet.clock import SystemClock
from vkubelet.control.certificates import Name, self_signed
from vkubelet.provider import ByteStream
from vkubelet.testing.cluster import ControlPlane

SCRIPT = Path(sys.executable).with_name("kubeocean")
PIPE = asyncio.subprocess.PIPE
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
        for path in (*PATHS[:-1], f"/nodes/{stand.node}"):
            page = await stand.get(path, token)
            # The connection is closed: it still counts as one of a stranger.
            assert page.status == 403 and page.headers["Connection"] == "close" and "you may not list nodes" in page.text, (path, page.text)
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
        # The page has no flags: the remedy is a command, with the name of the binding.
        assert f"kubeocean dashboard --binding {stand.mark} --worker-context CTX" in calendar.text, calendar.text
        assert "or name the worker cluster" not in calendar.text + page.text
        all_rights = await stand.reader(NODES, BINDINGS, PODS, NAMESPACES, EVENTS, SECRETS, BUDGETS)
        page = await stand.shown(f"/nodes/{stand.node}", all_rights, "Allocatable")
        assert f"{stand.mark}-half" in page.text and all(team in page.text for team in stand.teams), page.text
        calendar = await stand.get("/calendar", all_rights)
        assert calendar.status == 200 and "you may not" not in calendar.text and stand.mark in calendar.text
        pod = await stand.get(f"/pods/{stand.teams[1]}/pod-of-{stand.teams[1]}", all_rights)
        assert pod.status == 200 and "What was changed for the worker" in pod.text, pod.text


async def test_a_client_certificate_of_the_cluster_names_the_reader(hub: ControlPlane, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as stand:
        user = f"ann-{stand.mark}"
        await stand.grant({"apiGroup": RBAC, "kind": "User", "name": user}, user, NODES)
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
            await notified(stand, session, stand.url + "/events")
        assert "Closed" in (await stand.get(f"/nodes/{stand.node}", token)).text


async def notified(stand: Served, session: aiohttp.ClientSession, address: str) -> None:
    """Opens a stream of events, closes the node, and waits for the event."""
    async with session.get(address) as events:
        assert events.status == 200
        await stand.hub.kubectl("taint", "node", stand.node, "kubeocean.io/out-of-time-windows=true:NoSchedule")
        async with asyncio.timeout(PATIENCE):
            line = b""
            while b"event: change" not in line:
                line = await events.content.readline()


@asynccontextmanager
async def published(stand: Served, pod: Key) -> AsyncIterator[None]:
    """Publishes the certificate of the dashboard on a pod while entered."""
    stand.dashboard.pod = pod
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(stand.dashboard._publish())

        async def there() -> bool:
            return "BEGIN CERTIFICATE" in await stand.hub.kubectl("get", "pod", pod.name, "-n", pod.namespace, "-o", "yaml")

        await eventually(there, "the certificate is on the pod")
        yield
        publishing.cancel()


@asynccontextmanager
async def opened(kubeconfig: Path, *flags: str, says: str = "") -> AsyncIterator[str]:
    """Runs `kubeocean dashboard`; yields the address that it prints below what it `says`, and ends it by Ctrl-C."""
    command = (str(SCRIPT), "dashboard", "--no-open", *flags, "--kubeconfig", str(kubeconfig))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None and process.stderr is not None
    try:
        text = b""
        while b"http://127.0.0.1" not in text:
            line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
            assert line, await process.stderr.read()
            text += line
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/[\w-]{43}/", text.decode())
        assert says in text.decode(), text
        yield address
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, await process.stderr.read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Dialing(Backend):
    """A provider whose pods listen on loopback of this machine."""

    async def port_forward(self, pod: PodRef, port: int, stream: ByteStream) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            while data := await stream.read():
                writer.write(data)
                await writer.drain()
            writer.write_eof()

        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(send())
                while data := await reader.read(65536):
                    await stream.write(data)
                sending.cancel()
        finally:
            writer.close()


@pytest.fixture
async def manager_pod(hub: ControlPlane) -> AsyncIterator[tuple[Key, Callable[[int], Awaitable[None]]]]:
    """A pod of the manager on a node of its own, whose forwarded ports are those of this machine; `announce` publishes a port."""
    name = f"kubeocean-manager-{uuid.uuid4().hex[:6]}"
    await apply(hub, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.NAMESPACE}})
    async with kubelet(hub, Dialing()) as stand:
        await stand.node(name)

        async def announce(port: int) -> None:
            ports = [{"name": "dashboard", "containerPort": port}]
            container = {"name": "manager", "image": "none", "ports": ports}
            labels = {"app.kubernetes.io/name": "kubeocean-manager"}
            spec = {"nodeName": name, "containers": [container], "tolerations": [{"operator": "Exists"}]}
            body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
            await stand.client.create(PODS_KIND, body, namespace=keys.NAMESPACE)
            await stand.status(Key(keys.NAMESPACE, name), {"manager": {"state": RUNNING}})
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await stand.client.patch(PODS_KIND, Key(keys.NAMESPACE, name), ready, subresource="status")

        yield Key(keys.NAMESPACE, name), announce
        await hub.kubectl("delete", "pod", name, "-n", keys.NAMESPACE, "--grace-period=0", "--force", "--ignore-not-found")


async def test_the_command_opens_the_page_of_the_manager_with_the_rights_of_its_user(
    hub: ControlPlane, tmp_path: Path, manager_pod: tuple[Key, Callable[[int], Awaitable[None]]]
) -> None:
    pod, announce = manager_pod
    async with serving(hub, tmp_path, port=free_port()) as stand:
        await announce(stand.dashboard.server.port)
        user = f"bea-{stand.mark}"
        forwards = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}
        await stand.grant({"apiGroup": RBAC, "kind": "User", "name": user}, user, NODES, LIST_PODS, forwards)
        async with published(stand, pod), opened(hub.client_config(user), "--manager") as address, aiohttp.ClientSession() as session:
            async with session.get(address + "nodes") as answer:
                body = await answer.text()
            assert answer.status == 200 and stand.node in body and f'href="{urlsplit(address).path}nodes/{stand.node}"' in body
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            async with session.get(address + "calendar") as answer:
                assert "You may not list ClusterBindings" in await answer.text()
            async with session.get(address.replace(address[-8:], "x" * 7 + "/") + "nodes") as answer:
                assert answer.status == 404
            await notified(stand, session, address + "events")


async def test_the_command_reads_the_clusters_itself_where_it_cannot_reach_the_manager(
    hub: ControlPlane, tmp_path: Path, manager_pod: tuple[Key, Callable[[int], Awaitable[None]]]
) -> None:
    pod, announce = manager_pod
    async with serving(hub, tmp_path, port=free_port()) as stand:
        await announce(stand.dashboard.server.port)
        user = f"cleo-{stand.mark}"
        await stand.grant({"apiGroup": RBAC, "kind": "User", "name": user}, user, NODES, LIST_PODS)
        why = "! the dashboard of the manager in the computing cluster cannot be opened"
        async with published(stand, pod), opened(hub.client_config(user), says=why) as address, aiohttp.ClientSession() as session:
            async with session.get(address + "nodes") as answer:
                assert answer.status == 200 and stand.node in await answer.text()


async def test_the_command_refuses_a_process_with_another_certificate(
    hub: ControlPlane, tmp_path: Path, manager_pod: tuple[Key, Callable[[int], Awaitable[None]]]
) -> None:
    pod, announce = manager_pod
    async with serving(hub, tmp_path, port=free_port()) as stand:
        await announce(stand.dashboard.server.port)
        other = self_signed(Name("kubeocean-dashboard"), ["kubeocean-dashboard"], now=SystemClock().now()).certificate.decode()
        change = json.dumps({"metadata": {"annotations": {keys.DASHBOARD_CERTIFICATE: other}}})
        await hub.kubectl("patch", "pod", pod.name, "-n", pod.namespace, "--type=merge", "-p", change)
        command = (str(SCRIPT), "dashboard", "--no-open", "--manager", "--kubeconfig", str(hub.kubeconfig))
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, error = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 1 and b"http://127" not in out and b"certificate" in error.lower(), (out, error)
