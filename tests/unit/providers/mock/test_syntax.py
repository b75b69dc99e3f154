"""The mock shell reads what users type, and refuses the rest."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet_providers.mock.syntax import Command, ShellSyntaxError, parse

VARIABLES = {"?": "7", "HOME": "/root", "x": "a b"}


def words(command: Command) -> list[str]:
    return [word.expand(VARIABLES) for word in command.words]


def steps(text: str) -> Sequence[tuple[str, list[list[str]]]]:
    return [(step.connector, [words(command) for command in step.pipeline]) for step in parse(text)]


def test_operators_split_a_line() -> None:
    assert steps("a 1;b&&c || d | e\nf") == [
        (";", [["a", "1"]]), (";", [["b"]]), ("&&", [["c"]]), ("||", [["d"], ["e"]]), (";", [["f"]]),
    ]  # fmt: skip
    assert steps("") == steps("\n;  ;\n") == []


def test_quotes_and_variables_are_those_of_a_shell() -> None:
    assert steps("echo \"$HOME $x\" '$HOME' \\$HOME ${x}y a'b'\"c\"") == [(";", [["echo", "/root a b", "$HOME", "$HOME", "a by", "abc"]])]
    assert steps('echo "a\\"b\\$x" $? "" $none') == [(";", [["echo", 'a"b$x', "7", "", ""]])]
    assert steps("echo a;b # c")[0] == (";", [["echo", "a"]])


def test_redirections_are_no_words() -> None:
    command = parse("cat < in > out 2>&1 >>more 2>/dev/null")[0].pipeline[0]
    assert words(command) == ["cat"]
    assert [(one.operator, one.target.expand({}) if one.target else None) for one in command.redirects] == [
        ("<", "in"), (">", "out"), ("2>&1", None), (">>", "more"), ("2>", "/dev/null"),
    ]  # fmt: skip
    assert words(parse("echo a2>f")[0].pipeline[0]) == ["echo", "a2"]


@pytest.mark.parametrize("text", ["| a", "a |", "a && && b", "a >", "a > | b", "'open", '"open', "a & b", "a || ; b"])
def test_what_is_no_sentence_is_refused(text: str) -> None:
    with pytest.raises(ShellSyntaxError, match="syntax error"):
        parse(text)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0"), min_size=1), min_size=1))
def test_quoted_words_come_through_unchanged(wanted: list[str]) -> None:
    text = " ".join(shlex.quote(word) for word in wanted)
    assert steps(text) == [(";", [wanted])]


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ShellSyntaxError as error:
        assert str(error)
