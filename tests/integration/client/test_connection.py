"""Every way to reach and to convince a real API server."""

from __future__ import annotations

import base64
import datetime
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from kubernetes import client as k8s

from tests.integration.client.proxy import Proxy
from tests.integration.server.backend import granted
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import CONFIGMAPS, NAMESPACES, SERVICEACCOUNTS
from vkubelet.client.connection import Connection, connection_from_kubeconfig, in_cluster, load_connection
from vkubelet.client.credentials import TokenFile
from vkubelet.client.rest import Client
from vkubelet.errors import Forbidden, Unauthorized, Unreachable
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.cluster import ControlPlane

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
async def token(hub: ControlPlane, client: Client, namespace: str, witness: Any) -> AsyncIterator[str]:
    """Of a service account that may read everything."""
    subject = k8s.RbacV1Subject(kind="ServiceAccount", name="default", namespace=namespace)
    role = k8s.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="ClusterRole", name="view")
    binding = k8s.V1ClusterRoleBinding(metadata=k8s.V1ObjectMeta(name=namespace), subjects=[subject], role_ref=role)
    rbac = k8s.RbacAuthorizationV1Api(witness.api_client)
    rbac.create_cluster_role_binding(binding)
    # The API server learns of the binding a moment later.
    await granted(hub, f"system:serviceaccount:{namespace}:default", "namespaces")
    yield await token_of(client, namespace)
    rbac.delete_cluster_role_binding(namespace)


async def token_of(client: Client, namespace: str) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    made = await client.create(SERVICEACCOUNTS, request, namespace=namespace, parent="default", subresource="token")
    return str(made.body["status"]["token"])


def kubeconfig(hub: ControlPlane, user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    authority = base64.b64encode(hub.ca.read_bytes()).decode()
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "hub", "user": "me", "namespace": "mine"}}],
        "clusters": [{"name": "hub", "cluster": {"server": hub.url, "certificate-authority-data": authority, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }


def administrator(hub: ControlPlane) -> dict[str, Any]:
    user: dict[str, Any] = decode_yaml(hub.kubeconfig.read_bytes())["users"][0]["user"]
    return user


async def works(connection: Connection) -> bool:
    async with Client(connection) as client:
        return bool((await client.list(NAMESPACES)).items)


async def test_token_in_a_kubeconfig(hub: ControlPlane, token: str) -> None:
    connection = connection_from_kubeconfig(kubeconfig(hub, {"token": token}))
    assert await works(connection)
    assert (connection.namespace, connection.insecure) == ("mine", False)
    assert token not in repr(connection)


async def test_inline_client_certificate_leaves_nothing_on_disk(hub: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    text = yaml.safe_dump(kubeconfig(hub, administrator(hub))).encode()
    assert await works(connection_from_kubeconfig(text))
    assert list(tmp_path.iterdir()) == []


async def test_certificates_in_files_beside_the_kubeconfig(hub: ControlPlane, tmp_path: Path) -> None:
    user = administrator(hub)
    for name in ("client-certificate", "client-key"):
        (tmp_path / f"{name}.pem").write_bytes(base64.b64decode(user[f"{name}-data"]))
    (tmp_path / "ca.pem").write_bytes(hub.ca.read_bytes())
    config = kubeconfig(hub, {"client-certificate": "client-certificate.pem", "client-key": "client-key.pem"})
    config["clusters"][0]["cluster"] = {"server": hub.url, "certificate-authority": "ca.pem"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert await works(await load_connection(kubeconfig=tmp_path / "config"))


async def test_files_of_the_environment_are_merged(hub: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kubeconfig(hub, administrator(hub))
    parts = {"a": {"current-context": "here", "contexts": whole["contexts"]}, "b": {**whole, "current-context": "other", "contexts": []}}
    for name, part in parts.items():
        (tmp_path / name).write_text(yaml.safe_dump(part))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(str(tmp_path / name) for name in ("missing", "a", "b")))
    assert await works(await load_connection())


async def test_unknown_authority_is_unreachable_and_insecure_is_seen(hub: ControlPlane, token: str) -> None:
    config = kubeconfig(hub, {"token": token})
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    with pytest.raises(Unreachable, match="certificate"):
        await works(connection_from_kubeconfig(config))
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    insecure = connection_from_kubeconfig(config)
    assert insecure.insecure
    assert await works(insecure)


async def test_server_name_is_what_the_certificate_is_checked_against(hub: ControlPlane, token: str) -> None:
    assert await works(connection_from_kubeconfig(kubeconfig(hub, {"token": token}, **{"tls-server-name": "kubernetes.default.svc"})))
    with pytest.raises(Unreachable, match="certificate"):
        await works(connection_from_kubeconfig(kubeconfig(hub, {"token": token}, **{"tls-server-name": "elsewhere.example"})))


async def test_proxy_of_the_kubeconfig_is_used(hub: ControlPlane, token: str) -> None:
    async with Proxy() as proxy:
        named = {"proxy-url": proxy.url, "tls-server-name": "kubernetes"}
        assert await works(connection_from_kubeconfig(kubeconfig(hub, {"token": token}, **named)))
        assert proxy.targets == [f"127.0.0.1:{hub.port}"]


async def test_proxy_of_the_environment_is_used_unless_excluded(hub: ControlPlane, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "192.0.2.0/24")
        config = kubeconfig(hub, {"token": token}, server=f"https://{hub.host_address}:{hub.port}")
        assert await works(connection_from_kubeconfig(config))
        assert proxy.targets == [f"{hub.host_address}:{hub.port}"]
        monkeypatch.setenv("NO_PROXY", f"192.0.2.0/24,{hub.host_address}/32")
        assert await works(connection_from_kubeconfig(config))
        assert len(proxy.targets) == 1


def plugin(folder: Path, script: str) -> dict[str, Any]:
    """A credential plugin in Python; it counts its runs in the file `runs` and finds `answer(**status)` defined."""
    path = folder / "plugin"
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"with open({str(folder / 'runs')!r}, 'a') as f: f.write('x')\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "def answer(**status): print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential', 'status': status}))\n" + script
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    env = [{"name": "TOKEN_FILE", "value": str(folder / "token")}]
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "env": env,
            "args": ["--x"],
            "provideClusterInfo": True,
        }
    }


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


async def test_plugin_gives_a_token_which_is_kept(hub: ControlPlane, token: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token)
    check = f"assert info['spec']['cluster']['server'] == {hub.url!r} and sys.argv[1] == '--x'"
    script = f"{check}\nanswer(token=open(os.environ['TOKEN_FILE']).read())"
    connection = connection_from_kubeconfig(kubeconfig(hub, plugin(tmp_path, script)), base=tmp_path)
    assert await works(connection)
    assert await works(connection)
    assert runs(tmp_path) == 1


async def test_plugin_is_asked_again_after_a_401(hub: ControlPlane, token: str, tmp_path: Path) -> None:
    script = "f = os.environ['TOKEN_FILE']\nanswer(token=open(f).read() if os.path.exists(f) else 'stale')"
    connection = connection_from_kubeconfig(kubeconfig(hub, plugin(tmp_path, script)), base=tmp_path)
    async with Client(connection) as client:
        with pytest.raises(Unauthorized, match="list namespaces"):
            await client.list(NAMESPACES)
        assert runs(tmp_path) == 2
        (tmp_path / "token").write_text(token)
        assert (await client.list(NAMESPACES)).items
        assert runs(tmp_path) == 3


async def test_plugin_gives_a_client_certificate(hub: ControlPlane, tmp_path: Path) -> None:
    user = administrator(hub)
    pair = {f"client{kind}Data": base64.b64decode(user[f"client-{kind.lower()}-data"]).decode() for kind in ("Certificate", "Key")}
    (tmp_path / "pair.json").write_text(json.dumps(pair))
    script = f"answer(**json.load(open({str(tmp_path / 'pair.json')!r})))"
    assert await works(connection_from_kubeconfig(kubeconfig(hub, plugin(tmp_path, script)), base=tmp_path))


async def test_token_file_is_read_again_after_a_minute_and_after_a_401(
    hub: ControlPlane, client: Client, token: str, tmp_path: Path
) -> None:
    file, clock = tmp_path / "token", ManualClock()
    file.write_text(token + "\n")
    connection = attrs.evolve(connection_from_kubeconfig(kubeconfig(hub, {"token": "x"})), credentials=TokenFile(file))
    async with Client(connection, clock=clock) as ours:
        assert (await ours.list(NAMESPACES)).items
        file.write_text("broken")
        assert (await ours.list(NAMESPACES)).items
        await clock.advance(61)
        with pytest.raises(Unauthorized):
            await ours.list(NAMESPACES)
        file.write_text(token)
        assert (await ours.list(NAMESPACES)).items


async def test_service_account_of_our_own_pod(hub: ControlPlane, token: str, tmp_path: Path) -> None:
    for name, text in (("token", token), ("ca.crt", hub.ca.read_text()), ("namespace", "mine")):
        (tmp_path / name).write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(hub.port)}
    connection = in_cluster(environment, tmp_path)
    assert await works(connection)
    assert connection.namespace == "mine"


async def test_replaced_client_certificate_files_are_used_within_a_minute(hub: ControlPlane, tmp_path: Path) -> None:
    def put(user: dict[str, Any], age: int) -> None:
        for name in ("client-certificate", "client-key"):
            (tmp_path / name).write_bytes(base64.b64decode(user[f"{name}-data"]))
            os.utime(tmp_path / name, ns=(age, age))

    put(decode_yaml(hub.client_config("nobody").read_bytes())["users"][0]["user"], 1)
    config = kubeconfig(hub, {"client-certificate": "client-certificate", "client-key": "client-key"})
    clock = ManualClock()
    async with Client(connection_from_kubeconfig(config, base=tmp_path), clock=clock) as client:
        with pytest.raises(Forbidden):
            await client.list(CONFIGMAPS)
        put(administrator(hub), 2)
        with pytest.raises(Forbidden):
            await client.list(CONFIGMAPS)
        await clock.advance(61)
        assert (await client.list(CONFIGMAPS)).items is not None
