"""Tests of fleet.commands.init and of the durations of the command line."""

from __future__ import annotations

import pytest

from fleet.cli import seconds_of
from fleet.commands.init import ca_hash
from vkubelet.errors import SettingsError


def test_f_12_a_ca_is_recognized_by_its_hash_whatever_surrounds_it() -> None:
    assert ca_hash(b"ca\n") == ca_hash(b" ca") != ca_hash(b"other") and ca_hash(b"ca").startswith("sha256:")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800)])
def test_f_12_a_token_is_valid_for_the_time_that_is_written(text: str, seconds: int) -> None:
    assert seconds_of(text, "--token-life") == seconds


@pytest.mark.parametrize("text", ["", "h", "24", "0h", "-1h", "1.5h", "24x", "²h"])
def test_f_12_what_is_no_time_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        seconds_of(text, "--token-life")
    assert refused.value.path == "--token-life"
