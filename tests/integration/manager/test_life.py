"""A binding from its creation to its deletion: docs/reference/kubeocean-behaviour.md, lines 14 to 20."""

from __future__ import annotations

from typing import Any

from kubernetes import watch as k8s_watch

from tests.integration.manager.conftest import GROUP, PLURAL, SYSTEM, VERSION, Binding, Computing, MakeBinding
from tests.support.program import eventually, holds
from vkubelet.api.codec import decode_yaml

MANAGER_FINALIZER, SYNCER_FINALIZER = "kubeocean.io/clusterbinding-manager", "kubeocean.io/clusterbinding-syncer"


def versions(computing: Computing, created: dict[str, Any]) -> list[dict[str, Any]]:
    """Every version of a binding that was written since its creation, as the API server remembers them."""
    meta, call = created["metadata"], computing.custom.list_cluster_custom_object
    now = call(GROUP, VERSION, PLURAL, field_selector=f"metadata.name={meta['name']}")["items"][0]["metadata"]["resourceVersion"]
    options = {"field_selector": f"metadata.name={meta['name']}", "resource_version": meta["resourceVersion"], "timeout_seconds": 30}
    out: list[dict[str, Any]] = []
    for event in k8s_watch.Watch().stream(call, GROUP, VERSION, PLURAL, **options):
        out.append(event["object"])
        if out[-1]["metadata"]["resourceVersion"] == now:
            return out
    raise AssertionError(f"the API server did not tell of version {now}")


def owned_by(body: dict[str, Any] | None, binding: Binding) -> bool:
    uid = (binding.body() or {})["metadata"]["uid"]
    return body is not None and [(each["uid"], each["controller"]) for each in body["metadata"]["ownerReferences"]] == [(uid, True)]


async def test_finalizer_comes_first_then_pending_and_then_everything_that_runs_it(computing: Computing, bind: MakeBinding) -> None:
    """Lines 15, 16 and 19 of kubeocean-behaviour.md."""
    binding = bind(create=False)
    created = binding.create()
    deployment = await binding.deployed()
    await eventually(lambda: binding.conditions().get("SyncerReady"), f"conditions: {binding.body()}")
    seen = [created, *versions(computing, created)]
    finalized = next(at for at, body in enumerate(seen) if body["metadata"].get("finalizers"))
    assert MANAGER_FINALIZER in seen[finalized]["metadata"]["finalizers"] and not seen[finalized].get("status")
    first = next(body["status"] for body in seen if body.get("status"))
    assert first["phase"] == "Pending"
    assert [(each["type"], each["status"], each["reason"]) for each in first["conditions"]] == [("Ready", "False", "Initializing")]
    assert owned_by(deployment, binding)
    service = computing.raw(f"/api/v1/namespaces/{SYSTEM}/services/kubeocean-proxier-{binding.name}-svc")
    assert service is not None and owned_by(service, binding)
    selector = service["spec"]["selector"]
    assert selector and selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert computing.deployment(f"kubeocean-proxier-{binding.name}") is None
    for path in identity_paths(binding):
        assert owned_by(computing.raw(path), binding), path


def identity_paths(binding: Binding) -> list[str]:
    """The ServiceAccount and roles of one binding alone."""
    name, rbac = binding.deployment_name, "/apis/rbac.authorization.k8s.io/v1"
    roles = [f"{rbac}/namespaces/{each}/{kind}/{name}" for each in (SYSTEM, "kube-node-lease") for kind in ("roles", "rolebindings")]
    wide = [f"{rbac}/{kind}/{name}" for kind in ("clusterroles", "clusterrolebindings")]
    reader = f"{rbac}/namespaces/kube-system/rolebindings/{name}-authentication-reader"
    accounts = [f"/api/v1/namespaces/{SYSTEM}/{kind}/{name}" for kind in ("serviceaccounts", "configmaps")]
    return [*accounts, *roles, *wide, reader]


async def test_pods_pass_the_restricted_level_and_their_roles_are_narrow(computing: Computing, bind: MakeBinding) -> None:
    """The namespace enforces Pod Security level restricted: what does not keep it gets no pod."""
    binding = bind()
    await binding.deployed()
    assert await eventually(binding.pods, f"pods: {binding.deployment()}")
    role = computing.raw(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{binding.deployment_name}")
    assert role is not None
    writes = [rule for rule in role["rules"] if "clusterbindings" in rule["resources"] and "patch" in rule["verbs"]]
    assert [rule["resourceNames"] for rule in writes] == [[binding.name]]


def starting(binding: Binding) -> None:
    told = binding.conditions()
    assert told.get("Connected") == ("True", "ConnectivityPassed") and told.get("Permitted") == ("True", "RightsGranted"), told
    assert told.get("SyncerReady") == ("False", "SyncerStarting") and binding.phase() == "Pending", told


async def test_until_a_process_speaks_the_manager_tells_why_there_is_none(bind: MakeBinding) -> None:
    binding = bind()
    await binding.deployed()
    await holds(lambda: starting(binding))
    await binding.tell_of_pods(running=False, waiting="ImagePullBackOff")
    await eventually(lambda: "ImagePullBackOff" in binding.message("SyncerReady"), f"{binding.body()}")
    assert binding.phase() == "Failed" and binding.conditions()["Ready"] == ("False", "SyncerFailed")
    assert binding.conditions()["Connected"] == ("True", "ConnectivityPassed")
    await binding.available()
    await eventually(lambda: "Ready" in binding.computing.events(binding.name), "event Ready")


async def test_conditions_keep_the_conventions(bind: MakeBinding) -> None:
    """observedGeneration follows the spec, and lastTransitionTime moves on a flip only."""
    binding = bind()
    await binding.deployed()
    await holds(lambda: starting(binding))
    before = {each["type"]: each["lastTransitionTime"] for each in (binding.body() or {})["status"]["conditions"]}
    binding.patch({"spec": {"timeZone": "Europe/Berlin"}})

    def observed() -> bool:
        body = binding.body() or {}
        told = {each.get("observedGeneration") for each in body["status"]["conditions"]}
        return told == {body["metadata"]["generation"]} == {body["status"].get("observedGeneration")} == {2}

    await eventually(observed, f"generation 2 is observed: {binding.body()}")
    assert {each["type"]: each["lastTransitionTime"] for each in (binding.body() or {})["status"]["conditions"]} == before


async def test_settings_of_the_process_are_what_the_manager_was_told(computing: Computing, bind: MakeBinding) -> None:
    binding = bind()
    await binding.deployed()
    found = computing.raw(f"/api/v1/namespaces/{SYSTEM}/configmaps/{binding.deployment_name}")
    assert found is not None
    told = decode_yaml(found["data"]["settings.yaml"])
    assert told["leader"] == {"enabled": True, "namespace": SYSTEM, "name": binding.deployment_name}
