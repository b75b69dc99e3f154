"""`/healthz` answers in the form of Kubernetes' health checks."""

from __future__ import annotations

import asyncio

import pytest

from vkubelet.server.node_endpoints import duration, health_report, kubelet_configuration, waiting_tasks
from vkubelet.server.settings import DebugSettings, ServerSettings


def test_healthy_is_ok_and_nothing_else() -> None:
    answer = health_report(())
    assert (answer.status, answer.text) == (200, "ok")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_verbose_lists_every_check() -> None:
    assert health_report((), verbose=True).text == "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"


def test_a_failing_check_is_500_and_lists_all_without_the_reason() -> None:
    answer = health_report(("syncloop",))
    assert answer.status == 500
    assert answer.text == "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"


def test_an_excluded_check_can_not_fail_the_whole() -> None:
    answer = health_report(("syncloop",), excluded=["syncloop", "moon"], verbose=True)
    assert answer.status == 200
    expected = (
        "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "moon"\nhealthz check passed\n'
    )
    assert answer.text == expected


def test_settings_appear_by_the_names_a_kubelet_has_for_them() -> None:
    settings = ServerSettings(
        anonymous=True, token_review=False, client_ca_file="/ca.crt", main_port=10251, debug=DebugSettings(profiling=True, node_logs=False)
    )
    told = kubelet_configuration(settings)
    assert told["port"] == 10251
    assert told["authentication"]["x509"] == {"clientCAFile": "/ca.crt"}
    assert told["authentication"]["anonymous"] == {"enabled": True}
    assert told["authentication"]["webhook"] == {"enabled": False}
    assert (told["enableProfilingHandler"], told["enableSystemLogHandler"]) == (True, False)
    assert kubelet_configuration(ServerSettings(main_port=False))["port"] == 0


def test_configz_has_these_fields_alone_and_no_content_of_a_file() -> None:
    """A further field is added here only if it is no secret; of keys and tokens not even the path is shown."""
    settings = ServerSettings(certificate="files", certificate_file="/c.crt", key_file="/c.key", client_ca_file="/ca.crt")
    shown = kubelet_configuration(settings)
    assert set(shown) == {
        *("enableServer", "address", "port", "serverTLSBootstrap", "authentication", "authorization", "streamingConnectionIdleTimeout"),
        *("enableDebuggingHandlers", "enableProfilingHandler", "enableDebugFlagsHandler", "enableSystemLogHandler", "enableSystemLogQuery"),
    }
    assert set(shown["authentication"]) == {"x509", "webhook", "anonymous"} and "/c.key" not in str(shown)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (1.5, "1.5s"), (30, "30s"), (300, "5m0s"), (14400, "4h0m0s"), (3725, "1h2m5s"), (0.25, "0.25s")]
)
def test_durations_read_as_go_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_tasks_are_listed_by_name_with_their_place() -> None:
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(asyncio.Event().wait(), name="a patient one")
        await asyncio.sleep(0)
        text = waiting_tasks()
        waiter.cancel()
    assert "task a patient one:" in text
    assert "in wait" in text
