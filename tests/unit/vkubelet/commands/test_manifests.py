"""Tests of vkubelet.commands.manifests."""

from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.rbac import Rule, granted, namespace_body
from vkubelet.commands.manifests import commented

SUBJECT = {"kind": "ServiceAccount", "name": "demo", "namespace": "space"}
RULES = (
    Rule("nodes nodes/status", "get list watch", why="Reads: all of them."),
    Rule("leases", "get update", group="coordination.k8s.io", names=("one", "two"), namespace="space", why="Renews."),
    Rule("* pods/exec", "*", names=("yes", "1", "a:b"), why="Quotes what YAML reads as an alias or as another type."),
)


def test_what_is_written_reads_back_as_it_was() -> None:
    objects = [namespace_body("space", "baseline"), *granted(RULES, "demo", cluster_name="demo", subject=SUBJECT)]
    assert list(decode_yaml_documents(commented(objects, RULES, notes={0: "First\nand second line."}))) == objects


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
