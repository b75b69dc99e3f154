"""Tests of fleet.agent.agent_settings."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.agent.agent_settings import read_agent_settings
from vkubelet.errors import SettingsError


def test_f_1_the_agent_has_a_lease_in_its_own_namespace() -> None:
    leader = read_agent_settings({"agent": {"cluster": "w1", "namespace": "edge"}}).leader
    assert (leader.enabled, leader.namespace, leader.name) == (True, "edge", "fleet-agent")


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ({}, "agent.cluster"),
        ({"cluster": "kube-system"}, "agent.cluster"),
        ({"cluster": "W1"}, "agent.cluster"),
        ({"cluster": "w1", "bootstrap_secrets": []}, "agent.bootstrap_secrets"),
        ({"cluster": "w1", "bootstrap_secrets": ["Not A Name"]}, "agent.bootstrap_secrets"),
        ({"cluster": "w1", "client_cert_expiration": 3599}, "agent.client_cert_expiration"),
        ({"cluster": "w1", "lost_hub_after": 0}, "agent.lost_hub_after"),
        ({"cluster": "w1", "client_configs": [{"url": "http://w1"}]}, "agent.client_configs[0].url"),
        ({"cluster": "w1", "annotations": {"other": "x"}}, "agent.annotations"),
        ({"cluster": "w1", "door": "kubefleet"}, "agent.token"),
        ({"cluster": "w1", "door": "kubefleet", "token": {"file": "/a", "secret": "b"}}, "agent.token"),
        ({"cluster": "w1", "door": "other"}, "agent.door"),
        ({"cluster": "w1", "unknown": 1}, "agent.unknown"),
    ],
)
def test_f_1_a_setting_that_cannot_work_is_refused_by_its_path(own: dict[str, Any], path: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_agent_settings({"agent": own})
    assert refused.value.path == path
