"""Settings of the kubelet server that can not work are refused by name."""

from __future__ import annotations

import msgspec
import pytest

from vkubelet.errors import SettingsError
from vkubelet.server import ServerSettings


def test_defaults_are_accepted_and_off_is_a_main_port() -> None:
    assert ServerSettings().main_port == 10250
    assert msgspec.convert({"main_port": False}, ServerSettings).main_port is False


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"port_first": 20, "port_last": 10}, "server.port_first"),
        ({"port_last": 70000}, "server.port_first"),
        ({"main_port": True}, "server.main_port"),
        ({"main_port": 65536}, "server.main_port"),
        ({"certificate": "files", "certificate_file": "tls.crt"}, "server.certificate_file"),
    ],
)
def test_impossible_values_are_named(values: dict[str, object], path: str) -> None:
    with pytest.raises(SettingsError) as error:
        msgspec.convert(values, ServerSettings)
    assert error.value.path == path
