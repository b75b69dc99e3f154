"""A kubeconfig is checked before it is used, and its secrets stay in it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from vkubelet.client.connection import Connection, connection_from_kubeconfig, environment_proxy, in_cluster, load_connection
from vkubelet.client.kubeconfig import parse, pick, read_files
from vkubelet.clock import SystemClock
from vkubelet.errors import SettingsError

SECRET = "c2VjcmV0"


def config(user: Any = None, **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443/", **cluster}}],
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
    }


def changed(**changes: Any) -> dict[str, Any]:
    return {**config(), **changes}


async def authorization(connection: Connection) -> str:
    return (await connection.security(SystemClock())).authorization


async def test_complete_kubeconfig_gives_a_connection_that_prints_no_secret() -> None:
    connection = connection_from_kubeconfig(config())
    assert (connection.url, connection.namespace, connection.server_name) == ("https://api.example:6443", "default", "")
    assert await authorization(connection) == f"Bearer {SECRET}"
    assert SECRET not in repr(connection)


async def test_text_and_parsed_kubeconfigs_are_the_same() -> None:
    assert connection_from_kubeconfig(yaml.safe_dump(config()).encode()).url == connection_from_kubeconfig(config()).url


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        (b"a: [" + SECRET.encode(), r"kubeconfig: is not valid YAML \(line 1\)"),
        (b"\xfe" + SECRET.encode(), "kubeconfig: is not valid YAML"),
        (SECRET.encode(), "kubeconfig: is not a kubeconfig"),
        (b"", "kubeconfig: is not a kubeconfig"),
        (b"!!python/object/apply:os.system [x]", "kubeconfig: is not valid YAML"),
        (changed(contexts=SECRET), "kubeconfig.contexts: must be a list"),
        (changed(contexts=[SECRET]), "kubeconfig.contexts: must be a list"),
        (changed(**{"current-context": ""}), "kubeconfig: has no current-context"),
        (changed(**{"current-context": "there"}), "kubeconfig: has no context 'there'"),
        (changed(clusters=[]), r"contexts\[0\]\.context\.cluster: names a cluster that is not in"),
        (changed(users=None), r"contexts\[0\]\.context\.user: names a user that is not in"),
        (changed(clusters=[{"name": "c"}]), r"clusters\[0\]\.cluster\.server: must be the URL"),
        (changed(users=[{"name": "u", "user": SECRET}]), r"users\[0\]\.user: must be a mapping"),
        (config({"token": 5}), r"users\[0\]\.user\.token: must be text"),
        (config({"client-certificate-data": SECRET}), r"users\[0\]\.user: client-certificate and client-key must be given together"),
        (config({"client-certificate-data": "%%", "client-key-data": SECRET}), r"client-certificate-data: is not valid base64"),
        (config({"client-certificate-data": SECRET, "client-key-data": SECRET}), r"client-certificate-data: certificate and private key"),
        (config(**{"certificate-authority-data": SECRET}), r"certificate-authority-data: is not a PEM certificate"),
        (config(**{"certificate-authority-data": "é"}), r"certificate-authority-data: is not valid base64"),
        (config(**{"insecure-skip-tls-verify": "yes"}), r"insecure-skip-tls-verify: must be true or false"),
        (config(server="api.example"), r"clusters\[0\]\.cluster\.server: must be the URL"),
        (config(server="https://[api"), r"server: must be the URL"),
        (config(**{"proxy-url": "socks5://x"}), r"proxy-url: must begin with http"),
        (config(**{"proxy-url": f"http://me:{SECRET}@h:999999"}), r"proxy-url: must begin with http"),
        (config(**{"proxy-url": f"http://me:{SECRET}@:3128"}), r"proxy-url: must begin with http"),
        (config(server=f"https://me:{SECRET}@api.example"), r"server: must be the URL"),
        (config(server="https://api..example"), r"server: must be the URL"),
        (config({"token": f"{SECRET}\n{SECRET}"}), r"users\[0\]\.user\.token: must be one line"),
        (config({"tokenFile": "/etc/passwd"}), r"tokenFile: must not name a file here"),
        (config({"client-certificate": "/a", "client-key": "/b"}), r"client-certificate: must not name a file here"),
        (config({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws"}}), r"exec: must not run a program here"),
        (config({"auth-provider": {"name": "gcp", "config": {}}}), r"auth-provider\.name: is not supported"),
    ],
)
def test_what_is_wrong_is_named_without_its_content(broken: bytes | dict[str, Any], names: str) -> None:
    with pytest.raises(SettingsError, match=names) as caught:
        connection_from_kubeconfig(broken)
    assert SECRET not in str(caught.value)
    assert caught.value.path


@pytest.mark.parametrize(
    ("plugin", "names"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}, "apiVersion: must be one of"),
        ({"apiVersion": "client.authentication.k8s.io/v1"}, "command: is missing"),
        ({"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "interactiveMode": "Always"}, "interactiveMode"),
        ({"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "args": "y"}, "args: must be a list"),
        ({"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "env": "y"}, "env: must be a list"),
    ],
)
def test_broken_plugins_are_refused_before_they_run(plugin: dict[str, Any], names: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=names):
        connection_from_kubeconfig(config({"exec": plugin}), base=tmp_path)


async def test_line_end_after_a_token_is_no_part_of_it() -> None:
    assert await authorization(connection_from_kubeconfig(config({"token": f"{SECRET}\n"}))) == f"Bearer {SECRET}"


async def test_user_and_password_become_basic_authentication() -> None:
    header = await authorization(connection_from_kubeconfig(config({"username": "me", "password": "pw"})))
    assert header == "Basic " + base64.b64encode(b"me:pw").decode()


async def test_context_without_user_is_anonymous() -> None:
    bare = changed(contexts=[{"name": "here", "context": {"cluster": "c"}}])
    assert await authorization(connection_from_kubeconfig(bare)) == ""


def test_http_counts_as_insecure() -> None:
    assert connection_from_kubeconfig(config(server="http://api.example")).insecure
    assert not connection_from_kubeconfig(config()).insecure


async def test_token_file_goes_before_the_token_and_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "config").write_text(yaml.safe_dump(config({"token": "inline", "tokenFile": "token"})))
    assert await authorization(await load_connection(kubeconfig=tmp_path / "config")) == "Bearer from-file"


def test_of_several_files_the_first_to_say_something_wins(tmp_path: Path) -> None:
    first = {"contexts": [{"name": "here", "context": {"cluster": "c", "namespace": "first"}}]}
    (tmp_path / "1").write_text(yaml.safe_dump(first))
    (tmp_path / "2").write_text(yaml.safe_dump(config()))
    (tmp_path / "3").write_text(yaml.safe_dump(changed(**{"current-context": "other"})))
    access = read_files([tmp_path / name for name in "123"])
    assert (access.namespace, access.server) == ("first", "https://api.example:6443")


def test_context_can_be_chosen() -> None:
    contexts = [*config()["contexts"], {"name": "there", "context": {"cluster": "c", "namespace": "chosen"}}]
    assert pick([parse(changed(contexts=contexts), "kubeconfig", None)], "there").namespace == "chosen"


async def test_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        await load_connection(kubeconfig=tmp_path / "missing")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"\$KUBECONFIG"):
        await load_connection()


async def test_without_any_configuration_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="none found: pass its path"):
        await load_connection()
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(yaml.safe_dump(config()))
    assert (await load_connection()).url == "https://api.example:6443"


def test_pod_without_a_mounted_token_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="automountServiceAccountToken"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("https://api.example", {}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://api.example", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("http://api.example", {"HTTPS_PROXY": "http://p:3128"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p", "NO_PROXY": "other, example"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".example"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*.example"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p", "no_proxy": "api.example:443"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p", "NO_PROXY": "pi.example,ample"}, "http://p"),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.1.2.3"}, ""),
        ("https://11.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, "http://p"),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "fd00::/8"}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p"}, ""),
    ],
)
def test_proxy_of_the_environment(url: str, environment: dict[str, str], proxy: str) -> None:
    assert environment_proxy(url, environment) == proxy
