"""Settings of the kubelet server that can not work are refused by name."""

from __future__ import annotations

import msgspec
import pytest

from vkubelet.errors import SettingsError
from vkubelet.server import ServerSettings


def test_defaults_are_accepted_and_off_is_a_main_port() -> None:
    assert ServerSettings().main_port == 10250
    assert msgspec.convert({"main_port": False}, ServerSettings).main_port is False


def test_node_addresses_may_be_one_of_each_family() -> None:
    assert ServerSettings().node_addresses == ()
    assert ServerSettings(node_address="192.0.2.1").node_addresses == ("192.0.2.1",)
    assert ServerSettings(node_address="fd00::1, 192.0.2.1").node_addresses == ("fd00::1", "192.0.2.1")


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"port_first": 20, "port_last": 10}, "server.port_first"),
        ({"port_last": 70000}, "server.port_first"),
        ({"main_port": True}, "server.main_port"),
        ({"main_port": 65536}, "server.main_port"),
        ({"listening": "shared", "main_port": False}, "server.main_port"),
        ({"bind_address": "localhost"}, "server.bind_address"),
        ({"node_address": "edge.example"}, "server.node_address"),
        ({"node_address": "192.0.2.1,192.0.2.2"}, "server.node_address"),
        ({"node_address": "192.0.2.1,"}, "server.node_address"),
        ({"certificate": "files", "certificate_file": "tls.crt"}, "server.certificate_file"),
        ({"stream_idle_timeout": 0.0}, "server.stream_idle_timeout"),
        ({"stream_creation_timeout": -1.0}, "server.stream_creation_timeout"),
    ],
)
def test_impossible_values_are_named(values: dict[str, object], path: str) -> None:
    with pytest.raises(SettingsError) as error:
        msgspec.convert(values, ServerSettings)
    assert error.value.path == path
