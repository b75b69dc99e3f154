"""Tests of fleet.hub_settings."""

from typing import Any

import pytest

from fleet.hub_settings import read_hub_settings
from vkubelet.errors import SettingsError


def test_f_1_a_hub_elects_its_leader_by_a_lease_in_its_namespace() -> None:
    leader = read_hub_settings({"hub": {"namespace": "fleet-test"}}).leader
    assert (leader.enabled, leader.namespace, leader.name) == (True, "fleet-test", "fleet-hub")
    assert read_hub_settings({}).leader.namespace == "fleet-system"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"hub": {"namespace": "Bad"}}, "hub.namespace"),
        ({"hub": {"profile_namespace": ""}}, "hub.profile_namespace"),
        ({"hub": {"force_leave_after": 29}}, "hub.force_leave_after"),
        ({"hub": {"force_leave_after": 3601}}, "hub.force_leave_after"),
        ({"hub": {"heartbeat_threshold": 0}}, "hub.heartbeat_threshold"),
        ({"hub": {"auto_approve_users": "me"}}, "hub.auto_approve_users"),
        ({"hub": {"administrators": ["it's me"]}}, "hub.administrators"),
        ({"hub": {"administrators": ["me", ""]}}, "hub.administrators"),
        ({"hub": {"typo": 1}}, "hub.typo"),
        ({"modules": ["inventory"]}, "modules"),
        ({"modules": ["registration", "other"]}, "modules[1]"),
    ],
)
def test_f_1_an_invalid_setting_is_refused_by_its_path(data: Any, path: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_hub_settings(data)
    assert refused.value.path == path
