"""Tests of kubeocean.model.crds."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kubeocean
from kubeocean.model.crds import (
    CLUSTERBINDINGS,
    POLICIES,
    ApiServerAccess,
    ClusterBinding,
    DnsAccess,
    OnUnreachable,
    ResourceLeasingPolicy,
    ResourceLimit,
    SecretReference,
    definition,
)
from kubeocean.model.keys import ACCEPTED_AS, Identity
from kubeocean.model.windows import TimeWindow
from tests.unit.kubeocean.builders import binding, limit, policy, unknown
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json, Resource, Unknown
from vkubelet.api.quantity import Quantity


def test_binding_with_upstream_fields_only() -> None:
    found = binding({"podPriorityClassName": "low", "runningDaemonsetByDefault": True, "directScheduling": True}, uid="u", generation=3)
    assert (found.name, found.uid, found.generation, found.deleting) == ("demo", "u", 3, False)
    assert (found.cluster_id, found.secret, found.mount_namespace) == ("demo", SecretReference("kubeconfig", "kubeocean-system"), "mnt")
    assert (found.priority_class, found.run_daemonsets, found.direct_scheduling, found.disable_default_taint) == ("low", True, True, False)
    assert (found.on_unreachable, found.api_server, found.dns, found.allow_insecure_worker) == (OnUnreachable(), None, None, False)
    assert found.validate() == []


def test_binding_with_our_fields() -> None:
    spec: Json = {
        "allowInsecureWorker": True,
        "timeZone": "Europe/Berlin",
        "onUnreachable": {"mode": "FailOver", "afterSeconds": 120},
        "apiServerAccess": {"host": "10.0.0.1", "port": 6443, "caBundle": base64.b64encode(b"PEM").decode()},
        "dns": {"servers": ["10.0.0.2"]},
    }
    found = binding(spec, deletionTimestamp="2026-01-01T00:00:00Z")
    assert (found.on_unreachable, found.time_zone, found.allow_insecure_worker) == (OnUnreachable("FailOver", 120), "Europe/Berlin", True)
    assert found.api_server == ApiServerAccess("10.0.0.1", 6443, "PEM")
    assert found.dns == DnsAccess(("10.0.0.2",), "cluster.local")
    assert found.deleting
    assert found.validate() == []


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"clusterID": ""}, "spec.clusterID: is empty"),
        ({"clusterID": "Upper"}, "spec.clusterID: must be"),
        ({"clusterID": "c" * 25}, "spec.clusterID: must be at most 24"),
        ({"secretRef": None}, "spec.secretRef.name: is empty"),
        ({"secretRef": {"name": "x"}}, "spec.secretRef.namespace: is empty"),
        ({"mountNamespace": None}, "spec.mountNamespace: is empty"),
        ({"mountNamespace": "a.b"}, "spec.mountNamespace: is not a namespace name"),
        ({"serviceNamespaces": ["a", ""]}, "spec.serviceNamespaces[1]: is empty"),
        ({"timeZone": "Mars/Base"}, "spec.timeZone: time zone 'Mars/Base' is unknown"),
        ({"forceUnbindAfter": -1}, "spec.forceUnbindAfter: is negative; write 0 or more seconds, or leave it out"),
        ({"forceUnbindAfter": "soon"}, "spec.forceUnbindAfter: must be a whole number"),
        ({"onUnreachable": {"mode": "Panic"}}, "spec.onUnreachable.mode: must be Hold or FailOver"),
        ({"onUnreachable": {"mode": "FailOver", "afterSeconds": 5}}, "spec.onUnreachable.afterSeconds: must be at least 40"),
        ({"apiServerAccess": {"host": "https://x"}}, "spec.apiServerAccess.host: must be an IP address or a DNS name"),
        ({"apiServerAccess": {"host": "x", "port": 0}}, "spec.apiServerAccess.port: must be from 1 to 65535"),
        ({"apiServerAccess": {"host": "x", "caBundle": "%"}}, "spec.apiServerAccess.caBundle: is not base64"),
        ({"dns": {"servers": ["dns.example"]}}, "spec.dns.servers: must list at least one IP address"),
        ({"dns": {"servers": []}}, "spec.dns.servers: must list at least one IP address"),
        ({"nodeSelector": "all"}, "spec.nodeSelector: must be an object"),
        ({"directScheduling": "yes"}, "spec.directScheduling: must be true or false"),
    ],
)
def test_binding_problem_names_field_and_remedy(spec: Json, problem: str) -> None:
    assert any(str(found).startswith(problem) for found in binding(spec).validate())


def test_policy_with_the_fields_of_the_sample() -> None:
    spec: Json = {
        "forceReclaim": True,
        "gracefulReclaimPeriodSeconds": 30,
        "timeWindows": [{"start": "18:00", "end": "08:00", "days": ["Monday"]}, {"start": "00:00", "end": "23:59"}],
        "resourceLimits": [limit("cpu", quantity="96", percent=90), limit("memory", percent=95), limit("nvidia.com/gpu", quantity=0)],
    }
    found = policy("night", spec)
    assert found.windows == (TimeWindow("18:00", "08:00", ("Monday",)), TimeWindow("00:00", "23:59"))
    assert found.limits == (
        ResourceLimit("cpu", Quantity.of(96), 90),
        ResourceLimit("memory", None, 95),
        ResourceLimit("nvidia.com/gpu", Quantity.of(0), None),
    )
    assert (found.force_reclaim, found.grace, found.priority, found.created) == (True, timedelta(seconds=30), 0, "2026-01-01T00:00:00Z")
    assert found.validate() == []


def test_pods_outside_the_windows_are_allowed_only_where_the_policy_states_it() -> None:
    assert not policy().allow_out_of_window_pods
    assert policy(spec={"allowOutOfWindowPods": True}).allow_out_of_window_pods


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"cluster": ""}, "spec.cluster: is empty"),
        ({"timeWindows": [{"start": "9:00", "end": "17:00"}]}, "spec.timeWindows[0]: start '9:00' is not a time"),
        ({"timeWindows": [{"start": "", "end": ""}]}, "spec.timeWindows[0]: start '' is not a time"),
        ({"timeWindows": [{"start": "09:00", "end": "17:00", "days": ["Fri"]}]}, "spec.timeWindows[0]: day 'Fri' is unknown"),
        ({"resourceLimits": [limit("cpu")]}, "spec.resourceLimits[0]: limits nothing"),
        ({"resourceLimits": [limit("", percent=1)]}, "spec.resourceLimits[0].resource: is empty"),
        ({"resourceLimits": [limit("cpu", percent=101)]}, "spec.resourceLimits[0].percent: is 101; write 0 to 100"),
        ({"resourceLimits": [limit("cpu", quantity="-1")]}, "spec.resourceLimits[0].quantity: is negative"),
        ({"resourceLimits": [limit("cpu", quantity="many")]}, "spec.resourceLimits[0].quantity: is not a quantity"),
        ({"gracefulReclaimPeriodSeconds": -1}, "spec.gracefulReclaimPeriodSeconds: is negative"),
        ({"timeZone": "Mars/Base"}, "spec.timeZone: time zone 'Mars/Base' is unknown"),
        ({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": 1}]}]}}, "spec.nodeSelector.nodeSelectorTerms[0]"),
        ({"timeWindows": {"start": "09:00"}}, "spec.timeWindows: must be a list"),
        ({"priority": True}, "spec.priority: must be a whole number"),
        ({"allowOutOfWindowPods": "yes"}, "spec.allowOutOfWindowPods: must be true or false"),
    ],
)
def test_policy_problem_names_field_and_remedy(spec: Json, problem: str) -> None:
    assert any(str(found).startswith(problem) for found in policy(spec=spec).validate())


def test_broken_selector_matches_nothing_rather_than_everything() -> None:
    assert policy(spec={"nodeSelector": {"nodeSelectorTerms": "all"}}).node_selector == {"nodeSelectorTerms": [{}]}


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "start", "host", "nodeSelectorTerms"]), inner),
)
BINDING_FIELDS = ["clusterID", "secretRef", "nodeSelector", "serviceNamespaces", "onUnreachable", "apiServerAccess", "dns", "timeZone"]
POLICY_FIELDS = ["cluster", "nodeSelector", "timeWindows", "resourceLimits", "priority", "gracefulReclaimPeriodSeconds", "forceReclaim"]


@given(st.dictionaries(st.sampled_from(BINDING_FIELDS), anything) | anything)
def test_any_stored_binding_can_be_parsed_and_judged(spec: object) -> None:
    assert all(str(problem) for problem in ClusterBinding.parse(unknown({"metadata": {"name": "x"}, "spec": spec})).validate())


@given(st.dictionaries(st.sampled_from(POLICY_FIELDS), anything) | anything)
def test_any_stored_policy_can_be_parsed_and_judged(spec: object) -> None:
    assert all(str(problem) for problem in ResourceLeasingPolicy.parse(unknown({"metadata": {"name": "x"}, "spec": spec})).validate())


def test_a_binding_keeps_the_identity_under_which_it_was_accepted() -> None:
    note = Identity("demo", "mnt").note("uid-b")
    changed = binding({"clusterID": "new", "mountNamespace": "other"}, uid="uid-b", annotations={ACCEPTED_AS: note})
    assert (changed.identity, changed.asked) == (Identity("demo", "mnt"), Identity("new", "other"))
    assert not changed.validate()
    copied = binding({"clusterID": "new"}, uid="uid-c", annotations={ACCEPTED_AS: note})
    assert copied.cluster_id == "new", "the annotation of the binding whose YAML was copied"


def test_an_identity_that_an_earlier_version_noted_has_no_namespace() -> None:
    old = binding({"clusterID": "new", "mountNamespace": "mnt"}, uid="uid-b", annotations={ACCEPTED_AS: "demo_uid-b"})
    assert old.identity == Identity("demo", "mnt")


def test_nothing_but_its_judges_reads_what_a_binding_asks_to_be_called_now() -> None:
    """Whatever made something of a binding has to find it again by the identity that was accepted."""
    readers = {
        path.name: found
        for path in sorted(Path(kubeocean.__file__).parent.rglob("*.py"))
        if (found := re.findall(r"\.asked\b|text\(\"(?:clusterID|mountNamespace)\"", path.read_text()))
    }
    assert set(readers) == {"crds.py", "connect.py"}


def undescribed(schema: Json, path: str) -> Iterator[str]:
    """Fields without a description, and switches without a default; what is below spec.podPatch is a pod's."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if "description" not in field or (field.get("type") == "boolean" and path == "spec" and "default" not in field):
            yield here
        if here not in ("spec.podPatch.metadata", "spec.podPatch.spec"):
            yield from undescribed(field, here)
    if "items" in schema:
        yield from undescribed(schema["items"], f"{path}[]")


@pytest.mark.parametrize("resource", [CLUSTERBINDINGS, POLICIES], ids=str)
def test_kubectl_explain_has_a_text_for_every_field(resource: Resource[Unknown]) -> None:
    properties = decode_yaml(definition(resource))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert [each for part in ("spec", "status") for each in undescribed(properties[part], part)] == []
    assert list(undescribed({"properties": {"bare": {"type": "string"}}}, "spec")) == ["spec.bare"]
