"""A provider that is wrong in one way fails by the name of the rule it breaks, and by no other.

Invariant: the suite is the one that every provider passes; only the provider is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.subjects import runtime_settings
from tests.conformance.wrong import FAULTS, Fault
from tests.support.program import PATIENCE
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.conformance import RULES, Kubectl, Options, Outcome, Report, Subject, examine, table
from vkubelet_providers.minimal import Minimal

AT_ONCE = 5

# The first test waits for all examinations, in which each rule has a limit of its own.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def reports(bare_judge: Kubectl, bare_hub: ControlPlane) -> Mapping[str, Report]:
    """Of all wrong providers, by name; they wait more than they work, so several are examined beside one another."""

    def subject(fault: Fault) -> Subject:
        node = f"wrong-{fault.name.lower()}"
        return Subject(
            make=lambda: fault.provider(Minimal.Settings(node)),
            settings=runtime_settings(bare_hub, node, ping={"timeout": 1.0}),
            kubeconfig=bare_hub.kubeconfig,
            judge=bare_judge,
        )

    def examined(fault: Fault, subject: Subject) -> Report:
        return asyncio.run(examine(subject, Options(patience=PATIENCE), only=(fault.rule, *fault.others)))

    # msgspec crashes when several threads are the first to convert to a class, so that is done before there are any.
    subjects = [subject(fault) for fault in FAULTS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip([fault.name for fault in FAULTS], pool.map(examined, FAULTS, subjects), strict=True))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_wrong_provider_breaks_its_rule_and_no_other(fault: Fault, reports: Mapping[str, Report]) -> None:
    report = reports[fault.name]
    assert report.names(Outcome.FAILED) == [fault.rule], table(report)
    assert set(report.names(Outcome.PASSED)) >= set(fault.others) - {fault.rule}


def test_every_fault_names_rules_there_are() -> None:
    known = {rule.name for rule in RULES}
    assert {name for fault in FAULTS for name in (fault.rule, *fault.others)} <= known
