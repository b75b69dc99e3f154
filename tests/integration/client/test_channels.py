"""What an API server says to who asks for a stream, as far as no node is needed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field
from kubernetes import client as k8s

from vkubelet.api.objects import SERVICEACCOUNTS
from vkubelet.client.connection import connection_from_kubeconfig
from vkubelet.client.credentials import TokenFile
from vkubelet.client.remote import port_forward, remote_command
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.errors import ApiError, Forbidden, Invalid, NotFound, Unauthorized
from vkubelet.provider import TerminalSize
from vkubelet.testing.cluster import ControlPlane


async def no_sizes() -> AsyncIterator[TerminalSize]:
    for never in ():
        yield never


@define
class Nobody:
    """Our end of a stream that never begins."""

    tty: bool = False
    stdin: AsyncIterator[bytes] | None = None
    resizes: AsyncIterator[TerminalSize] = field(factory=no_sizes)

    async def read(self) -> bytes:
        raise AssertionError("a stream that was refused was read from")

    async def write(self, data: bytes) -> None:
        raise AssertionError(data)

    write_stdout = write_stderr = write

    async def close(self) -> None:
        raise AssertionError("a stream that was refused was closed")


async def refused(client: Client, namespace: str, pod: str, *, subresource: str = "exec") -> ApiError:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/{subresource}"
    with pytest.raises(ApiError) as caught:
        if subresource == "portforward":
            await port_forward(client, path, 80, stream=Nobody())
        else:
            await remote_command(client, path, [("container", "main"), ("command", "true")], console=Nobody())
    return caught.value


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward"])
async def test_refusal_is_told_in_the_words_of_the_server(client: Client, namespace: str, witness: Any, subresource: str) -> None:
    missing = await refused(client, namespace, "nobody", subresource=subresource)
    assert (type(missing), missing.message) == (NotFound, 'pods "nobody" not found')
    container = k8s.V1Container(name="main", image="none")
    spec = k8s.V1PodSpec(containers=[container], scheduler_name="nobody")
    witness.create_namespaced_pod(namespace, k8s.V1Pod(metadata=k8s.V1ObjectMeta(name=subresource), spec=spec))
    homeless = await refused(client, namespace, subresource, subresource=subresource)
    assert (type(homeless), homeless.message) == (Invalid, f"pod {subresource} does not have a host assigned")
    witness.delete_namespaced_pod(subresource, namespace, grace_period_seconds=0)


async def test_token_that_has_run_out_is_fetched_anew_once(client: Client, hub: ControlPlane, namespace: str, tmp_path: Path) -> None:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    made = await client.create(SERVICEACCOUNTS, request, namespace=namespace, parent="default", subresource="token")
    authority = base64.b64encode(hub.ca.read_bytes()).decode()
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "hub", "user": "me"}}],
        "clusters": [{"name": "hub", "cluster": {"server": hub.url, "certificate-authority-data": authority}}],
        "users": [{"name": "me", "user": {}}],
    }
    file = tmp_path / "token"
    file.write_text("stale")
    credentials = TokenFile(file)
    assert await credentials.authorization(SystemClock()) == "Bearer stale"
    async with Client(evolve(connection_from_kubeconfig(config), credentials=credentials)) as ours:
        assert isinstance(await refused(ours, namespace, "nobody"), Unauthorized)
        assert await credentials.authorization(SystemClock()) == "Bearer stale"
        file.write_text(str(made.body["status"]["token"]))
        known = await refused(ours, namespace, "nobody")
    # That it may not is told to who is known.
    assert isinstance(known, Forbidden)
    assert f'system:serviceaccount:{namespace}:default" cannot get resource "pods/exec"' in known.message
