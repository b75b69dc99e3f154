"""The table of the compatibility page: every line is there once, and every test it names is in the tree."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "kubelet-compatibility.md"
LINES = [*range(1, 62), *(number for number in range(86, 130) if number != 121)]
"""121, traces, is named below the table as not there."""
COLUMNS = ("behaviour", "kubelet", "virtual-kubelet (Go)", "ours", "test")
ROW = re.compile(r"^\| (\d+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
ELSEWHERE = ("unit/", "e2e/", "conformance/")


def rows() -> list[tuple[int, list[str]]]:
    return [(int(number), rest.split(" | ")) for number, rest in ROW.findall(PAGE.read_text())]


@cache
def functions(file: Path) -> frozenset[str]:
    """The tests of a file, also those in classes."""
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_line_is_there_once_and_in_order() -> None:
    assert [number for number, _ in rows()] == LINES
    assert "(line 121)" in PAGE.read_text()


def test_every_line_fills_every_column() -> None:
    assert f"| line | {' | '.join(COLUMNS)} |" in PAGE.read_text()
    wrong = [number for number, cells in rows() if len(cells) != len(COLUMNS) or not all(cell.strip() for cell in cells)]
    assert wrong == []


def test_every_test_that_is_named_is_in_the_tree() -> None:
    missing = []
    for number, cells in rows():
        named = NAMED.findall(cells[-1])
        assert named, f"line {number} names no test"
        assert len(named) == cells[-1].count("::"), f"line {number} names a test in another form"
        for file, name in named:
            base = ROOT / "tests" if file.startswith(ELSEWHERE) else ROOT / "tests" / "integration"
            if name not in functions(base / file):
                missing.append(f"line {number}: {file}::{name}")
    assert missing == []


def test_the_page_is_reached_from_the_index() -> None:
    assert "(reference/kubelet-compatibility.md)" in (ROOT / "docs" / "index.md").read_text()
