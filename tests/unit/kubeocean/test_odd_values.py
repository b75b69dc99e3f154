"""Odd values in the custom resources and in Nodes are problems that name a field, and end nothing.

Invariant: whatever a schema lets through or an older definition has stored, parsing, validating and deciding raise nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.policy import NodeFacts, Terms, decide
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from tests.unit.kubeocean.builders import at, unknown
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Node

TEXT = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(["", "\0", "../../etc/passwd", "a" * 10_000, "9" * 400, "1e999999999", "-1", "24:60", "UTC", "Europe/Berlin", "‮"]),
)
VALUE: st.SearchStrategy[Any] = st.recursive(
    TEXT | st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LIMIT = st.fixed_dictionaries({}, optional={"resource": TEXT | VALUE, "percent": VALUE, "quantity": TEXT | VALUE})
WINDOW = st.fixed_dictionaries({}, optional={"start": TEXT | VALUE, "end": TEXT | VALUE, "days": st.lists(TEXT) | VALUE})
SOUND = {"cluster": "demo", "timeWindows": [{"start": "00:00", "end": "24:00"}], "resourceLimits": [{"resource": "cpu", "percent": 50}]}
POLICY = st.fixed_dictionaries(
    {},
    optional={
        "cluster": TEXT | VALUE,
        "timeWindows": st.lists(WINDOW, max_size=3) | VALUE,
        "resourceLimits": st.lists(LIMIT, max_size=3) | VALUE,
        "nodeSelector": VALUE,
        "timeZone": TEXT | VALUE,
        "priority": VALUE,
        "gracefulReclaimPeriodSeconds": VALUE,
        "forceReclaim": VALUE,
    },
)
BINDING = st.dictionaries(
    st.sampled_from(
        [
            "clusterID",
            "secretRef",
            "mountNamespace",
            "nodeSelector",
            "serviceNamespaces",
            "timeZone",
            "onUnreachable",
            "forceUnbindAfter",
            "apiServerAccess",
            "dns",
            "metadataFromWorker",
            "imageRewrites",
            "extraImagePullSecrets",
            "podPatch",
            "podPriorityClassName",
        ]
    ),
    VALUE
    | st.fixed_dictionaries({}, optional={"name": VALUE, "namespace": VALUE, "host": TEXT, "port": VALUE, "servers": VALUE, "mode": VALUE}),
    max_size=6,
)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]) | TEXT, TEXT | st.integers(-(2**63), 2**63 - 1), max_size=4)


def policy(name: str, spec: Any) -> ResourceLeasingPolicy:
    return ResourceLeasingPolicy.parse(unknown({"metadata": {"name": name, "uid": name, "generation": 1}, "spec": spec}))


@given(spec=POLICY | VALUE, allocatable=AMOUNTS, labels=st.dictionaries(TEXT, TEXT, max_size=3))
def test_an_odd_policy_beside_a_sound_one_takes_nothing_from_it(spec: Any, allocatable: dict[str, Any], labels: dict[str, str]) -> None:
    odd, sound = policy("odd", spec), policy("sound", SOUND)
    problems = odd.validate()
    assert all(problem.field and problem.sentence for problem in problems)
    body = {"metadata": {"name": "n", "labels": labels}, "spec": {}, "status": {"allocatable": {"cpu": "4", **allocatable}}}
    facts = NodeFacts.of(decode_object(Node, encode_json(body)))
    binding = ClusterBinding.parse(unknown({"metadata": {"name": "demo", "uid": "u"}, "spec": {"clusterID": "demo"}}))
    terms = Terms.of(binding, process_zone="UTC")
    for instant in (at("2026-03-29 00:30"), at("2026-03-29 01:30") + timedelta(days=200)):
        decision = decide(facts, [odd, sound], terms=terms, used={}, instant=instant)
        assert decision.exists
        if problems:
            assert decision.deciding is sound


@given(spec=BINDING | VALUE)
def test_an_odd_binding_is_a_list_of_problems_that_name_fields(spec: Any) -> None:
    binding = ClusterBinding.parse(unknown({"metadata": {"name": "demo", "uid": "u"}, "spec": spec}))
    problems = binding.validate()
    assert all(problem.field and problem.sentence for problem in problems)
    if not problems:
        Terms.of(binding, process_zone="UTC")
