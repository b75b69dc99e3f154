"""Tables for people, and JSON and YAML for programs."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
import yaml
from attrs import frozen

from kubeocean.commands.output import Columns, Format, amount_text, amounts_text, data, encoded, rendered
from tests.unit.kubeocean.builders import at
from vkubelet.api.quantity import Quantity, parse_resources

LONG = "its window is closed until the next morning, and it is the last policy of those that select the node at all"


@frozen
class Sample:
    when: datetime
    amounts: dict[str, Quantity]
    names: tuple[str, ...]


SAMPLE = Sample(at("2026-01-05 09:00"), parse_resources({"cpu": "1500m"}), ("a", "b"))


def test_times_and_amounts_are_encoded_as_kubernetes_does() -> None:
    assert encoded(SAMPLE) == {"when": "2026-01-05T09:00:00Z", "amounts": {"cpu": "1500m"}, "names": ["a", "b"]}


def test_json_and_yaml_have_the_same_data() -> None:
    assert json.loads(data([SAMPLE], Format.JSON)) == yaml.safe_load(data([SAMPLE], Format.YAML)) == encoded([SAMPLE])


def test_a_pipe_gets_one_line_for_each_row_and_no_colours() -> None:
    lines = list(rendered(["head", Columns(("A", "WHY"), [("x", LONG)])], width=10_000))
    assert lines == ["head", "A  WHY", f"x  {LONG}"]


def test_a_terminal_wraps_the_sentences_of_the_last_column() -> None:
    lines = list(rendered([Columns(("A", "WHY"), [("x", LONG)])], width=60))
    assert len(lines) == 3 and max(map(len, lines)) <= 60 and lines[2].startswith("   ")


def test_text_in_brackets_is_no_markup() -> None:
    assert list(rendered(["spec.timeWindows[0]: [bold]", Columns(("A",), [("[/x]",)])], width=80)) == [
        "spec.timeWindows[0]: [bold]",
        "A",
        "[/x]",
    ]


@pytest.mark.parametrize(
    ("amount", "text"),
    [("3200m", "3200m"), ("8Gi", "8Gi"), ("16384Mi", "16Gi"), ("65970004Ki", "62.9Gi"), ("110", "110"), ("1500Mi", "1500Mi"), ("0", "0")],
)
def test_amounts_are_short(amount: str, text: str) -> None:
    assert amount_text(Quantity.parse(amount)) == text


def test_small_resources_are_shown_only_wide() -> None:
    amounts = parse_resources({"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "1", "example.com/none": "0"})
    assert amounts_text(amounts) == "cpu 4, memory 8Gi, nvidia.com/gpu 1"
    assert amounts_text(amounts, wide=True) == "cpu 4, memory 8Gi, example.com/none 0, nvidia.com/gpu 1, pods 110"


def test_texts_of_a_cluster_cannot_command_the_terminal() -> None:
    hostile = "a\x1b]52;c;ZXZpbA==\x07 \x9b2Jb\r"
    for live in (False, True):
        drawn = "".join(rendered([hostile, Columns(("A",), [[hostile]])], width=80, live=live))
        assert drawn.count("a\\x1b]52;c;ZXZpbA==\\x07 \\x9b2Jb\\x0d") == 2 and "\x1b]" not in drawn and "\x9b" not in drawn
