"""Where probes go; what they do there is tested with real listeners."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.api.objects import PodRef
from vkubelet.clock import SystemClock
from vkubelet.containers.checks import Captured, CheckResult, Checks, CheckTarget, port_of, request_url

REF = PodRef("default", "web", "uid", "node")


def target(address: str = "10.0.0.1") -> CheckTarget:
    return CheckTarget(REF, "main", {"name": "main", "ports": [{"name": "http", "containerPort": 81}]}, address)


@pytest.mark.parametrize(
    ("action", "address", "url"),
    [
        ({"port": 80}, "10.0.0.1", "http://10.0.0.1/"),
        ({"port": "http", "path": "/x?y=1"}, "10.0.0.1", "http://10.0.0.1:81/x?y=1"),
        ({"port": "8080", "path": "x"}, "10.0.0.1", "http://10.0.0.1:8080/x"),
        ({"port": 443, "scheme": "HTTPS"}, "fd00::1", "https://[fd00::1]/"),
        ({"port": 80, "host": "other.test"}, "10.0.0.1", "http://other.test/"),
    ],
)
def test_urls(action: dict[str, Any], address: str, url: str) -> None:
    assert str(request_url(target(address), action)) == url


def test_port_without_such_a_name() -> None:
    with pytest.raises(LookupError, match="couldn't find port: grpc in container main"):
        port_of(target().spec, "grpc")


@pytest.mark.parametrize(
    ("kind", "host"),
    [
        *(("httpGet", host) for host in ("a b", "[::1]", "a/b", "user@host", "a:b", "#", "?", "%", "\x00", "\udcff")),
        *(("tcpSocket", host) for host in ("a..b", "a" * 70 + ".x", "\udcff")),
    ],
)
async def test_odd_host_of_a_probe_or_hook_is_a_failure(kind: str, host: str) -> None:
    async with Checks(None, clock=SystemClock()) as checks:
        outcome = await checks.run(target(), {kind: {"host": host, "port": 1}}, timeout=5)
    assert outcome.ok is False
    assert "no such host" in outcome.output
    assert outcome.output.encode()


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket", "grpc"])
@pytest.mark.parametrize("port", ["99999", 70000, 0, -1, "-1", "²", ""])
async def test_odd_port_of_a_probe_or_hook_is_an_error(kind: str, port: int | str) -> None:
    async with Checks(None, clock=SystemClock()) as checks:
        outcome = await checks.run(target("127.0.0.1"), {kind: {"port": port}}, timeout=5)
    assert outcome.ok is None
    assert "port" in outcome.output


async def test_action_of_no_known_kind_can_not_be_carried_out() -> None:
    outcome = await Checks(None, clock=SystemClock()).run(target(), {}, timeout=1)
    assert outcome == CheckResult(None, "missing handler for web_default(uid):main")


async def test_output_is_kept_up_to_its_limit() -> None:
    captured = Captured()
    for _ in range(3):
        await captured.write_stdout(b"x" * 4000)
        await captured.write_stderr(b"y" * 4000)
    assert len(captured.text) == 10 * 1024
    assert captured.stdin is None
    assert [size async for size in captured.resizes] == []


async def test_stdout_comes_before_stderr_as_a_kubelet_shows_them() -> None:
    captured = Captured()
    for write, text in (
        (captured.write_stderr, b"c"),
        (captured.write_stdout, b"a"),
        (captured.write_stderr, b"d"),
        (captured.write_stdout, b"b"),
    ):
        await write(text)
    assert captured.text == "abcd"
