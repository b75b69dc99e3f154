"""Tests of kubeocean.services.report."""

from __future__ import annotations

from kubeocean.services.report import mirroring
from tests.unit.kubeocean.builders import unknown
from vkubelet.api.objects import Unknown


def service(name: str, namespace: str = "shop") -> Unknown:
    return unknown({"metadata": {"name": name, "namespace": namespace}})


def message(*services: Unknown, refused: str = "", problems: tuple[str, ...] = (), has_dns: bool = False) -> tuple[bool, str, str]:
    found = mirroring(frozenset({"shop"}), services, refused=refused, problems=problems, has_dns=has_dns, mount_namespace="mnt")
    assert found is not None
    return found.holds, found.reason, found.message


def test_without_namespaces_there_is_nothing_to_report() -> None:
    assert mirroring(frozenset(), [service("web")], refused="x", problems=(), has_dns=False, mount_namespace="mnt") is None


def test_message_states_namespaces_and_how_names_resolve() -> None:
    complete, reason, text = message(service("web"))
    assert (complete, reason) == (True, "Mirrored")
    assert text.startswith("Services of shop have mirrors in namespace mnt of the worker") and "`kubeocean dns`" in text
    assert "DNS of the hub" in message(service("web"), has_dns=True)[2]


def test_message_does_not_change_with_every_service() -> None:
    assert message(service("web")) == message(service("web"), service("db"))


def test_names_that_no_rewrite_leads_to_are_listed() -> None:
    assert "no name leads to shop/a--b, whose" in message(service("web"), service("a--b"), service("c--d", "elsewhere"))[2]


def test_refused_lists_name_the_remedy() -> None:
    complete, reason, text = message(refused="list services: forbidden")
    assert (complete, reason) == (False, "RightsMissing") and "list services: forbidden" in text and "kubeocean bind" in text


def test_problems_are_named_up_to_a_limit() -> None:
    complete, reason, text = message(problems=tuple(f"problem {number}" for number in range(7)))
    assert (complete, reason) == (False, "Incomplete") and text.startswith("problem 0; ") and " and 2 more; Services of shop" in text
