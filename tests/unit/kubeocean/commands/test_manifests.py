"""Objects as YAML for people."""

from __future__ import annotations

import yaml

from kubeocean.commands.manifests import commented
from kubeocean.rbac.permissions import hub_objects, hub_rules
from kubeocean.rbac.rules import Rule


def test_what_is_written_reads_back_as_it_was() -> None:
    objects = hub_objects(binding="demo")
    assert list(yaml.safe_load_all(commented(objects, hub_rules(binding="demo"), notes={0: "First\nand second line."}))) == objects


def test_notes_and_reasons_stand_above_what_they_are_about() -> None:
    rule = Rule("pods", "get list", names="one", why="To look at one.")
    role = {"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [rule.body]}
    assert commented([role], [rule], notes={0: "A role."}) == (
        "# A role.\nkind: ClusterRole\nmetadata:\n  name: r\nrules:\n"
        '  # To look at one.\n  - apiGroups: [""]\n    resources: [pods]\n    verbs: [get, list]\n    resourceNames: [one]\n'
    )


def test_the_same_rule_has_another_reason_in_another_namespace() -> None:
    here, there = (Rule("leases", "get", namespace=space, why=f"For {space}.") for space in ("here", "there"))
    role = {"kind": "Role", "metadata": {"name": "r", "namespace": "there"}, "rules": [there.body]}
    assert "# For there." in commented([role], [here, there])
