"""Every provider of this project passes the suite; what it is skipped for is pinned here.

Invariant: a capability that is taken from this list, or from a provider, fails a test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vkubelet.testing.conformance import RULES, Outcome, Report, Rule, table

ALL = frozenset(f"Supports{name}" for name in ("Attach", "Exec", "Logs", "Metrics", "NodeLogs", "Ping", "Polling", "PortForward", "Stats"))
CAPABILITIES = {
    "minimal": frozenset({"SupportsLogs"}),
    "mock": ALL,
    "process": ALL - {"SupportsPolling"},
    "kubeocean": ALL - {"SupportsPolling", "SupportsNodeLogs"},
}
HOW_MUCH = frozenset({"SupportsLogOptions"})
"""Says how a capability is served, and is none by itself."""

EPHEMERAL = {"minimal": "not supported", "mock": "reported running", "process": "reported running", "kubeocean": "reported running"}
AFTER_RESTART = {
    "minimal": "pods are lost and started again",
    "mock": "pods are lost and started again",
    "process": "pods are kept",
    "kubeocean": "pods are kept",
}

# The first test of a provider waits for its whole examination, in which each rule has a limit of its own.
pytestmark = [pytest.mark.parametrize("provider", CAPABILITIES), pytest.mark.timeout(900)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_provider_keeps_the_rule(provider: str, rule: Rule, report_of: Callable[[str], Report]) -> None:
    report = report_of(provider)
    result = report.result(rule.name)
    needed = rule.needs and rule.needs not in CAPABILITIES[provider]
    assert result.outcome is (Outcome.SKIPPED if needed else Outcome.PASSED), f"{rule.sentence}\n{result.seen}\n{table(report)}"


def test_provider_has_these_capabilities(provider: str, report_of: Callable[[str], Report]) -> None:
    report = report_of(provider)
    assert set(report.capabilities) == ALL | HOW_MUCH
    assert {name for name, has in report.capabilities.items() if has} - HOW_MUCH == CAPABILITIES[provider]


def test_what_depends_on_the_backend_is_as_told(provider: str, report_of: Callable[[str], Report]) -> None:
    report = report_of(provider)
    assert report.result("ephemeral-container").seen == EPHEMERAL[provider]
    assert report.result("new-process").seen == AFTER_RESTART[provider]
