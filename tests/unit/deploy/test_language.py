"""The measure of the language: which words count, which do not, and what counts as a verb.

Invariant: every rule has a sample that it counts and one that it spares.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

LANGUAGE = runpy.run_path(str(Path(__file__).parents[3] / "deploy" / "dev" / "language.py"))


def words(text: str) -> list[str]:
    return [form.lower() for _, form in LANGUAGE["occurrences"](text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The pod can\nnot start.", ["can not"]),
        ("The node is told once more, and somebody looks.", ["told", "once more", "somebody", "looks"]),
        ("Whole lists of its own end there.", ["whole", "of its own", "end", "there"]),
        ("It takes over what is there.", ["takes over", "what is there"]),
        ("The word Well counts at the start, too.", ["word", "well"]),
    ],
)
def test_words_to_avoid_are_counted_in_every_form(text: str, found: list[str]) -> None:
    assert words(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "There is no node, and there are no pods.",
        'Writes "can not" and `told`, as ``said`` before.',
        "Looks up the well-known names as well.",
        "Reads the home directory until the end of the stream.",
        "See https://example.org/home/there.",
        "An example:\n\n    await said(told)\n\nIt returns.",
        "The pod cannot start; the sender and the endpoint wait.",
    ],
)
def test_terms_quotes_and_code_are_not_counted(text: str) -> None:
    assert not words(text)


@pytest.mark.parametrize(
    "text",
    [
        "Returns the patch.",
        "Return the patch.",
        "Copies it.",
        "Watches the pods.",
        "Reports that it failed.",
        "Lists the pods of a node.",
        "Names the node.",
    ],
)
def test_a_verb_in_the_imperative_or_third_person_starts_a_docstring(text: str) -> None:
    assert LANGUAGE["starts_with_verb"](text)


@pytest.mark.parametrize(
    "text", ["The patch.", "Names of nodes.", "What is wanted.", "", "None: no patch.", "Pods by node.", "Watch of a pod."]
)
def test_a_noun_does_not_start_a_docstring_as_a_verb(text: str) -> None:
    assert not LANGUAGE["starts_with_verb"](text)


SOURCE = '''"""Module of nodes."""
# A comment over
# two lines, told.
LIMIT = 1  # noqa: told
"""Told."""


def public():
    """Returns it."""


def _private():
    """The rest."""


class Some:
    @property
    def name(self):
        """Name of it."""

    async def run(self):
        """The run."""
'''


def test_docstrings_and_comments_are_measured_and_directives_are_not() -> None:
    counts = LANGUAGE["Measure"]()
    for text in LANGUAGE["texts"](SOURCE):
        counts.add(text)
    assert counts.found == {"tell, say, word": 2}
    assert (counts.docstrings, counts.verbs) == (2, 1), "private functions and properties do not count"
    assert counts.share == 50.0


PAGE = """# A heading that says it
Prose over
two lines can
not end. [Told](told#said), `said`.

- an item is told
- another one
> a quotation that says

| what it says | `told` |
|---|---|

```console
$ say told
```
"""


def test_prose_of_a_page_is_measured_and_code_quotations_and_addresses_are_not() -> None:
    found = [(text.line, form) for text in LANGUAGE["paragraphs"](PAGE) for _, form in LANGUAGE["occurrences"](text.prose)]
    assert found == [(1, "says"), (2, "can not"), (2, "end"), (2, "Told"), (6, "told"), (10, "says")]


def test_each_limit_that_is_exceeded_is_named() -> None:
    counts = LANGUAGE["Measure"](words=1000, docstrings=10, verbs=9)
    counts.found.update({"can not": 1})
    limit = LANGUAGE["Limit"]
    exact = {"words": 1.0, "verbs": 90.0, "can_not": 1}
    assert not list(LANGUAGE["complaints"]("some", counts, limit(**exact)))
    for stricter in ({"words": 0.9}, {"verbs": 95.0}, {"can_not": 0}):
        assert len(list(LANGUAGE["complaints"]("some", counts, limit(**exact | stricter)))) == 1


def test_the_table_shows_every_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert LANGUAGE["main"](["deploy/dev/language.py"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "deploy/dev/language.py"
    assert [row for row in rows if row.startswith("words")]
