"""Every test module is in exactly one part of `make test`, or in the list of those that no part runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = runpy.run_path(str(ROOT / "deploy" / "dev" / "tests.py"))
PARTS = {"one": ("tests/a", "--ignore=tests/a/test_long.py", "--timeout=9"), "two": ("tests/a/test_long.py", "tests/b/test_b.py")}
MODULES = ("tests/a/test_a.py", "tests/a/test_long.py", "tests/b/test_b.py", "tests/cut/test_cut.py")


def test_every_test_module_is_in_one_part_or_in_the_list_of_those_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    modules = TESTS["collected"]()
    assert len(modules) > 500 and not TESTS["misplaced"](modules, TESTS["PARTS"], TESTS["NEVER"])


def test_each_claim_about_security_is_tested_by_a_part() -> None:
    page = (ROOT / "docs" / "explanation" / "security-claims.md").read_text()
    named = {f"tests/{path}" for path in re.findall(r"`([\w/]+\.py)::test_", page)}
    assert len(named) > 40 and not [path for path in named if not any(TESTS["_runs"](part, path) for part in TESTS["PARTS"].values())]


def test_what_no_part_runs_has_a_reason_and_a_command() -> None:
    assert TESTS["NEVER"] and all(": python -m tests." in reason for reason in TESTS["NEVER"].values())
    readme = (ROOT / "tests" / "README.md").read_text()
    assert not [path for path in TESTS["NEVER"] if f"`{path.removeprefix('tests/')}`" not in readme]


def test_what_no_part_runs_can_still_be_collected() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *TESTS["NEVER"]]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:]


@pytest.mark.parametrize(
    ("modules", "parts", "never", "line"),
    [
        (MODULES, PARTS, [], "tests/cut/test_cut.py: is in no part"),
        (MODULES, {**PARTS, "three": ["tests/b"]}, ["tests/cut"], "tests/b/test_b.py: is in two and three"),
        (MODULES, PARTS, ["tests/cut", "tests/b"], "tests/b/test_b.py: is in two and in NEVER"),
        (MODULES, PARTS, ["tests/cut", "tests/soak"], "tests/soak: contains no test module"),
        (MODULES, {**PARTS, "three": ["tests/b/test_c.py"]}, ["tests/cut"], "tests/b/test_c.py: contains no test module"),
        (MODULES, {**PARTS, "three": ["tests/cut", "--ignore=tests/cut/test_d.py"]}, [], "tests/cut/test_d.py: contains no test module"),
        (MODULES, PARTS, ["tests/cut"], ""),
    ],
)
def test_a_module_in_no_part_or_in_two_is_named(modules: list[str], parts: dict[str, list[str]], never: list[str], line: str) -> None:
    assert TESTS["misplaced"](modules, parts, never) == [line] * bool(line)
