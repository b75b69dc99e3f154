"""Tests of kubeocean.services.leased."""

from __future__ import annotations

from kubeocean.services.leased import LeasedNamespaces
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import Pod
from vkubelet.testing.host import RecordingHost


def caller(name: str, namespace: str = "shop", **status: object) -> Pod:
    return pod(name=name, namespace=namespace, uid=f"uid-{name}", status=dict(status))


def table(*pods: Pod) -> tuple[RecordingHost, LeasedNamespaces]:
    host = RecordingHost()
    for each in pods:
        host.pods.put(each)
    return host, LeasedNamespaces(host, unused_after=30.0)


async def test_pods_of_an_earlier_process_count_unless_finished_or_of_the_system() -> None:
    _, leased = table(caller("a"), caller("b", "done", phase="Succeeded"), caller("c", "kube-system"))
    await leased.seed()
    assert leased.namespaces() == {"shop"}


def test_only_the_first_pod_of_a_namespace_is_new() -> None:
    _, leased = table(caller("a"), caller("b"))
    assert leased.note(caller("a")) and not leased.note(caller("b"))


async def test_namespace_is_used_for_a_while_after_its_last_pod() -> None:
    host, leased = table(caller("a"), caller("b"))
    await leased.seed()
    host.pods.remove(caller("a"))
    assert leased.drop(caller("a").ref) is None
    host.pods.remove(caller("b"))
    assert leased.drop(caller("b").ref) == 30.0 and leased.uses("shop")
    await host.manual_clock.advance(30.0)
    assert not leased.uses("shop") and leased.namespaces() == frozenset()


async def test_pod_that_comes_back_in_time_keeps_the_namespace() -> None:
    host, leased = table(caller("a"))
    await leased.seed()
    host.pods.remove(caller("a"))
    leased.drop(caller("a").ref)
    host.pods.put(caller("b"))
    assert not leased.note(caller("b"))
    await host.manual_clock.advance(60.0)
    assert leased.uses("shop")


def test_pod_that_vanished_unreported_does_not_count() -> None:
    host, leased = table(caller("a"))
    leased.note(caller("a"))
    host.pods.remove(caller("a"))
    assert not leased.uses("shop")
