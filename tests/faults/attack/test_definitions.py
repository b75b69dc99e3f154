"""Generated ClusterBindings and ResourceLeasingPolicies: valid, at a bound, wrong in one place, of a future version, and valid again.

Invariant: the schemas decide what is generated, and only the product's parsing, validation and reconcilers judge it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, ClusterBinding, ResourceLeasingPolicy
from tests.faults.attack.bindings import FIXED, Step, gone_through
from tests.faults.attack.schemas import WRONG, Place, places, spec_schema, values, with_unknown_fields
from tests.unit.kubeocean.builders import unknown
from tests.unit.kubeocean.world import Process, World, policy_body, process
from vkubelet.api.fields import Problem
from vkubelet.api.objects import Json
from vkubelet.provider import NodeDescription

SCHEMAS = {"ClusterBinding": spec_schema(CLUSTERBINDINGS), "ResourceLeasingPolicy": spec_schema(POLICIES)}
SPECS = {kind: values(schema) for kind, schema in SCHEMAS.items()}
OF_A_POD = "podPatch"
"""What is below it is a pod's, whose own schema the worker applies."""
PLACES = [
    (kind, place) for kind, schema in SCHEMAS.items() for place in places(schema) if OF_A_POD not in place.path or len(place.path) <= 2
]
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
CASES = [(kind, place, value) for kind, place in PLACES for value in WRONG if not place.accepts(value)]


def parsed(kind: str, spec: Any) -> ClusterBinding | ResourceLeasingPolicy:
    obj = unknown({"metadata": {"name": "demo", "uid": "u", "generation": 1}, "spec": spec})
    return ClusterBinding.parse(obj) if kind == "ClusterBinding" else ResourceLeasingPolicy.parse(obj)


def has_remedy(problem: Problem) -> bool:
    """Whether the sentence states what to write: a rule by `must`, or a fact and then the remedy."""
    fact, semicolon, remedy = problem.sentence.partition(";")
    return "must" in fact or bool(semicolon and remedy.strip()) or "cannot be patched" in fact


def about(problem: Problem, place: Place) -> bool:
    """Whether the problem names the place, or what contains it, or what is in it."""
    return str(place).startswith(problem.field) or problem.field.startswith(str(place))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_what_the_schema_accepts_is_sound_or_refused_with_field_and_remedy(kind: str) -> None:
    @QUICK
    @given(spec=SPECS[kind])
    def judged(spec: Json) -> None:
        known = [str(place) for place in places(SCHEMAS[kind])]
        for problem in parsed(kind, spec).validate():
            assert has_remedy(problem), problem
            name = problem.field.partition("[")[0]
            assert any(each.startswith(name) or name.startswith(each) for each in known), problem

    judged()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_value_of_a_wrong_type_is_a_problem_that_names_its_place(kind: str) -> None:
    cases = st.sampled_from([(place, value) for each, place, value in CASES if each == kind])

    @settings(QUICK, max_examples=400)
    @given(spec=SPECS[kind], case=cases)
    def refused(spec: Json, case: tuple[Place, Any]) -> None:
        place, value = case
        problems = parsed(kind, place.put(spec, value)).validate()
        named = [problem for problem in problems if about(problem, place)]
        assert named and all(has_remedy(problem) for problem in named), f"{place} = {value!r}: {problems}"

    refused()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_fields_of_the_future_are_no_problem_and_change_nothing(kind: str) -> None:
    @QUICK
    @given(spec=SPECS[kind])
    def same(spec: Json) -> None:
        spec = {name: value for name, value in spec.items() if name != OF_A_POD}
        plain, later = parsed(kind, spec), parsed(kind, with_unknown_fields(spec, SCHEMAS[kind]))
        assert later.validate() == plain.validate()
        # A selector is kept as written.
        assert {**fields_of(later), "node_selector": None} == {**fields_of(plain), "node_selector": None}

    same()


def fields_of(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in value.__attrs_attrs__}


# --- Sequences of changes ---------------------------------------------------------------------------------------------------------------

POLICY = SPECS["ResourceLeasingPolicy"].map(lambda spec: {**spec, "cluster": "demo"})
WRONG_POLICY = st.builds(
    lambda spec, case: case[1].put(spec, case[2]), POLICY, st.sampled_from([each for each in CASES if each[0] == "ResourceLeasingPolicy"])
)
SOUND_POLICY = POLICY.map(lambda spec: {name: value for name, value in spec.items() if name != "nodeSelector"}).filter(
    lambda spec: not parsed("ResourceLeasingPolicy", spec).validate()
)
"""Of every node: without a cluster that confirms it no node is withdrawn."""
OF_THE_PAST = {keys.LEASE_RECORD, keys.LAST_SYNC_TIME}


async def declared(specs: Sequence[Json]) -> NodeDescription | None:
    """The virtual node after a policy read like each of these in turn, without what is recorded of earlier ones."""
    world = World()
    world.policies["p"] = policy_body("p", 1)
    async with process(world) as made:
        for number, spec in enumerate(specs, 2):
            _change(world, made, policy_body("p", number), spec)
            await world.clock.advance(1.0)
        found = world.host.nodes.get(world.host.names[0])
    if found is None:
        return None
    annotations = {key: value for key, value in found.annotations.items() if key not in OF_THE_PAST}
    # Since when a window is closed depends on how long the policies before kept it open.
    return evolve(found, annotations=annotations, taints=tuple(evolve(taint, time_added="") for taint in found.taints))


def _change(world: World, made: Process, body: Json, spec: Json) -> None:
    world.policies["p"] = {**body, "spec": spec}
    made.take("policies", world.policies["p"])


def test_a_policy_that_is_valid_again_has_the_effect_of_a_new_one() -> None:
    @settings(QUICK, max_examples=25)
    @given(before=st.lists(POLICY | WRONG_POLICY, max_size=4), last=SOUND_POLICY)
    def converges(before: list[Json], last: Json) -> None:
        assert asyncio.run(declared([*before, last])) == asyncio.run(declared([last]))

    converges()


BINDING = SPECS["ClusterBinding"].map(lambda spec: {**spec, **FIXED})
ANY_BINDING = st.tuples(BINDING | SPECS["ClusterBinding"], st.none())
"""Also of another identity, and with a Secret that does not exist."""
WRONG_BINDING = st.builds(
    lambda spec, case: (case[1].put(spec, case[2]), case[1]),
    BINDING,
    st.sampled_from([each for each in CASES if each[0] == "ClusterBinding"]),
)
SOUND_BINDING = BINDING.map(
    lambda spec: {name: value for name, value in spec.items() if name not in ("nodeSelector", "namespaceMapping")}
).filter(lambda spec: not parsed("ClusterBinding", spec).validate())
"""Of every node, without which there would be nothing to compare, and of the one mapping that can change while a pod runs."""


def is_reported(step: Step, place: Place | None) -> bool:
    """Whether an invalid spec is refused, or reported in the status, with the field; and a sound one is served."""
    if step.refused:
        parts = str(place).split("[")[0].split(".")
        return place is not None and any(".".join(parts[:length]) in step.refused for length in range(2, len(parts) + 1))
    found = parsed("ClusterBinding", step.spec)
    assert isinstance(found, ClusterBinding)
    problems, message = found.validate(), step.ready["message"]
    if problems:
        return step.ready["status"] == "False" and all(problem.field in message for problem in problems)
    if (found.cluster_id, found.mount_namespace) != (FIXED["clusterID"], FIXED["mountNamespace"]):
        return step.ready["status"] == "False" and "spec.clusterID" in message
    if {"name": found.secret.name, "namespace": found.secret.namespace} != FIXED["secretRef"] or not found.allow_insecure_worker:
        return step.ready["status"] == "False" and "spec.secretRef" in message
    # Another mapping waits until nothing of the binding is in the worker.
    return step.ready["status"] == "True" or (found.mapping != keys.SINGLE and "spec.namespaceMapping" in message)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strict", [True, False], ids=["refused-by-the-schema", "admitted-by-an-older-schema"])
def test_a_binding_that_is_valid_again_is_served_as_a_new_one(strict: bool) -> None:
    @settings(QUICK, max_examples=25)
    @given(before=st.lists(ANY_BINDING | WRONG_BINDING, max_size=4), last=SOUND_BINDING)
    def converges(before: list[tuple[Json, Place | None]], last: Json) -> None:
        changed = gone_through([*(spec for spec, _ in before), last], strict=strict)
        for step, (_, place) in zip(changed.steps, [*before, (last, None)], strict=True):
            assert is_reported(step, place), f"{place}: {step}"
        assert changed.result == gone_through([], first=last, strict=strict).result

    converges()
