"""Tests of kubeocean.services.report."""

from __future__ import annotations

from kubeocean.model.keys import PER_NAMESPACE
from kubeocean.services.report import mirroring
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Unknown

SHARED, SPREAD = Mount(OWNER, "mnt"), Mount(OWNER, "mnt", PER_NAMESPACE)


def service(name: str, namespace: str = "shop") -> Unknown:
    return unknown({"metadata": {"name": name, "namespace": namespace}})


def message(
    *services: Unknown, refused: str = "", problems: tuple[str, ...] = (), has_dns: bool = False, mount: Mount = SHARED
) -> tuple[bool, str, str]:
    found = mirroring(frozenset({"shop"}), services, refused=refused, problems=problems, has_dns=has_dns, mount=mount)
    assert found is not None
    return found.holds, found.reason, found.message


def test_without_namespaces_there_is_nothing_to_report() -> None:
    assert mirroring(frozenset(), [service("web")], refused="x", problems=(), has_dns=False, mount=SHARED) is None


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


def test_namespaces_of_tenants_are_named_and_what_has_only_its_short_name_there() -> None:
    text = message(service("web"), service("a--b"), mount=SPREAD)[2]
    assert text.startswith("Services of shop have mirrors in the namespaces mnt-* of the worker") and "leads to" not in text
    long = "n" * 60
    found = mirroring(frozenset({long}), [service("web", long)], refused="", problems=(), has_dns=False, mount=SPREAD)
    assert found is not None and f"only the short name leads to {long}/web" in found.message


def test_a_problem_of_a_namespace_is_named_once() -> None:
    assert message(problems=("Services of shop are not mirrored",) * 3)[2].count("are not mirrored") == 1
