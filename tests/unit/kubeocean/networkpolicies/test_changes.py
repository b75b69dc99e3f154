"""Tests of kubeocean.networkpolicies.mirror: which namespaces a change concerns, and how pods of an earlier patch count."""

from __future__ import annotations

import asyncio
from typing import Any

from attrs import evolve

from kubeocean.model import keys
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import OWNER, TARGET, binding, physical, pod, unknown
from tests.unit.kubeocean.networkpolicies.test_mirror import FORBIDDEN, MIRROR, WORKER, Scene, scene, space
from tests.unit.kubeocean.networkpolicies.test_translate import policy
from vkubelet.api.objects import Key, Unknown
from vkubelet.control.informer import Change

__all__ = ["scene"]


def tenant(scene: Scene, name: str, **labels: str) -> None:
    """A hub namespace with a worker namespace."""
    scene.mirror.namespaces.adopt(space(name, **{"kubernetes.io/metadata.name": name, **labels}))
    scene.cluster.namespaces.adopt(space(f"mnt-{name}"))


def by_label(namespace: str, **labels: str) -> Unknown:
    return policy("peers", namespace, policyTypes=["Ingress"], ingress=[{"from": [{"namespaceSelector": {"matchLabels": labels}}]}])


async def test_a_namespace_concerns_only_the_tenants_whose_selectors_may_choose_it(scene: Scene) -> None:
    for number in range(50):
        tenant(scene, f"t{number}", team="red")
        scene.decree(by_label(f"t{number}", **{"kubernetes.io/metadata.name": f"t{number}"}))
    scene.decree(by_label("shop", team="blue"))
    scene.decree(by_label("ml", env="test", team="blue"))
    scene.mirror._pending.clear()
    tenant(scene, "late", team="blue")
    assert scene.mirror._pending == {"late", "shop"}
    scene.mirror._pending.clear()
    metadata = {"name": "mnt-late", "uid": "mnt-late", "annotations": {"other": "client"}}
    scene.cluster.namespaces.adopt(unknown({"metadata": {**metadata, "resourceVersion": "2"}}))
    assert scene.mirror._pending == {"late"}, "it can be used as before"
    for version, change in (("3", {"deletionTimestamp": "2026-01-01T00:00:00Z"}), ("4", {})):
        scene.mirror._pending.clear()
        scene.cluster.namespaces.adopt(unknown({"metadata": {**metadata, "resourceVersion": version, **change}}))
        assert scene.mirror._pending >= {"shop"} and scene.mirror._pending <= {"shop", "late"}


async def test_labels_of_a_namespace_without_a_worker_namespace_concern_no_tenant(scene: Scene) -> None:
    scene.decree(by_label("shop", team="blue"))
    await scene.settle()
    scene.mirror.namespaces.adopt(space("hub-alone", team="blue"))
    assert not scene.mirror._pending
    scene.cluster.namespaces.adopt(space("mnt-hub-alone"))
    assert scene.mirror._pending == {"hub-alone", "shop"}


def patched_binding(**labels: str | None) -> Any:
    return binding({"podPatch": {"metadata": {"labels": labels}}} if labels else {})


def created_by(scene: Scene, **labels: str | None) -> Key:
    """A physical pod that was created while the binding had this patch."""
    target = evolve(TARGET, namespace="mnt-shop", overrides=patched_binding(**labels).overrides)
    found = physical(physical_pod(pod(name="old", namespace="shop", labels={"app": "web"}), target), resourceVersion="9")
    scene.cluster.pods.adopt(found)
    return found.key


def is_closed(scene: Scene) -> bool:
    """Whether the mirror of the policy isolates every pod, and allows nothing."""
    spec = scene.worker.objects[f"{WORKER}/{MIRROR}"]["spec"]
    return "ingress" not in spec and spec["podSelector"] == {"matchLabels": {keys.OWNER: OWNER.mark}}


async def test_pods_created_under_an_earlier_patch_stay_isolated(scene: Scene) -> None:
    scene.decree(policy(podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Ingress"], ingress=[{}]))
    await scene.settle()
    assert not is_closed(scene)
    key = created_by(scene, app="patched")
    assert scene.mirror._is_behind("shop")
    await scene.settle()
    assert is_closed(scene), "the pod has another value of the label than in the hub"
    old = scene.cluster.pods.store.remove(key)
    scene.cluster.pods._notify(Change(key, old, None))
    await scene.settle()
    assert not is_closed(scene)


async def test_labels_of_a_replaced_patch_count_while_pods_may_be_under_way(scene: Scene) -> None:
    scene.scope.binding.current = patched_binding(app=None)
    scene.mirror.binding_changed()
    scene.decree(policy(podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Ingress"], ingress=[{}]))
    await scene.settle()
    scene.scope.binding.current = patched_binding()
    scene.mirror.binding_changed()
    assert await scene.settle() == 60.0 and is_closed(scene)
    await scene.host.clock.advance(60.0)
    assert await scene.settle() is None and not is_closed(scene)


async def test_nothing_is_opened_before_it_is_known_how_pods_were_created(scene: Scene) -> None:
    scene.decree(policy(podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Ingress"], ingress=[{}]))
    for informer in (scene.cluster.pods, scene.cluster.namespaces):
        informer.ever_synced = False
        assert await scene.settle() is not None and scene.writes == []
        informer.ever_synced = True


async def test_pods_of_a_tenant_without_rights_do_not_wait_one_after_the_other(scene: Scene) -> None:
    scene.part().ever_synced, scene.part().last_error = False, FORBIDDEN
    scene.mirror._entrance._wait = 0.01
    await scene.mirror.entering("shop")
    scene.mirror._entrance._wait = 60.0
    async with asyncio.timeout(1):
        await scene.mirror.entering("shop")
    scene.part().last_error = None
    waiting = asyncio.create_task(scene.mirror.entering("shop"))
    await asyncio.sleep(0)
    assert not waiting.done(), "the rights were granted"
    scene.part().ever_synced = True
    await scene.settle()
    await waiting
