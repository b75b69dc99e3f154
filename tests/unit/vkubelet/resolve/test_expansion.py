"""`$(NAME)`, rule by rule, and against a reading of the rules letter by letter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.resolve.expansion import expand, expand_all, expand_path, expand_probe

VARIABLES = {"A": "one", "B": "$(A)", "EMPTY": "", "with-dash": "x"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "one"),
        ("<$(A)$(A)>", "<oneone>"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$$$$(A)", "$$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(", "$("),
        ("$(A", "$(A"),
        ("x$(A y) $(A)", "x$(A y) one"),
        ("$(A$(A)", "$(A$(A)"),
        ("$()", "$()"),
        ("$", "$"),
        ("$A ${A} $x", "$A ${A} $x"),
        ("$(B)", "$(A)"),
        ("$(EMPTY)|", "|"),
        ("$(with-dash)", "x"),
        ("100%$", "100%$"),
    ],
)
def test_references_are_put_in_once_and_everything_else_stays(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded


def test_the_first_scope_that_knows_a_name_counts() -> None:
    assert expand("$(A) $(S)", {"A": "own"}, {"A": "service", "S": "service"}) == "own service"


def by_letters(text: str, variables: Mapping[str, str]) -> str:
    """The same rules, read from left to right."""
    out, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            out, at = out + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            out, at = out + variables.get(name, f"$({name})"), end + 1
        else:
            out, at = out + text[at], at + 1
    return out


@given(st.text(alphabet="$()AB x\n", max_size=30))
def test_every_text_is_expanded_as_the_rules_read(text: str) -> None:
    assert expand(text, VARIABLES) == by_letters(text, VARIABLES)


@given(st.text(max_size=30))
def test_a_text_with_doubled_dollars_comes_back_as_it_was(text: str) -> None:
    assert expand(text.replace("$", "$$"), VARIABLES) == text


def test_commands_are_expanded_word_by_word() -> None:
    assert expand_all(["sh", "-c", "echo $(A) $HOME"], VARIABLES) == ("sh", "-c", "echo one $HOME")


def test_paths_need_every_variable() -> None:
    assert expand_path("logs/$(A)/$$(A)", VARIABLES) == "logs/one/$(A)"
    with pytest.raises(ValueError, match="missing value for EMPTY, NOWHERE"):
        expand_path("$(NOWHERE)/$(EMPTY)/$(A)", VARIABLES)


def test_probes_know_literal_values_only() -> None:
    env = [{"name": "A", "value": "$(B)"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    assert expand_probe(["x", "$(A)", "<$(S)>", "$(B)"], env) == ("x", "$(B)", "<>", "$(B)")
