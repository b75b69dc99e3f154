"""What an author sees."""

from __future__ import annotations

from vkubelet.testing.conformance.rules import Outcome, Report, Result, Rule
from vkubelet.testing.conformance.table import line, table


async def nothing(stand: object) -> None: ...


def result(name: str, outcome: Outcome, seen: str = "") -> Result:
    return Result(Rule(name, f"The sentence of {name}.", nothing), outcome, seen, 1.25)


def report(*results: Result, said: tuple[str, ...] = ()) -> Report:
    return Report("mine.Mine", {"SupportsExec": False, "SupportsLogs": True}, results, said)


def test_line_has_name_outcome_time_and_what_there_is_to_say() -> None:
    assert line(result("list-complete", Outcome.PASSED, "5 pods")).split() == ["list-complete", "passed", "1.2", "s", "5", "pods"]
    assert line(result("exec-left", Outcome.SKIPPED, "no exec")).split() == ["exec-left", "skipped", "no", "exec"]
    assert "long story" not in line(result("list-complete", Outcome.FAILED, "long story"))


def test_capabilities_are_listed_both_ways() -> None:
    text = table(report(result("a", Outcome.PASSED)))
    assert "has:     Logs" in text and "has not: Exec" in text


def test_broken_rule_is_shown_with_its_sentence_and_what_was_seen() -> None:
    text = table(report(result("a", Outcome.PASSED), result("b", Outcome.FAILED, "half of it"), said=("it is hot",)))
    assert "b: The sentence of b.\n  seen: half of it" in text
    assert "it is hot" in text
    assert text.endswith("1 passed, 1 failed, 0 skipped")


def test_warnings_are_of_no_interest_when_all_is_well() -> None:
    assert "it is hot" not in table(report(result("a", Outcome.PASSED), said=("it is hot",)))


def test_report_knows_its_results_by_name() -> None:
    made = report(result("a", Outcome.PASSED), result("b", Outcome.SKIPPED))
    assert made.passed and made.names(Outcome.SKIPPED) == ["b"]
    assert made.result("a").outcome is Outcome.PASSED
    assert not report(result("a", Outcome.FAILED)).passed
