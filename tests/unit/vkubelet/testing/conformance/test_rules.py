"""Rules, and the report that an author sees."""

from __future__ import annotations

import pytest

from vkubelet.provider import SupportsExec
from vkubelet.testing.conformance import RULES
from vkubelet.testing.conformance.observed import CAPABILITIES
from vkubelet.testing.conformance.rules import Broken, Outcome, Phase, Report, Result, Rule, expect, line, rule, table


def test_rule_takes_its_name_and_its_sentence_from_its_function() -> None:
    @rule(needs=SupportsExec, phase=Phase.LAST)
    async def speaks_up(stand: object) -> None:
        """One sentence
        over two lines."""

    assert (speaks_up.name, speaks_up.sentence) == ("speaks-up", "One sentence over two lines.")
    assert (speaks_up.needs, speaks_up.phase) == ("SupportsExec", Phase.LAST)


def test_names_are_different_and_sentences_are_sentences() -> None:
    assert len({one.name for one in RULES}) == len(RULES)
    assert all(one.sentence.endswith(".") and len(one.sentence) > 30 for one in RULES)


def test_every_capability_but_the_one_about_log_options_has_a_rule() -> None:
    assert {one.needs for one in RULES} == {"", *CAPABILITIES} - {"SupportsLogOptions"}


def test_what_does_not_hold_is_broken_with_what_was_seen() -> None:
    expect(["something"], "never shown")
    with pytest.raises(Broken, match="seen instead"):
        expect([], "seen instead")


# --- the report ------------------------------------------------------------------------------------------------------------------------


async def nothing(stand: object) -> None: ...


def result(name: str, outcome: Outcome, seen: str = "") -> Result:
    return Result(Rule(name, f"The sentence of {name}.", nothing), outcome, seen, 1.25)


def report(*results: Result, warnings: tuple[str, ...] = ()) -> Report:
    return Report("mine.Mine", {"SupportsExec": False, "SupportsLogs": True}, results, warnings)


def test_line_has_name_outcome_time_and_what_there_is_to_say() -> None:
    assert line(result("list-complete", Outcome.PASSED, "5 pods")).split() == ["list-complete", "passed", "1.2", "s", "5", "pods"]
    assert line(result("exec-left", Outcome.SKIPPED, "no exec")).split() == ["exec-left", "skipped", "no", "exec"]
    assert "long story" not in line(result("list-complete", Outcome.FAILED, "long story"))


def test_capabilities_are_listed_both_ways() -> None:
    text = table(report(result("a", Outcome.PASSED)))
    assert "has:     Logs" in text and "has not: Exec" in text


def test_broken_rule_is_shown_with_its_sentence_and_what_was_seen() -> None:
    text = table(report(result("a", Outcome.PASSED), result("b", Outcome.FAILED, "half of it"), warnings=("it is hot",)))
    assert "b: The sentence of b.\n  seen: half of it" in text
    assert "it is hot" in text
    assert text.endswith("1 passed, 1 failed, 0 skipped")


def test_warnings_are_of_no_interest_when_all_is_well() -> None:
    assert "it is hot" not in table(report(result("a", Outcome.PASSED), warnings=("it is hot",)))


def test_report_knows_its_results_by_name() -> None:
    made = report(result("a", Outcome.PASSED), result("b", Outcome.SKIPPED))
    assert made.passed and made.names(Outcome.SKIPPED) == ["b"]
    assert made.result("a").outcome is Outcome.PASSED
    assert not report(result("a", Outcome.FAILED)).passed
