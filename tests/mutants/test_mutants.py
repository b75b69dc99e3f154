"""Applies each patch beside this file to a copy of the tree and expects that the test it names fails there.

Invariant: a mutant counts as caught only by a failed assertion of the named test; a patch that does not apply, a test that does not exist
and a module that cannot be imported are failures of the mutant.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.faults.planted import copy_to
from tests.support.warm import run_in_tree

ROOT = Path(__file__).parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
COPIED = (".editable", "deploy", "docs", "fleet", "kubeocean", "providers", "pyproject.toml", "tests", "vkubelet", "README.md")
LEAST = 16
SPARED = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""Plugins without which tests run as well; importing Hypothesis takes longer than most of these tests."""
SECONDS = 60
"""A mutant may make the named test hang; one that does is caught by the limit of that test or not at all."""


def header(patch: Path, field: str) -> str:
    """The value of `field` among the lines above the diff.

    Raises:
        AssertionError: the patch has no such line.
    """
    found = re.search(rf"^{field}: (\S.*)$", patch.read_text().partition("\ndiff --git ")[0], re.MULTILINE)
    assert found, f"{patch.name}: add a line `{field}: …` above the diff"
    return found[1].strip()


def mutant(patch: Path, tree: Path) -> Path:
    """A copy of the tree with the patch applied."""
    copy_to(tree, COPIED)
    # Without a repository of its own, git would look for one above and skip what the patch names.
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    applied = subprocess.run(["git", "apply", str(patch)], cwd=tree, capture_output=True, text=True)
    assert applied.returncode == 0, f"{patch.name} does not apply; write it again for the code as it is: {applied.stderr}"
    return tree


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_mutant_is_caught_by_the_test_it_names(patch: Path, tmp_path: Path) -> None:
    name = header(patch, "Caught-by")
    tree = mutant(patch, tmp_path / "tree")
    flags = ("-q", "-x", *SPARED, f"--timeout={SECONDS}")
    code, output = run_in_tree("pytest", *flags, name, tree=tree, seconds=2 * SECONDS)
    assert code == 1, f"{name} ended with {code}, expected a failure:\n{output[-4000:]}"
    assert f"FAILED {name}" in output, f"{name} did not fail by itself:\n{output[-4000:]}"


def test_every_class_of_defect_has_a_mutant() -> None:
    classes = {header(patch, "Class") for patch in PATCHES}
    assert len(PATCHES) >= LEAST, f"{len(PATCHES)} mutants of {len(classes)} classes: {sorted(classes)}"
