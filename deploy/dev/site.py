"""Prepares pages for the documentation site: lists of records, and links to files that are not on the site.

Invariant: the pages in the repository are correct as they are; this changes only their copies on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any

LIST = "<!-- On the site: the list of the pages of this folder. -->"
REASONS = "reference/conditions-events.md"
REASON = re.compile(r"`([A-Z][A-Za-z]+)`")
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Returns the text of a page as the site shows it. Hook of mkdocs."""
    address = page.file.src_uri
    if LIST in markdown:
        folder = posixpath.dirname(address)
        siblings = [each for each in files.documentation_pages() if posixpath.dirname(each.src_uri) == folder and each is not page.file]
        markdown = markdown.replace(LIST, listed([(each.name, each.content_string) for each in siblings]))
    return without_links_outside(anchored(markdown) if address == REASONS else markdown, address)


def anchored(markdown: str) -> str:
    """Returns the page of reasons with an anchor at each: where it stands in a table before the last column, else where it stands first."""
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    heads = {name for row in rows for name in REASON.findall(row.rpartition(" | ")[0])}
    seen: set[str] = set()

    def marked(line: str) -> str:
        head, separator, tail = line.rpartition(" | ") if line.startswith("|") else (line, "", "")

        def anchor(found: re.Match[str]) -> str:
            name = found[1]
            if name in seen or (name in heads and not separator):
                return found[0]
            seen.add(name)
            return f'<a id="{name}"></a>{found[0]}'

        return REASON.sub(anchor, head) + separator + tail

    return "\n".join(map(marked, markdown.splitlines()))


def listed(pages: Sequence[tuple[str, str]]) -> str:
    """Returns a list of links to pages, each a name and its text, by their titles and in the order of their names."""
    return "\n".join(f"- [{title(text)}]({name}.md)" for name, text in sorted(pages))


def title(text: str) -> str:
    """Returns the first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def without_links_outside(markdown: str, address: str) -> str:
    """Replaces each link that leaves the folder docs by its text and the path of the file in the repository."""

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(address), link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}`)"

    return LINK.sub(shown, markdown)
