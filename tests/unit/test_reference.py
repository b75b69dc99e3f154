"""The reference pages say what the code says.

Invariant: a page that has fallen behind fails, and names the command that mends it.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import vkubelet
from vkubelet import provider

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = Path(__file__).parents[2] / "deploy" / "dev"
SCRIPT = SCRIPTS / "reference.py"


@pytest.mark.parametrize("name", ["api.md", "settings.md", "errors.md", "metrics.md", "conformance.md", "permissions.md", "cli.md"])
def test_reference_page_says_what_the_code_says(name: str) -> None:
    made = {path.name: (path, text) for path, text in runpy.run_path(str(SCRIPT))["pages"]().items()}
    path, text = made[name]
    assert path.read_text() == text, "run: make docs"


def test_page_of_a_fleet_says_what_the_code_says() -> None:
    ((path, text),) = runpy.run_path(str(SCRIPTS / "fleet_reference.py"))["pages"]().items()
    assert path.read_text() == text, "run: make docs"


@pytest.mark.parametrize("name", ["clusterbinding.md", "resourceleasingpolicy.md", "charts.md"])
def test_page_of_definitions_has_every_field_and_value(name: str) -> None:
    made = {path.name: (path, text) for path, text in runpy.run_path(str(SCRIPTS / "definitions.py"))["pages"]().items()}
    path, text = made[name]
    assert path.read_text() == text, "run: make docs"


def test_every_name_of_the_contract_has_a_summary() -> None:
    summary = runpy.run_path(str(SCRIPT))["summary"]
    assert not [name for name in provider.__all__ if not summary(getattr(provider, name))]
    assert set(vkubelet.__all__) <= set(provider.__all__)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of everything that is imported of this distribution."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("vkubelet", "kubeocean")):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith(("vkubelet", "kubeocean")))


@pytest.mark.parametrize("page", ["build/tutorial.md", "start/provider.md"])
def test_providers_of_the_tutorial_need_the_contract_alone(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    found = [each for block in blocks for each in imported(block)]
    assert found and not [(module, name) for module, name in found if module != "vkubelet.provider" or name not in provider.__all__]
