"""References from code, tests and charts: every document and every safety rule they cite is in the repository.

Invariant: every check is a pure function from text to complaints, and has a test that shows it complaining.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ("start", "lease", "use", "operate", "build", "explanation", "reference")
FOLDERS = ("vkubelet", "kubeocean", "fleet", "providers", "deploy", "tests", *(f"docs/{name}" for name in GUIDES))
KINDS = {".py", ".sh", ".yaml", ".tpl", ".txt", ".patch", ".md"}
RULES = "docs/explanation/safety-rules.md"
DOCUMENT = re.compile(r"[\w./-]*\w\.md\b")
RULE = re.compile(r"\b[Rr]ules? `([a-z-]+)`")
NUMBERED = re.compile(r"\b[Rr]ule \d|\blayout\.md|\bsection \d\d\b|\bline \d+ of the issue")
OTHER_RULES = {"missing-reference"}
"""Rules of the conformance suite."""
OTHER_DOCUMENTS = {"config.md"}
"""The specification of container images."""


def documents() -> set[str]:
    """Returns the paths of all pages of the repository, and all ends of them."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md"), *ROOT.glob("*.md")]
    paths = [page.relative_to(ROOT).parts for page in pages]
    return {"/".join(parts[start:]) for parts in paths for start in range(len(parts))}


def rules() -> set[str]:
    return set(re.findall(r"^## `([a-z-]+)`$", (ROOT / RULES).read_text(), re.MULTILINE))


def unknown_documents(text: str, known: Collection[str]) -> Iterator[str]:
    yield from (name for name in DOCUMENT.findall(text) if name.replace("../", "").removeprefix("./") not in known)


def unknown_rules(text: str, known: Collection[str]) -> Iterator[str]:
    yield from (name for name in RULE.findall(text) if name not in known)
    yield from NUMBERED.findall(text)


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in KINDS and path.is_file() and path != Path(__file__) and "__pycache__" not in path.parts:
                yield path


def test_every_cited_document_is_in_the_repository() -> None:
    known = documents() | OTHER_DOCUMENTS
    cited = [path for path in sources() if path.suffix != ".md"]
    found = {path.relative_to(ROOT).as_posix(): list(unknown_documents(path.read_text(errors="replace"), known)) for path in cited}
    assert not {path: names for path, names in found.items() if names}


def test_every_cited_safety_rule_is_described() -> None:
    known = rules() | OTHER_RULES
    found = {path.relative_to(ROOT).as_posix(): list(unknown_rules(path.read_text(errors="replace"), known)) for path in sources()}
    assert len(known) == 18 and not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize("text", ["see layout.md, section 16", "rule 13", "Rule 5: one copy", "line 5 of the issue", "rule `always-right`"])
def test_numbers_and_unknown_rules_are_complained_of(text: str) -> None:
    assert list(unknown_rules(text, rules()))


def test_documents_are_known_by_any_end_of_their_path() -> None:
    known = documents()
    assert not list(unknown_documents(f"{RULES}, safety-rules.md and ../explanation/safety-rules.md", known))
    assert list(unknown_documents("spec/kubeocean.md 3.9", known)) == ["spec/kubeocean.md"]
