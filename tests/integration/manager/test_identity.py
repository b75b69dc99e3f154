"""One clusterID is one binding's, for ever: a second one is refused before anything is touched, whoever manages by then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubernetes import client as k8s

from tests.integration.manager.conftest import GROUP, MERGE, PLURAL, SYSTEM, VERSION, Binding, Computing, MakeBinding
from tests.integration.manager.test_life import identity_paths
from tests.support.program import eventually, holds

REFUSED = ("False", "ValidationFailed")
CRD = "clusterbindings.cloud.tencent.com"


def everything_of(binding: Binding) -> list[tuple[str, str]]:
    """Uid and, where a change of what is wanted counts, generation of what runs a binding."""
    computing = binding.computing
    paths = [*identity_paths(binding), f"/api/v1/namespaces/{SYSTEM}/services/kubeocean-proxier-{binding.cluster_id}-svc"]
    bodies = [computing.raw(path) for path in paths] + [binding.deployment()]
    assert all(bodies), f"{binding.name} has not got all of {paths}"
    return [(body["metadata"]["uid"], str(body["metadata"].get("generation"))) for body in bodies if body]


async def accepted(binding: Binding) -> None:
    await binding.deployed()
    await eventually(lambda: binding.conditions().get("Connected") == ("True", "ConnectivityPassed"), f"{binding.body()}")
    await holds(lambda: everything_of(binding) and None)


async def refused(binding: Binding, text: str) -> None:
    await eventually(lambda: binding.conditions().get("Ready") == REFUSED, f"{binding.body()}")
    assert binding.phase() == "Failed" and text in binding.message("Ready")
    await eventually(lambda: "ValidationFailed" in binding.computing.events(binding.name), "event ValidationFailed")


async def test_second_binding_of_an_id_is_refused_and_its_deletion_leaves_the_first_alone(bind: MakeBinding) -> None:
    """Lines 23 and 24 of kubeocean-behaviour.md; also for an ID that, with `-`, is a prefix of another's."""
    first = bind()
    await accepted(first)
    before = everything_of(first)
    second, longer = bind(clusterID=first.cluster_id), bind(clusterID=f"{first.cluster_id}-b")
    for binding in (second, longer):
        await refused(binding, first.name)
        assert binding.conditions()["Stalled"] == ("True", "ValidationFailed")
    assert longer.deployment() is None
    for binding in (second, longer):
        binding.delete()
        await binding.gone()
    assert everything_of(first) == before
    assert first.conditions()["Connected"] == ("True", "ConnectivityPassed")


async def test_of_two_made_at_once_exactly_one_is_served(bind: MakeBinding) -> None:
    """Line 23 of kubeocean-behaviour.md, when both are looked at side by side."""
    one = bind(create=False)
    two = bind(create=False, clusterID=one.cluster_id)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda binding: binding.create(), (one, two)))
    await eventually(lambda: sorted((one.phase(), two.phase())) == ["Failed", "Pending"], f"{one.body()} {two.body()}")
    served, other = (one, two) if two.phase() == "Failed" else (two, one)
    await refused(other, served.name)
    owner = (await served.deployed())["metadata"]["ownerReferences"][0]
    assert owner["name"] == served.name


async def test_id_is_unique_and_fixed_also_for_the_next_manager(computing: Computing, bind: MakeBinding) -> None:
    """Lines 22 and 25 of kubeocean-behaviour.md. The definition of Kubeocean (Go) lets a clusterID be changed."""
    first = bind()
    await accepted(first)
    before = everything_of(first)
    with without_rules(computing):
        with computing.without_manager():
            second = bind(clusterID=first.cluster_id)
            await eventually(lambda: changed(first, "another"), "the definition lets it through")
        await refused(first, f"nodes and pods are found by {first.spec['clusterID']}")
        await refused(second, first.name)
        assert computing.deployment("kubeocean-syncer-another") is None
        first.patch({"spec": {"clusterID": first.spec["clusterID"]}})
        await eventually(lambda: first.conditions()["Ready"] != REFUSED, f"{first.body()}")
    assert everything_of(first) == before


async def test_change_of_the_id_of_a_live_binding_is_refused(computing: Computing, bind: MakeBinding) -> None:
    """Line 22 of kubeocean-behaviour.md, while the manager runs; by the definition, and by us where an older one lets it through."""
    binding = bind()
    await accepted(binding)
    before = everything_of(binding)
    await eventually(lambda: refused_by_the_definition(binding), "the definition refuses it")
    with without_rules(computing):
        await eventually(lambda: changed(binding, "changed"), "the definition lets it through")
        await refused(binding, f"found by {binding.cluster_id}")
        assert computing.deployment("kubeocean-syncer-changed") is None
        binding.patch({"spec": {"clusterID": binding.cluster_id}})
    assert everything_of(binding) == before


def refused_by_the_definition(binding: Binding) -> bool:
    """Asked without changing anything."""
    path = f"/apis/{GROUP}/{VERSION}/{PLURAL}/{binding.name}?dryRun=All"
    try:
        binding.computing.send("PATCH", path, {"spec": {"clusterID": "changed"}}, MERGE)
    except AssertionError as said:
        return "clusterID cannot be changed" in str(said)
    return False


def changed(binding: Binding, cluster_id: str) -> bool:
    try:
        binding.patch({"spec": {"clusterID": cluster_id}})
    except AssertionError:
        return False
    return True


class without_rules:
    """The definition without its rules about changes, as Kubeocean (Go) installs it."""

    def __init__(self, computing: Computing) -> None:
        self._api = k8s.ApiextensionsV1Api(computing.api)

    def _spec(self) -> Any:
        return self._api.read_custom_resource_definition(CRD)

    def __enter__(self) -> None:
        self._rules = self._replace(None)

    def __exit__(self, *told: object) -> None:
        self._replace(self._rules)

    def _replace(self, rules: Any) -> Any:
        """The rules before; the API server writes the status of a definition as well, so the first attempt may be one of a conflict."""
        for left in reversed(range(5)):
            found = self._spec()
            field = found.spec.versions[0].schema.open_apiv3_schema.properties["spec"].properties["clusterID"]
            before, field.x_kubernetes_validations = field.x_kubernetes_validations, rules
            try:
                self._api.replace_custom_resource_definition(CRD, found)
            except k8s.ApiException as error:
                if error.status != 409 or not left:
                    raise
            else:
                return before
        raise AssertionError
