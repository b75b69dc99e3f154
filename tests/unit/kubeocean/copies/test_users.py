"""Tests of kubeocean.copies.users."""

from __future__ import annotations

from kubeocean.copies.users import Users
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import Key, Pod
from vkubelet.api.podspec import Kind
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import PodTable

CONF = Key("default", "conf")


def naming(name: str, *, configmap: str = "conf", **more: object) -> Pod:
    volume = {"name": "c", "configMap": {"name": configmap, "optional": True}}
    return pod({"volumes": [volume]}, name=name, uid=f"uid-{name}", **more)


def everything(each: Pod) -> bool:
    return True


async def test_pods_that_another_process_synced_are_users_after_a_start() -> None:
    table = PodTable()
    table.put(naming("web"))
    users = Users(table, concerns=everything)
    assert not users.needs(Kind.CONFIGMAP, CONF)
    await users.seed(ManualClock())
    assert users.needs(Kind.CONFIGMAP, CONF)


async def test_pods_that_do_not_go_to_the_worker_and_finished_ones_need_nothing() -> None:
    table = PodTable()
    table.put(naming("agent"))
    table.put(naming("done", status={"phase": "Succeeded"}))
    users = Users(table, concerns=lambda each: each.metadata.name != "agent")
    await users.seed(ManualClock())
    assert not users.needs(Kind.CONFIGMAP, CONF) and not users.is_named(Kind.CONFIGMAP, CONF)


def test_object_is_unused_with_the_last_of_its_pods() -> None:
    table = PodTable()
    users = Users(table, concerns=everything)
    for name in ("a", "b"):
        table.put(naming(name))
        users.note(naming(name))
    assert users.drop("uid-a") == frozenset()
    assert users.drop("uid-b") == {(Kind.CONFIGMAP, CONF)}
    assert users.drop("uid-b") == frozenset()


def test_pod_that_is_gone_without_a_word_is_no_user() -> None:
    table = PodTable()
    table.put(naming("web"))
    users = Users(table, concerns=everything)
    users.note(naming("web"))
    table.remove(naming("web"))
    assert not users.needs(Kind.CONFIGMAP, CONF)


def test_pod_that_nobody_has_synced_yet_names_its_objects_all_the_same() -> None:
    table = PodTable()
    users = Users(table, concerns=everything)
    table.put(naming("new"))
    assert users.is_named(Kind.CONFIGMAP, CONF) and not users.is_named(Kind.SECRET, CONF)
    assert not users.is_named(Kind.CONFIGMAP, Key("other", "conf"))


def test_ephemeral_container_adds_what_it_names() -> None:
    table = PodTable()
    users = Users(table, concerns=everything)
    table.put(naming("web"))
    users.note(naming("web"))
    reference = {"name": "V", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}
    debugged = pod({"ephemeralContainers": [{"name": "debugger", "image": "busybox", "env": [reference]}]}, name="web", uid="uid-web")
    table.put(debugged)
    users.note(debugged)
    assert users.needs(Kind.SECRET, Key("default", "late")) and not users.needs(Kind.CONFIGMAP, CONF)


async def test_asking_looks_at_no_pod_that_is_noted() -> None:
    """Releasing a claim asks twice, and thousands of ephemeral volumes may end one after another."""
    looked_at: list[str] = []

    def counted(each: Pod) -> bool:
        looked_at.append(each.metadata.name)
        return True

    table = PodTable()
    users = Users(table, concerns=counted)
    for number in range(300):
        table.put(naming(f"p{number}"))
    await users.seed(ManualClock())
    assert not any(users.is_named(Kind.CLAIM, Key("default", f"p{number}-scratch")) for number in range(300))
    assert len(looked_at) == 300
