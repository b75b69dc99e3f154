"""The end of a binding: the process cleans up first, what ran it goes then, and it always ends."""

from __future__ import annotations

import time

from kubernetes import client as k8s

from tests.integration.manager.conftest import SYSTEM, Binding, Computing, MakeBinding
from tests.integration.manager.test_life import MANAGER_FINALIZER, SYNCER_FINALIZER, identity_paths
from tests.support.program import eventually


def finalizers(binding: Binding) -> list[str]:
    return list((binding.body() or {}).get("metadata", {}).get("finalizers") or ())


def hold(binding: Binding) -> None:
    """As the process of the binding does it."""
    binding.patch({"metadata": {"finalizers": [*finalizers(binding), SYNCER_FINALIZER]}})


def release(binding: Binding) -> None:
    binding.patch({"metadata": {"finalizers": [each for each in finalizers(binding) if each != SYNCER_FINALIZER]}})


def certificate(binding: Binding, *, instance: str) -> dict[str, object]:
    """A certificate as Kubeocean (Go) makes one for a binding."""
    labels = {"app.kubernetes.io/name": "kubeocean-proxier", "app.kubernetes.io/instance": instance, "app.kubernetes.io/component": "tls"}
    return {"metadata": {"name": f"{binding.cluster_id}-logs-proxy-tls", "labels": labels}, "stringData": {"tls.crt": "x", "tls.key": "x"}}


async def test_removal_waits_for_the_process_then_takes_everything_away(computing: Computing, bind: MakeBinding) -> None:
    """Lines 28, 29 and 31 of kubeocean-behaviour.md."""
    core = computing.core
    core.create_namespaced_service_account(SYSTEM, {"metadata": {"name": "shared-by-all"}})
    binding, other = bind(), bind()
    await binding.deployed()
    await other.deployed()
    core.create_namespaced_secret(SYSTEM, certificate(binding, instance=binding.name))
    core.create_namespaced_secret(SYSTEM, certificate(other, instance="somebody-else"))
    paths = [*identity_paths(binding), f"/api/v1/namespaces/{SYSTEM}/services/kubeocean-proxier-{binding.name}-svc"]
    hold(binding)
    binding.delete()
    await eventually(lambda: "WaitingSyncerCleanup" in computing.events(binding.name), "event WaitingSyncerCleanup")
    computing.apps.delete_namespaced_deployment(binding.deployment_name, SYSTEM)
    assert await eventually(binding.deployment, "who has to clean up is brought back")
    assert finalizers(binding) == [MANAGER_FINALIZER, SYNCER_FINALIZER] and all(computing.raw(path) for path in paths)
    release(binding)
    await binding.gone()
    assert binding.deployment() is None and not [path for path in paths if computing.raw(path)]
    secrets = [each.metadata.name for each in core.list_namespaced_secret(SYSTEM).items]
    assert f"{binding.name}-logs-proxy-tls" not in secrets and f"{other.name}-logs-proxy-tls" in secrets
    await eventually(lambda: {"Cleanup", "Deleted"} <= set(computing.events(binding.name)), "events Cleanup and Deleted")
    assert core.read_namespaced_service_account("shared-by-all", SYSTEM)
    assert all(computing.raw(path) for path in identity_paths(other))
    core.delete_namespaced_service_account("shared-by-all", SYSTEM)
    core.delete_namespaced_secret(f"{other.name}-logs-proxy-tls", SYSTEM)


async def test_what_is_missing_is_no_error(computing: Computing, bind: MakeBinding) -> None:
    """Line 30 of kubeocean-behaviour.md."""
    binding = bind()
    await binding.deployed()
    with computing.without_manager():
        computing.apps.delete_namespaced_deployment(binding.deployment_name, SYSTEM)
        computing.core.delete_namespaced_service(f"kubeocean-proxier-{binding.name}-svc", SYSTEM)
        binding.delete()
    await binding.gone()
    assert "CleanupFailed" not in computing.events(binding.name)


async def test_never_served_binding_goes_at_once(bind: MakeBinding) -> None:
    binding = bind(secret=False)
    await eventually(lambda: binding.phase() == "Failed", f"{binding.body()}")
    binding.delete()
    await binding.gone()


async def test_cleaning_up_is_given_up_after_force_unbind_after_when_no_process_lives(computing: Computing, bind: MakeBinding) -> None:
    """A deletion always ends, and its events name what is left behind."""
    dead, alive = bind(forceUnbindAfter=2), bind(forceUnbindAfter=2)
    for binding in (dead, alive):
        await binding.deployed()
        hold(binding)
    labels = {"kubeocean.io/cluster-binding": dead.name, "type": "virtual-kubelet"}
    computing.core.create_node({"metadata": {"name": f"vnode-{dead.name}-x", "labels": labels}})
    await alive.available()
    began = time.monotonic()
    for binding in (dead, alive):
        binding.delete()
    await dead.gone()
    assert time.monotonic() - began > 1.0
    (text,) = await eventually(lambda: computing.messages(dead.name, "ForcedUnbinding"), "event")
    assert "1 virtual nodes" in text and dead.spec["mountNamespace"] in text
    assert SYNCER_FINALIZER in finalizers(alive), "the process that lives is not overtaken"
    release(alive)
    await alive.gone()
    computing.core.delete_node(f"vnode-{dead.name}-x")


async def test_annotation_ends_the_waiting_at_once(computing: Computing, bind: MakeBinding) -> None:
    """Line 46 of kubeocean-behaviour.md, where no process is left to do it."""
    binding = bind()
    await binding.deployed()
    hold(binding)
    binding.delete()
    await eventually(lambda: "WaitingSyncerCleanup" in computing.events(binding.name), "it waits")
    binding.patch({"metadata": {"annotations": {"kubeocean.io/force-unbind": "true"}}})
    await binding.gone()
    await eventually(lambda: "ForcedUnbinding" in computing.events(binding.name), "an event says that it was forced")


async def test_objects_of_others_under_the_wanted_names_are_left_alone(computing: Computing, bind: MakeBinding) -> None:
    binding = bind(create=False)
    core = computing.core
    owner = core.create_namespaced_config_map(SYSTEM, {"metadata": {"name": f"owner-{binding.name}"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid, "controller": True}
    body = {"metadata": {"name": binding.deployment_name, "ownerReferences": [reference]}, "data": {"mine": "kept"}}
    core.create_namespaced_config_map(SYSTEM, body)
    binding.create()
    await eventually(lambda: "belongs to another owner" in binding.message("SyncerReady"), f"{binding.body()}")
    binding.delete()
    await binding.gone()
    assert core.read_namespaced_config_map(binding.deployment_name, SYSTEM).data == {"mine": "kept"}
    core.delete_namespaced_config_map(owner.metadata.name, SYSTEM, body=k8s.V1DeleteOptions(propagation_policy="Foreground"))
