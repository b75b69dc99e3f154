"""The tree shows the architecture: its folders, the names that are public, the budgets of `fleet`, and what no file speaks of."""

from __future__ import annotations

import codecs
import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.test_architecture import ROOT, SHIPPED

PUBLIC_NAMES = 30

TREE = {
    "": "CHANGELOG.md CONTRIBUTING.md LICENSE Makefile Dockerfile README.md SECURITY.md mkdocs.yml pyproject.toml "
    "deploy docs fleet kubeocean providers tests vkubelet",
    "vkubelet": "__init__.py __main__.py beneath.py cli.py streams.py stats.py runtime.py sharding.py process.py settings.py errors.py "
    "clock.py collector.py logformat.py metrics.py health.py https.py py.typed "
    "api client commands containers control node pods provider resolve scaffold server testing",
    "providers": "__init__.py minimal.py mock process py.typed",
    "kubeocean": "__init__.py __main__.py cli.py metrics.py provider.py scope.py settings.py py.typed manifests "
    "binding commands copies dashboard doctor explain leasing ledger manager mirrors model networkpolicies nodes pods policies "
    "rbac service services worker",
    "fleet": "__init__.py __main__.py cli.py hub_settings.py py.typed manifests agent api clusters commands core kubefleet ocm processes",
    "tests": "README.md conftest.py support unit integration e2e faults conformance benchmarks mutants",
    "docs": "index.md start lease fleet use operate build explanation reference decisions changes assets images",
}
BUDGETS = {
    ("api",): 1200,
    ("core", "expressions"): 3000,
    ("clusters", "ocm"): 2500,
    ("kubefleet",): 1500,
    ("agent",): 2200,
    ("gateway",): 900,
    ("webhook",): 250,
    ("operator", "commands", "cli", "__main__", "hub_settings", "processes"): 2400,
}
"""Lines of parts of `fleet`; more of them takes a record in docs/decisions."""
MADE_BY_TOOLS = {"build", "dist", "__pycache__"}

PUBLIC = """
    BadRequest ContainerIO ContainerReport Host Key LogOptions NoSuchContainer NoSuchPod Node NodeDescription Pod PodRef PodRejected
    PodReport PodStore Provider ProviderError Running SettingsError Taint Terminated Unavailable VKubeletError Waiting all_running
"""

# Rotated by 13 letters, so that this file passes its own check: how something was written, and by what, is no subject of the project.
FORBIDDEN = re.compile(
    codecs.decode(
        r"pynhqr|naguebcvp|bcranv|pungtcg|pbcvybg|\oyyzf?\o|ynathntr zbqry|nv-trarengrq|pb-nhguberq-ol|\ourycre [n-u]\o|/jbex/|/bcg/jurryf|"
        r"clcv\.bet|clgubaubfgrq|cebkl\.tbynat\.bet|ertvfgel\.aczwf",
        "rot13",
    ),
    re.IGNORECASE,
)


def forbidden_words(path: str, text: str) -> Iterator[str]:
    if not FORBIDDEN.search(text):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if FORBIDDEN.search(line):
            yield f"{path}:{number}: {line.strip()[:80]}"


def over_budget(lines: Mapping[str, int]) -> Iterator[str]:
    """Parts of `fleet`, from the lines of its packages and modules."""
    yield from (f"fleet/{name}: is in no budget" for name in lines if not any(name in parts for parts in BUDGETS))
    for parts, limit in BUDGETS.items():
        found = sum(lines.get(part, 0) for part in parts)
        if found > limit:
            yield f"fleet/{' + '.join(parts)}: {found} lines, at most {limit}"


def text_files() -> Iterator[Path]:
    skipped = {"go.sum", "go.mod", "LICENSE"}
    for name in TREE[""].split():
        top = ROOT / name
        for path in (top,) if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and path.name not in skipped and path.suffix != ".png" and "__pycache__" not in path.parts:
                yield path


def test_f_10_fleet_keeps_its_budgets() -> None:
    lines: dict[str, int] = {}
    for path in (ROOT / "fleet").rglob("*.py"):
        name = path.relative_to(ROOT / "fleet").with_suffix("").parts[0]
        if name not in ("__init__", "__main__"):
            lines[name] = lines.get(name, 0) + len(path.read_text().splitlines())
    assert not list(over_budget(lines))


def test_a_part_over_its_budget_and_one_without_are_reported() -> None:
    assert list(over_budget({"clusters": 1000, "ocm": 1501})) == ["fleet/clusters + ocm: 2501 lines, at most 2500"]
    assert list(over_budget({"extra": 1})) == ["fleet/extra: is in no budget"] and not list(over_budget({"api": 1200, "cli": 1200}))


def test_no_file_speaks_of_what_is_no_subject_of_the_project() -> None:
    found = [text for path in text_files() for text in forbidden_words(str(path.relative_to(ROOT)), path.read_text(errors="replace"))]
    assert not found


def test_no_module_name_is_used_more_than_three_times() -> None:
    """A reader who searches for a file by its name gets few."""
    names = Counter(path.name for path in SHIPPED)
    assert not [name for name, count in names.items() if count > 3 and name not in ("__init__.py", "__main__.py")]


@pytest.mark.parametrize("folder", TREE)
def test_tree_is_the_one_of_the_architecture(folder: str) -> None:
    known = set(TREE[folder].split()) | MADE_BY_TOOLS
    assert {path.name for path in (ROOT / folder).iterdir() if not path.name.startswith(".")} <= known


def test_public_names_are_these_and_few() -> None:
    vkubelet = importlib.import_module("vkubelet")
    assert sorted(vkubelet.__all__) == sorted(PUBLIC.split())
    assert len(vkubelet.__all__) <= PUBLIC_NAMES
    assert all(hasattr(vkubelet, name) for name in vkubelet.__all__)


def test_a_forbidden_word_is_reported_with_its_line() -> None:
    text = "x\n" + codecs.decode("jevggra ol PungTCG", "rot13")
    assert [each.partition(": ")[0] for each in forbidden_words("some.py", text)] == ["some.py:2"]
