"""What a rule is made of."""

from __future__ import annotations

import pytest

from vkubelet.provider import SupportsExec
from vkubelet.testing.conformance import RULES
from vkubelet.testing.conformance.broken import Broken, expect
from vkubelet.testing.conformance.observed import CAPABILITIES
from vkubelet.testing.conformance.rules import Phase, rule


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
