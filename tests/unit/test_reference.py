"""The reference pages say what the code says.

Invariant: a page that has fallen behind fails, and names the command that mends it.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "dev" / "reference.py"


@pytest.mark.parametrize("name", ["settings.md", "errors.md", "metrics.md", "conformance.md", "permissions.md"])
def test_reference_page_says_what_the_code_says(name: str) -> None:
    made = {path.name: (path, text) for path, text in runpy.run_path(str(SCRIPT))["pages"]().items()}
    path, text = made[name]
    assert path.read_text() == text, "run: make docs"
