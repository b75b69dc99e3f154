"""Tests of kubeocean.services.report."""

from __future__ import annotations

from kubeocean.binding.conditions import Lists
from kubeocean.model.keys import PER_NAMESPACE
from kubeocean.services.report import mirroring
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Unknown

ANSWERED = Lists()
SHARED, SPREAD = Mount(OWNER, "mnt"), Mount(OWNER, "mnt", PER_NAMESPACE)


def service(name: str, namespace: str = "shop") -> Unknown:
    return unknown({"metadata": {"name": name, "namespace": namespace}})


def message(
    *services: Unknown, lists: Lists = ANSWERED, problems: tuple[str, ...] = (), has_dns: bool = False, mount: Mount = SHARED
) -> tuple[bool, str, str]:
    found = mirroring(frozenset({"shop"}), services, lists=lists, problems=problems, has_dns=has_dns, mount=mount)
    assert found is not None
    return found.holds, found.reason, found.message


def test_without_namespaces_there_is_nothing_to_report() -> None:
    assert mirroring(frozenset(), [service("web")], lists=Lists("x"), problems=(), has_dns=False, mount=SHARED) is None


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
    complete, reason, text = message(lists=Lists("list services: forbidden"))
    assert (complete, reason) == (False, "RightsMissing") and text.startswith("Services are not mirrored: list services: forbidden; ")
    assert "kubeocean bind" in text


def test_rights_that_were_removed_leave_the_mirrors_and_stop_changes() -> None:
    for lists in (Lists("list services: forbidden", has_mirrors=True), Lists(failing="list services: x", has_mirrors=True)):
        assert message(lists=lists)[2].startswith("changes of Services are not mirrored, and existing mirrors stay as they are: list")


def test_lists_that_fail_are_named_with_another_remedy() -> None:
    complete, reason, text = message(lists=Lists(failing="list services: etcd is down"))
    assert (complete, reason) == (False, "NotListed") and "etcd is down" in text and "kubeocean bind" not in text


def test_problems_are_named_up_to_a_limit() -> None:
    complete, reason, text = message(problems=tuple(f"problem {number}" for number in range(7)))
    assert (complete, reason) == (False, "Incomplete") and text.startswith("problem 0; ") and " and 2 more; Services of shop" in text


def test_namespaces_of_tenants_are_named_and_what_has_only_its_short_name_there() -> None:
    text = message(service("web"), service("a--b"), mount=SPREAD)[2]
    assert text.startswith("Services of shop have mirrors in the namespaces mnt-* of the worker") and "leads to" not in text
    long = "n" * 60
    found = mirroring(frozenset({long}), [service("web", long)], lists=Lists(), problems=(), has_dns=False, mount=SPREAD)
    assert found is not None and f"only the short name leads to {long}/web" in found.message


def test_a_problem_of_a_namespace_is_named_once() -> None:
    assert message(problems=("Services of shop are not mirrored",) * 3)[2].count("are not mirrored") == 1
