"""How the runtime's settings differ for kubeocean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kubeocean
from kubeocean.cli import runtime_defaults
from kubeocean.leasing.policy import Decision
from kubeocean.nodes.describe import describe
from tests.unit.kubeocean.builders import binding, node
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.names import is_label_value
from vkubelet.settings import Settings, convert

HUB_RBAC = Path(__file__).parents[3] / "deploy" / "samples" / "hub-rbac.yaml"


def test_the_leaders_lease_is_where_the_sample_role_lets_it_be() -> None:
    settings = convert(runtime_defaults("demo"), Settings)
    roles = [each for each in decode_yaml_documents(HUB_RBAC.read_text()) if each["kind"] == "Role"]
    assert any(
        role["metadata"]["namespace"] == settings.leader.namespace
        for role in roles
        if any("leases" in rule["resources"] and "create" in rule["verbs"] for rule in role["rules"])
    )


@pytest.mark.parametrize("length", [1, 63, 64, 253])
def test_every_valid_binding_name_gives_valid_labels_and_field_managers(length: int) -> None:
    settings = convert(runtime_defaults("b" * length), Settings)
    key, _, value = settings.node.selector.partition("=")
    described = describe(node(), Decision(exists=True), binding=binding(name="b" * length))
    assert is_label_value(settings.instance) and is_label_value(value)
    assert described.labels[key] == value, "the process finds the nodes that it labels"
    assert len(settings.field_manager) <= 128


def test_the_name_of_a_binding_becomes_a_label_in_one_way() -> None:
    uses = [
        f"{path.name}: {line.strip()}"
        for path in sorted(Path(kubeocean.__file__).parent.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"CLUSTER_BINDING\b\}?[:=]", line.replace(": Final", "")) and "label" not in line.replace("labels", "")
    ]
    assert not [use for use in uses if not use.startswith("keys.py")]
