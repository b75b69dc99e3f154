"""The plug-in that every pytest of an environment loads."""

from __future__ import annotations

import subprocess
import sys

LOAD = """
import sys
import pytest
before = set(sys.modules)
import vkubelet.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_loading_it_imports_nothing_but_itself_and_the_standard_library() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    ours = [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert ours == ["vkubelet", "vkubelet.testing", "vkubelet.testing.plugin"]


def test_public_names_are_there_when_they_are_asked_for() -> None:
    asked = "import vkubelet, sys; assert 'vkubelet.provider' not in sys.modules; print(vkubelet.Host.__module__, hasattr(vkubelet, 'Nix'))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["vkubelet.provider", "False"]
