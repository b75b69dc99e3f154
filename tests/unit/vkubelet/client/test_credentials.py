"""Credentials are fetched when needed, kept as long as they are good, and never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from vkubelet.client.credentials import Fixed, Plugin, PluginCommand, TokenFile
from vkubelet.client.oidc import Oidc
from vkubelet.clock import rfc3339
from vkubelet.errors import Unauthorized
from vkubelet.testing.clock import ManualClock

VERSION = "client.authentication.k8s.io/v1"


def plugin(tmp_path: Path, script: str, **more: Any) -> Plugin:
    """Runs `script`, which has `answer(status)` and `runs` (how often it was started, this time included)."""
    counter = tmp_path / "runs"
    prelude = (
        "import json, sys, os\n"
        f"open({str(counter)!r}, 'a').write('x')\n"
        f"runs = len(open({str(counter)!r}).read())\n"
        f"def answer(status): print(json.dumps({{'apiVersion': {VERSION!r}, 'kind': 'ExecCredential', 'status': status}}))\n"
    )
    return Plugin(PluginCommand(api_version=VERSION, command=sys.executable, args=["-c", prelude + script], **more))


async def test_token_is_kept_until_shortly_before_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    expiry = rfc3339(clock.now() + timedelta(seconds=100))
    one = plugin(tmp_path, f"answer({{'token': f't{{runs}}', 'expirationTimestamp': {expiry!r}}})")
    assert await one.authorization(clock) == "Bearer t1"
    await clock.advance(60)
    assert await one.authorization(clock) == "Bearer t1"
    await clock.advance(15)
    assert await one.authorization(clock) == "Bearer t2"


async def test_token_without_expiry_is_kept_until_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    one = plugin(tmp_path, "answer({'token': f't{runs}'})")
    await one.authorization(clock)
    await clock.advance(10**6)
    assert await one.authorization(clock) == "Bearer t1"
    assert one.invalidate("Bearer t1")
    assert await one.authorization(clock) == "Bearer t2"
    assert one.invalidate("Bearer t1"), "another caller noticed first"
    assert await one.authorization(clock) == "Bearer t2"


async def test_calls_at_the_same_time_share_one_run(tmp_path: Path) -> None:
    clock, seen = ManualClock(), []
    one = plugin(tmp_path, "answer({'token': f't{runs}'})")

    async def ask() -> None:
        seen.append(await one.authorization(clock))

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(ask())
    assert seen == ["Bearer t1"] * 5


async def test_plugin_is_told_the_cluster_and_that_nobody_is_at_the_terminal(tmp_path: Path) -> None:
    encoded = "base64.b64encode(os.environ['KUBERNETES_EXEC_INFO'].encode()).decode()"
    script = f"import base64\nanswer({{'token': {encoded} + '.' + os.environ['MORE']}})"
    one = plugin(tmp_path, script, env={"MORE": "more"}, cluster={"server": "https://api.example"})
    told, _, more = (await one.authorization(ManualClock())).removeprefix("Bearer ").partition(".")
    assert json.loads(base64.b64decode(told)) == {
        "apiVersion": VERSION,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://api.example"}},
    }
    assert more == "more"


async def test_certificate_comes_with_its_key(tmp_path: Path) -> None:
    one = plugin(tmp_path, "answer({'clientCertificateData': 'CERT', 'clientKeyData': 'KEY'})")
    assert await one.authorization(ManualClock()) == ""
    pair = one.certificate()
    assert pair is not None
    assert (pair.certificate, pair.key) == (b"CERT", b"KEY")
    assert "KEY" not in repr(pair)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("print('secret', file=sys.stderr); sys.exit(3)", "exit code 3"),
        ("print('secret')", "not a JSON object"),
        ("print('{}')", "is not an ExecCredential"),
        ("answer('secret')", "is not an ExecCredential"),
        ("answer({})", "neither a token nor"),
        ("answer({'clientCertificateData': 'secret'})", "neither a token nor"),
        ("answer({'token': 'secret', 'expirationTimestamp': 'soon'})", "expirationTimestamp"),
        ("answer({'token': 'secret', 'expirationTimestamp': 5})", "expirationTimestamp"),
    ],
)
async def test_failing_plugin_is_unauthorized_and_not_quoted(tmp_path: Path, script: str, says: str) -> None:
    with pytest.raises(Unauthorized, match=says) as caught:
        await plugin(tmp_path, script).authorization(ManualClock())
    assert "secret" not in str(caught.value)


async def test_missing_plugin_says_how_to_install_it() -> None:
    one = Plugin(PluginCommand(api_version=VERSION, command="/nowhere/at-all", hint="Install it with make."))
    with pytest.raises(Unauthorized, match="/nowhere/at-all: it cannot be started: No such file or directory. Install it with make."):
        await one.authorization(ManualClock())


async def test_token_file_survives_a_moment_of_absence(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", ManualClock()
    one = TokenFile(file)
    with pytest.raises(Unauthorized, match="cannot read the token file"):
        await one.authorization(clock)
    file.write_text("first\n")
    assert await one.authorization(clock) == "Bearer first"
    file.unlink()
    await clock.advance(61)
    assert await one.authorization(clock) == "Bearer first"
    file.write_text("second")
    assert await one.authorization(clock) == "Bearer first"
    await clock.advance(61)
    assert await one.authorization(clock) == "Bearer second"


def jwt(expires: float) -> str:
    return ".".join(["e30", base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("="), "x"])


def oidc(token: str) -> Oidc:
    return Oidc(issuer="https://issuer.example", client_id="me", client_secret="pw", id_token=token, refresh_token="")


async def test_oidc_token_is_used_until_it_expires() -> None:
    clock = ManualClock()
    one = oidc(jwt(clock.now().timestamp() + 100))
    assert (await one.authorization(clock)).startswith("Bearer e30.")
    await clock.advance(80)
    with pytest.raises(Unauthorized, match="expired"):
        await one.authorization(clock)
    assert "pw" not in repr(one)


def test_a_fixed_token_tells_its_end_and_what_renews_itself_tells_none(tmp_path: Path) -> None:
    end = datetime(2026, 5, 1, tzinfo=UTC)
    assert Fixed(f"Bearer {jwt(end.timestamp())}").expires() == end
    for header in ("Bearer e30.e30.x", "Bearer opaque", "Bearer a.b.c", "Basic dXNlcg==", ""):
        assert Fixed(header).expires() is None
    assert TokenFile(tmp_path / "token").expires() is None
    assert plugin(tmp_path, "").expires() is None
