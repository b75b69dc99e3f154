"""The tables of behaviour: every line is there once, and every test they name is in the tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
ELSEWHERE = ("unit/", "e2e/", "conformance/")


@frozen
class Page:
    """A page of the reference whose tables have a row for each of `lines`; the last of `columns` names tests."""

    name: str
    lines: Sequence[int]
    columns: Sequence[str]

    @property
    def text(self) -> str:
        return (ROOT / "docs" / "reference" / self.name).read_text()

    def rows(self) -> list[tuple[int, list[str]]]:
        return [(int(number), rest.split(" | ")) for number, rest in ROW.findall(self.text)]


NOT_THERE = {84: "static pods", 121: "traces"}
"""Lines of the first page that are named below its tables."""
KUBELET = Page(
    "kubelet-compatibility.md",
    [number for number in range(1, 130) if number not in NOT_THERE],
    ("behaviour", "kubelet", "virtual-kubelet (Go)", "ours", "test"),
)
KUBEOCEAN = Page("kubeocean-behaviour.md", range(1, 196), ("behaviour", "here", "test"))
PAGES = pytest.mark.parametrize("page", [KUBELET, KUBEOCEAN], ids=lambda page: page.name)
DIFFERENCES = ROOT / "docs" / "reference" / "differences.md"


@cache
def functions(file: Path) -> frozenset[str]:
    """The tests of a file, also those in classes."""
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing_tests(cell: str) -> list[str]:
    """The tests a cell names that are not in the tree; the cell itself if it names none, or one in another form."""
    named = NAMED.findall(cell)
    if not named or len(named) != cell.count("::"):
        return [cell]
    return [f"{file}::{name}" for file, name in named if name not in functions(_folder(file) / file)]


def _folder(file: str) -> Path:
    return ROOT / "tests" if file.startswith(ELSEWHERE) else ROOT / "tests" / "integration"


@PAGES
def test_every_line_is_there_once_and_in_order(page: Page) -> None:
    assert [number for number, _ in page.rows()] == list(page.lines)


def test_the_lines_that_have_no_row_are_named_as_not_there() -> None:
    assert all(f"{what} (line {number})" in KUBELET.text.lower() for number, what in NOT_THERE.items())


@PAGES
def test_every_line_fills_every_column(page: Page) -> None:
    assert f"| line | {' | '.join(page.columns)} |" in page.text
    wrong = [number for number, cells in page.rows() if len(cells) != len(page.columns) or not all(cell.strip() for cell in cells)]
    assert wrong == []


@PAGES
def test_every_test_that_is_named_is_in_the_tree(page: Page) -> None:
    missing = {number: found for number, cells in page.rows() if (found := missing_tests(cells[-1]))}
    assert missing == {}


@PAGES
def test_the_page_is_reached_from_the_index(page: Page) -> None:
    assert f"(reference/{page.name})" in (ROOT / "docs" / "index.md").read_text()


def test_every_difference_names_the_test_that_shows_it() -> None:
    rows = [line for line in DIFFERENCES.read_text().splitlines() if line.startswith("| ") and not line.startswith("|---")]
    missing = {
        row: found for row in rows if not row.endswith("| test |") and (found := missing_tests(row.rstrip(" |").rpartition(" | ")[2]))
    }
    assert missing == {}
