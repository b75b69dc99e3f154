"""Tests of kubeocean.commands.sides."""

from pathlib import Path

import pytest

from kubeocean.commands.sides import FIELD_MANAGER, hub_of, worker_of
from vkubelet.errors import SettingsError


def test_workers_context_is_read_from_the_hubs_kubeconfig_unless_it_has_its_own() -> None:
    hub = hub_of(Path("both"), "")
    assert worker_of(None, "away", hub=hub).kubeconfig == Path("both")
    assert worker_of(Path("own"), "away", hub=hub).kubectl == "kubectl --kubeconfig own --context away"


def test_without_a_flag_the_computing_cluster_is_not_taken_for_the_worker() -> None:
    with pytest.raises(SettingsError, match="--worker-context"):
        worker_of(None, "", hub=hub_of(None, "hub"))


def test_what_commands_write_has_one_field_manager() -> None:
    hub = hub_of(None, "")
    assert hub.field_manager == worker_of(None, "away", hub=hub).field_manager == FIELD_MANAGER
