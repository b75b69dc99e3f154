"""`/configz` tells our settings by the names of a KubeletConfiguration."""

from __future__ import annotations

import pytest

from vkubelet.server.configuration import duration, kubelet_configuration
from vkubelet.server.settings import DebugSettings, ServerSettings


def test_settings_appear_by_the_names_a_kubelet_has_for_them() -> None:
    settings = ServerSettings(
        anonymous=True, token_review=False, client_ca_file="/ca.crt", main_port=10251, debug=DebugSettings(profiling=True, node_logs=False)
    )
    told = kubelet_configuration(settings)
    assert told["port"] == 10251
    assert told["authentication"]["x509"] == {"clientCAFile": "/ca.crt"}
    assert told["authentication"]["anonymous"] == {"enabled": True}
    assert told["authentication"]["webhook"] == {"enabled": False, "cacheTTL": "2m0s"}
    assert told["authorization"]["webhook"] == {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"}
    assert (told["enableProfilingHandler"], told["enableSystemLogHandler"]) == (True, False)
    assert kubelet_configuration(ServerSettings(main_port=False))["port"] == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (1.5, "1.5s"), (30, "30s"), (300, "5m0s"), (14400, "4h0m0s"), (3725, "1h2m5s"), (0.25, "0.25s")]
)
def test_durations_read_as_go_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
