"""The documentation site is built strictly, and asks no other server for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^\"' >]*")


def test_site_is_built_without_a_warning_and_without_parts_of_other_servers(tmp_path: Path) -> None:
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert build.returncode == 0, build.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    assert not {page.name: found for page in pages if (found := LOADED.findall(page.read_text()))}
    assert LOADED.findall('<script src="https://cdn.example/x.js">')
