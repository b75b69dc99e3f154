"""Settings of the manager: what is refused, and by which name."""

from __future__ import annotations

import pytest

from kubeocean.settings import read_manager_settings
from vkubelet.api.objects import Json
from vkubelet.errors import SettingsError


def given(**manager: object) -> Json:
    return {"manager": {"image": "example/kubeocean:1", **manager}}


def test_the_lease_is_in_the_namespace_of_the_manager_unless_told_otherwise() -> None:
    leader = read_manager_settings(given(namespace="elsewhere")).leader
    assert (leader.enabled, leader.namespace, leader.name) == (True, "elsewhere", "kubeocean-manager")
    assert read_manager_settings({**given(), "leader": {"enabled": False}}).leader.enabled is False


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({}, "manager.image"),
        ({"manager": {}}, "manager.image"),
        ({"manager": "x"}, "manager.image"),
        (given(replicas=0), "manager.replicas"),
        (given(recheck_interval=0), "manager.recheck_interval"),
        (given(workers=0), "manager.workers"),
        (given(namespace="Not A Name"), "manager.namespace"),
        (given(imge="x"), "manager.imge"),
        (given(syncer_settings={"sever": {}}), "manager.syncer_settings.sever"),
        (given(syncer_settings={"server": {"port_frist": 1}}), "manager.syncer_settings.server.port_frist"),
        (given(syncer_settings={"provider": {"time_zon": "x"}}), "manager.syncer_settings.provider.time_zon"),
        (given(syncer_settings={"provider": {"shards": 17}}), "manager.syncer_settings.provider.shards"),
        (given(syncer_settings={"provider": {"shards": 0}}), "manager.syncer_settings.provider.shards"),
        (given(syncer_settings={"provider": {"binding": "x"}}), "manager.syncer_settings.provider.binding"),
        (given(syncer_settings={"instance": "x"}), "manager.syncer_settings.instance"),
        ({**given(), "heath": {}}, "heath"),
    ],
)
def test_what_can_not_work_is_refused_by_its_name(data: Json, path: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_manager_settings(data)
    assert raised.value.path == path and str(raised.value).startswith(f"{path}: ")
