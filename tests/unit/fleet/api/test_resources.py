"""Tests of fleet.api.resources and of the definitions in fleet/manifests; real API servers judge them in tests/integration/fleet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fleet
from fleet.api import resources
from fleet.api.resources import DEFINED, definition
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.api.objects import Json, Resource, Unknown

CLUSTER, FLEET = resources.CLUSTER_GROUP, resources.FLEET_GROUP
MEMBER_COLUMNS = [
    *("Joined", "Age", "Member-Agent-Last-Seen", "Node-Count"),
    *("Available-CPU", "Available-Memory", "Allocatable-CPU", "Allocatable-Memory"),
]
EXPECTED = {
    # kind: served versions (the stored one first), short names, columns, status subresource
    "ManagedCluster": (["v1"], ["mcl", "mcls"], ["Hub Accepted", "Managed Cluster URLs", "Joined", "Available", "Age"], True),
    "ManagedClusterSet": (["v1beta2"], ["mclset", "mclsets"], ["Empty", "Age"], True),
    "ManagedClusterSetBinding": (["v1beta2"], ["mclsetbinding", "mclsetbindings"], [], True),
    "ClusterClaim": (["v1alpha1"], [], [], False),
    "ManifestWork": (["v1"], [], [], True),
    "ManagedClusterAddOn": (["v1alpha1"], ["mca", "mcas"], ["Available", "Degraded", "Progressing"], True),
    "MemberCluster": (["v1beta1", "v1"], ["cluster"], MEMBER_COLUMNS, True),
    "InternalMemberCluster": (["v1beta1", "v1"], ["imc"], ["Age"], True),
    "ClusterProfile": (["v1alpha1"], [], [], True),
}


def spec_of(resource: Resource[Unknown]) -> Json:
    found: Json = decode_yaml(definition(resource))["spec"]
    return found


@pytest.mark.parametrize("resource", DEFINED, ids=lambda each: each.kind)
def test_f_11_versions_names_and_columns_are_those_of_the_api(resource: Resource[Unknown]) -> None:
    spec = spec_of(resource)
    served, short, columns, has_status = EXPECTED[resource.kind]
    assert (spec["group"], spec["names"]["plural"], spec["names"]["kind"]) == (resource.group, resource.plural, resource.kind)
    assert (spec["scope"] == "Namespaced") is resource.namespaced
    assert [each["name"] for each in spec["versions"] if each["served"]] == served
    assert [each["name"] for each in spec["versions"] if each["storage"]] == [served[0]] == [resource.version]
    assert spec["names"].get("shortNames", []) == short
    for version in spec["versions"]:
        assert [each["name"] for each in version.get("additionalPrinterColumns", [])] == columns
        assert ("status" in version.get("subresources", {})) is has_status


@pytest.mark.parametrize("resource", DEFINED, ids=lambda each: each.kind)
def test_f_11_all_versions_have_one_schema_and_need_no_conversion(resource: Resource[Unknown]) -> None:
    spec = spec_of(resource)
    assert all(each["schema"] == spec["versions"][0]["schema"] for each in spec["versions"])
    assert len(spec["versions"]) == 1 or spec["conversion"] == {"strategy": "None"}


def test_every_definition_belongs_to_a_resource() -> None:
    manifests = Path(fleet.__file__).parent / "manifests"
    assert {each.stem for each in manifests.glob("*.yaml")} == {each.plural for each in DEFINED} | {"admissionpolicies", "guardrails"}


def test_each_admission_policy_is_bound_and_denies() -> None:
    documents = decode_yaml_documents(resources.admission_policies())
    policies = {each["metadata"]["name"] for each in documents if each["kind"] == "ValidatingAdmissionPolicy"}
    bindings = [each["spec"] for each in documents if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert [each["policyName"] for each in bindings] == sorted(policies, key=[each["policyName"] for each in bindings].index)
    assert len(policies) == len(bindings) == 8 and all(each["validationActions"] == ["Deny"] for each in bindings)


def test_f_64_guard_rails_name_the_administrators() -> None:
    assert "\"['me', 'our:group']\"" in resources.guard_rails(["me", "our:group"])


def test_f_63_the_prefixes_of_labels_that_a_worker_may_change_are_a_setting() -> None:
    assert "['agent.open-cluster-management.io']" in resources.admission_policies()
    changed = resources.admission_policies(["a.example", "b.example"])
    assert "['a.example', 'b.example']" in changed and "['agent.open-cluster-management.io']" not in changed


def test_f_62_an_executor_may_be_required() -> None:
    assert resources.admission_policies(executor_required=True).count("expression: 'true'") == 1
    assert "expression: 'true'" not in resources.admission_policies()


def undescribed(schema: Json, path: str) -> Iterator[str]:
    """Fields without a description."""
    for name, each in schema.get("properties", {}).items():
        if path or name in ("spec", "status"):
            if not each.get("description"):
                yield f"{path}.{name}"
            yield from undescribed(each, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from undescribed(schema[inner], f"{path}[]")


@pytest.mark.parametrize("resource", DEFINED, ids=lambda each: each.kind)
def test_kubectl_explain_has_a_text_for_every_field(resource: Resource[Unknown]) -> None:
    schema = spec_of(resource)["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["description"] and not list(undescribed(schema, ""))
