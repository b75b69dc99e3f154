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
