"""What pages of the documentation name is in the repository: files, links, modules, functions and layers.

Invariant: every check is a pure function from text to complaints, and has a sample of which it complains.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXPLANATION = DOCS / "explanation"
PAGES = sorted(path for name in ("docs", "tests") for path in (ROOT / name).rglob("*.md")) + sorted(ROOT.glob("*.md"))
HISTORY = (DOCS / "decisions", DOCS / "changes")
"""Records of their time: they may name what is no longer in the repository."""

FENCE = re.compile(r"^(```|~~~)(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(r"(?:deploy|docs|kubeocean|providers|tests|vkubelet)/[\w./-]*\w|(?:unit|integration|e2e|faults)/[\w/]+\.py")
DOTTED = re.compile(r"(?:fleet|kubeocean|vkubelet|vkubelet_providers)(?:\.\w+)+")


def prose(text: str) -> str:
    return FENCE.sub("", text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = (re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", title).replace("`", "") for title in HEADING.findall(prose(page.read_text())))
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles)


def broken_links(page: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(CODE.sub("", prose(text))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in anchors(found)):
            yield f"{page.relative_to(ROOT)}: {target}"


def missing_files(page: Path, text: str) -> Iterator[str]:
    for code in CODE.findall(prose(text)):
        name = code.partition("::")[0]
        places = (ROOT / name, ROOT / "tests" / name, ROOT / "tests" / "integration" / name)
        if FILE.fullmatch(name) and not any(place.exists() for place in places):
            yield f"{page.relative_to(ROOT)}: {name}"


def missing_tests(text: str) -> Iterator[str]:
    """Names such as `unit/test_docs.py::test_name` of which the file has no such function."""
    for code in CODE.findall(prose(text)):
        name, found, function = code.partition("::")
        if found and not re.search(rf"^(?:async )?def {function}\(", source(name), re.MULTILINE):
            yield code


def source(name: str) -> str:
    path = ROOT / "tests" / name
    return path.read_text() if path.is_file() else ""


def resolved(name: str) -> object:
    """The module, class or function of a dotted name. Raises ImportError or AttributeError."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[count:], module)
    raise ImportError(name)


def missing_names(text: str) -> Iterator[str]:
    for name in CODE.findall(prose(text)):
        if DOTTED.fullmatch(name):
            try:
                resolved(name)
            except (ImportError, AttributeError):
                yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_pages_and_headings(page: Path) -> None:
    assert not list(broken_links(page, page.read_text()))


def test_files_that_pages_name_are_in_the_repository() -> None:
    pages = [page for page in PAGES if not page.is_relative_to(HISTORY[0]) and not page.is_relative_to(HISTORY[1])]
    assert not [text for page in pages for text in missing_files(page, page.read_text())]


@pytest.mark.parametrize("page", [*sorted(EXPLANATION.glob("*.md")), ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_modules_and_functions_that_a_page_names_exist(page: Path) -> None:
    assert not list(missing_names(page.read_text()))


@pytest.mark.parametrize("page", sorted(EXPLANATION.glob("*.md")), ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    assert not list(missing_tests(page.read_text()))


def test_every_claim_about_security_names_its_test() -> None:
    text = (EXPLANATION / "security-claims.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| claim |")]
    assert len(rows) > 70 and not [row for row in rows if "::test_" not in row]


def test_every_topic_of_security_has_rows_of_claims() -> None:
    how = (EXPLANATION / "security.md").read_text().partition("## How it works\n")[2]
    topics = [re.sub(r"[.,].*|\*\*", "", topic) for topic in re.findall(r"^\*\*[A-Z][^*]+\*\*", how, re.MULTILINE)]
    headings = HEADING.findall((EXPLANATION / "security-claims.md").read_text())
    assert len(topics) > 10 and not set(topics) - set(headings) - {"The right `nodes/proxy`"}, "a warning, which claims nothing"


def test_checks_of_names_complain_of_what_is_missing() -> None:
    page = EXPLANATION / "architecture.md"
    assert list(broken_links(page, "[a](missing) [b](safety-rules.md#missing)")) and not list(broken_links(page, "[a](safety-rules.md)"))
    assert list(missing_files(page, "`vkubelet/missing.py`")) and not list(missing_files(page, "`vkubelet/clock.py`"))
    assert list(missing_tests("`unit/test_docs.py::test_missing` and `unit/missing.py::test_x`")) != []
    assert not list(missing_tests("`unit/test_docs.py::test_tests_that_a_page_names_exist`"))
    assert list(missing_names("`vkubelet.clock.Missing` and `vkubelet.missing`")) == ["vkubelet.clock.Missing", "vkubelet.missing"]
    assert not list(missing_names("`vkubelet.clock.SystemClock.now`"))


# --- architecture ---


def drawn_layers(picture: str) -> dict[str, list[str]]:
    """The rows of each package of the picture, as `a │ b` or `a : b`."""
    layers: dict[str, list[str]] = {}
    for line in picture.splitlines():
        name = re.split(r" {2,}", line.strip())[0]
        if re.match(r"\w", line):
            layers[name] = []
        elif re.match(r"  \w", line):
            layers[list(layers)[-1]].append(name)
    return layers


def checked_layers() -> dict[str, list[str]]:
    """The rows of the contracts in pyproject.toml, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = {each["containers"][0]: each["layers"] for each in contracts if each["type"] == "layers" and "containers" in each}
    return {name: [re.sub(r"[()]", "", row).replace("|", "│") for row in rows] for name, rows in found.items()}


def test_picture_of_the_packages_is_that_of_the_contracts() -> None:
    text = (EXPLANATION / "architecture.md").read_text()
    drawn = drawn_layers(next(block for _, block in FENCE.findall(text)))
    for package, rows in checked_layers().items():
        assert drawn[package] == rows, f"docs/explanation/architecture.md: correct the rows of {package}"
    providers = {path.stem for path in (ROOT / "providers").iterdir() if path.stem not in ("__init__", "__pycache__", "py")}
    assert set(drawn["vkubelet_providers"][0].split(" │ ")) == providers


# --- rules that keep pods alive ---


def rules(text: str) -> list[str]:
    return re.findall(r"^## `([a-z-]+)`$", text, re.MULTILINE)


def test_every_rule_has_code_and_tests_and_a_row_in_the_table() -> None:
    text = (EXPLANATION / "safety-rules.md").read_text()
    names = rules(text)
    assert names == re.findall(r"^\| \[`([a-z-]+)`\]\(#\1\) \|", text, re.MULTILINE) and len(names) == len(set(names)) == 17
    for section in text.split("\n## ")[1:]:
        assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["Demands", "Why", "Code", "Tests"], section


# --- data walks ---


def walks(text: str) -> dict[str, list[str]]:
    """The numbered functions of each section, in order."""
    return {
        section.partition("\n")[0]: re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)
        for section in prose(text).split("\n## ")[1:]
        if re.search(r"^1\. ", section, re.MULTILINE)
    }


def test_each_step_of_the_data_walks_is_a_function_and_the_steps_are_numbered() -> None:
    text = (EXPLANATION / "data-walks.md").read_text()
    found = walks(text)
    assert len(found) == 4
    assert re.findall(r"^(\d+)\. ", prose(text), re.MULTILINE) == [str(n) for steps in found.values() for n in range(1, len(steps) + 1)]
    for steps in found.values():
        assert not list(missing_names(" ".join(f"`{step}`" for step in steps)))
        assert all(callable(resolved(step)) for step in steps)


def pure_steps(text: str) -> list[str]:
    """The functions that a walk calls pure."""
    return re.findall(r"^\d+\. `([\w.]+)`.*\*\(pure\)\*\.?$", prose(text), re.MULTILINE)


def test_pure_steps_of_the_data_walks_are_no_coroutines() -> None:
    steps = pure_steps((EXPLANATION / "data-walks.md").read_text())
    assert steps and not [
        step for step in steps if inspect.iscoroutinefunction(resolved(step)) or inspect.isasyncgenfunction(resolved(step))
    ]
