"""Import lines of the product: their share, and `from __future__ import annotations` in exactly the modules that need it.

Invariant: a module needs it when its annotations, evaluated as the module is executed, name something that does not exist at that moment:
its own class, a later one, a name imported for type checkers, or a subscript that only type checkers know.
"""

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SHARE = 6.8
"""Lines of import statements of the product, in percent of all its lines: the goal is 6, see docs/decisions/0078-import-lines.md."""

SHIPPED = tuple(path for package in ("vkubelet", "kubeocean", "fleet", "providers") for path in sorted((ROOT / package).rglob("*.py")))


def import_lines(source: str) -> int:
    """Lines that import statements cover, wherever they are."""
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))
    return len({line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)})


def share(sources: Iterable[str]) -> float:
    """Import lines in percent of all lines."""
    lines = [(import_lines(source), len(source.splitlines())) for source in sources]
    return 100 * sum(imports for imports, _ in lines) / sum(total for _, total in lines)


def module_name(path: Path) -> str:
    """The name under which the distribution has a module."""
    top, *parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([{"providers": "vkubelet_providers"}.get(top, top), *parts]).removesuffix(".__init__")


def postpones_annotations(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def needless_future(name: str, source: str) -> Iterator[str]:
    """A module with the statement that can be executed without it."""
    tree = ast.parse(source)
    kept = [node for node in tree.body if not postpones_annotations(node)]
    if len(kept) == len(tree.body):
        return
    module = ModuleType(name)
    try:
        # Without `dont_inherit`, the code would be compiled with the statements of this file.
        exec(compile(ast.Module(kept, tree.type_ignores), name, "exec", dont_inherit=True), vars(module))
    except (AttributeError, NameError, TypeError):
        return
    yield f"{name}: remove `from __future__ import annotations`; all names in its annotations exist when they are evaluated"


def test_import_lines_keep_their_share() -> None:
    assert share(path.read_text() for path in SHIPPED) <= SHARE


# Since Python 3.14 annotations are evaluated when they are read; what the product needs is decided by the oldest Python that it supports.
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python evaluates no annotations")
def test_annotations_are_postponed_only_where_that_is_needed() -> None:
    modules = {module_name(path): path.read_text() for path in SHIPPED if path.name != "__main__.py"}
    for name in modules:
        importlib.import_module(name)
    assert not [text for name, source in modules.items() for text in needless_future(name, source)]


def test_lines_of_imports_are_counted_wherever_they_are() -> None:
    assert import_lines("import a\nfrom b import (\n    c,\n    d,\n)\n\n\ndef f():\n    import e\n    return e\n") == 6
    assert share(["import a\nx = 1\n", "x = 1\nx = 2\n"]) == 25


FUTURE = "from __future__ import annotations\n"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python evaluates no annotations")
@pytest.mark.parametrize(
    "source",
    [
        "class C:\n    def f(self) -> C: ...\n",
        "def f() -> Later: ...\nclass Later: ...\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import B\ndef f(b: B) -> None: ...\n",
        "def f(x: 'int' | None) -> None: ...\n",
        "import argparse\ndef f(x: argparse._SubParsersAction[argparse.ArgumentParser]) -> None: ...\n",
    ],
)
def test_modules_that_need_postponed_annotations_keep_them(source: str) -> None:
    assert not list(needless_future("some", FUTURE + source))


@pytest.mark.parametrize("source", ["", "def f(x: int | None) -> list[str]: ...\n", "def f():\n    x: C = 1\nclass C: ...\n"])
def test_each_other_module_is_reported(source: str) -> None:
    assert list(needless_future("some", FUTURE + source))
    assert not list(needless_future("some", source))
