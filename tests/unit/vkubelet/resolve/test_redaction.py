"""Values of Secrets in texts, whole or cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.resolve.redaction import HIDDEN, redacted

LONG = "".join(f"secret-{number} " for number in range(400))
SHORT = "t0ps3cr3t"


def test_a_whole_value_is_hidden_wherever_it_is() -> None:
    assert redacted(f"exec: {SHORT}: {SHORT}!", {SHORT}) == f"exec: {HIDDEN}: {HIDDEN}!"
    assert redacted(f'exec: "{LONG}": not found', {LONG, SHORT}) == f'exec: "{HIDDEN}": not found'


@pytest.mark.parametrize("limit", [20, 100, 1024, 2000])
def test_a_value_that_a_limit_has_cut_is_hidden(limit: int) -> None:
    assert redacted(f'exec: "{LONG}": not found'[:limit], {LONG}) == f'exec: "{HIDDEN}'


def test_a_cut_value_that_is_not_at_the_end_is_hidden() -> None:
    assert redacted(f"Error: {LONG[:500]}; it is tried again, {LONG[:70]}.", {LONG}) == f"Error: {HIDDEN}; it is tried again, {HIDDEN}."


def test_a_text_that_shares_little_with_a_value_stays() -> None:
    url = "https://registry.example.com/path"
    assert redacted("pull https://registry.example.com/other: https:/", {url}) == "pull https://registry.example.com/other: https:/"


@given(st.text(max_size=80), st.text(min_size=4, max_size=300), st.integers(0, 400))
def test_eight_characters_of_a_value_never_end_a_text(before: str, value: str, limit: int) -> None:
    text = redacted((before + value)[:limit], {value})
    assert value not in text or value in HIDDEN
    assert not any(text.endswith(value[:length]) for length in range(8, min(64, len(value)))) or HIDDEN.endswith(value[:8])
