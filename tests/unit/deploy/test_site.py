"""The documentation site has every page, and pages appear on it as in the repository."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]
SITE = runpy.run_path(str(ROOT / "deploy" / "dev" / "site.py"))
RECORDS = ("decisions", "changes")


def test_navigation_has_every_page_once() -> None:
    named = re.findall(r"^ +- .*?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(str(page) for page in pages if page.parts[0] not in RECORDS or page.name == "README.md")


def test_pages_of_records_have_the_list_that_the_site_fills() -> None:
    assert all(SITE["LIST"] in (ROOT / "docs" / name / "README.md").read_text() for name in RECORDS)
    assert SITE["listed"]([("guide", "# Second\n"), ("bind", "text\n\n# First\n")]) == "- [First](bind.md)\n- [Second](guide.md)"


def test_links_to_files_that_are_not_on_the_site_name_their_path() -> None:
    shown = SITE["without_links_outside"]
    assert shown("see [it](../../CONTRIBUTING.md#tests)", "lease/bind.md") == "see it (`CONTRIBUTING.md`)"
    assert shown("see [it](../use/volumes.md)", "lease/bind.md") == "see [it](../use/volumes.md)"
