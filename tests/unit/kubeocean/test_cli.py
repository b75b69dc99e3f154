"""How the runtime's settings differ for kubeocean."""

from __future__ import annotations

from pathlib import Path

import yaml

from kubeocean.cli import runtime_defaults
from vkubelet.settings import Settings, convert

HUB_RBAC = Path(__file__).parents[3] / "deploy" / "samples" / "hub-rbac.yaml"


def test_the_leaders_lease_is_where_the_sample_role_lets_it_be() -> None:
    settings = convert(runtime_defaults("demo"), Settings)
    roles = [each for each in yaml.safe_load_all(HUB_RBAC.read_text()) if each["kind"] == "Role"]
    assert any(
        role["metadata"]["namespace"] == settings.leader.namespace
        for role in roles
        if any("leases" in rule["resources"] and "create" in rule["verbs"] for rule in role["rules"])
    )
