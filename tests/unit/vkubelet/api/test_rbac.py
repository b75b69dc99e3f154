"""Tests of vkubelet.api.rbac."""

from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.rbac import Rule, checks_of, granted, labelled, namespace_body

SUBJECT = {"kind": "ServiceAccount", "name": "demo", "namespace": "space"}
WORDS = st.lists(st.sampled_from(["get", "list", "create"]), min_size=1, unique=True)
RULES = st.lists(
    st.builds(
        Rule,
        st.lists(st.sampled_from(["pods", "pods/log", "leases"]), min_size=1, unique=True),
        WORDS,
        why=st.just("To test."),
        group=st.sampled_from(["", "apps"]),
        names=st.lists(st.sampled_from(["a", "b"]), unique=True),
        namespace=st.sampled_from(["", "one", "two"]),
    ),
    max_size=4,
)


@given(RULES)
def test_checks_ask_for_exactly_what_the_roles_grant(rules: list[Rule]) -> None:
    held = {
        (role["metadata"].get("namespace", ""), group, resource, verb, name)
        for role in granted(rules, "demo", cluster_name="demo-wide", subject=SUBJECT)
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    asked = {
        (each.namespace, each.group, "/".join(filter(None, (each.resource, each.subresource))), each.verb, each.name)
        for each in checks_of(rules)
    }
    assert asked == held


def test_each_role_is_followed_by_its_binding_to_the_subject() -> None:
    rules = (Rule("nodes", "get list", why="Reads."), Rule("pods", "create", why="Runs.", namespace="space"))
    kinds = granted(rules, "demo", cluster_name="demo-wide", subject=SUBJECT)
    assert [each["kind"] for each in kinds] == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    assert [each["metadata"]["name"] for each in kinds] == ["demo-wide", "demo-wide", "demo", "demo"]
    assert all(each["subjects"] == [SUBJECT] for each in kinds[1::2])
    assert [each["roleRef"]["name"] for each in kinds[1::2]] == ["demo-wide", "demo"]


def test_a_rule_writes_when_one_of_its_verbs_changes_something() -> None:
    assert not Rule("pods", "get list watch", why="Reads.").writes
    assert Rule("pods", "get patch", why="Changes.").writes


def test_labels_are_added_to_those_of_the_object() -> None:
    made = labelled(namespace_body("space", "baseline"), {"a": "b"})
    assert made["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "baseline", "a": "b"}
    assert labelled(made, None) == made
