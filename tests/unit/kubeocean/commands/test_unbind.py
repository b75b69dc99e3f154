"""What somebody is told who waits for the end of a binding."""

from __future__ import annotations

import pytest

from kubeocean.commands.unbind import _counted, _remedy
from tests.unit.kubeocean.builders import unknown


@pytest.mark.parametrize(
    ("finalizers", "words"),
    [
        (["kubeocean.io/clusterbinding-manager", "kubeocean.io/clusterbinding-syncer"], ("process of the binding", "--force-after 0")),
        (["kubeocean.io/clusterbinding-manager"], ("`kubeocean manager` runs",)),
        (["example.org/other"], ("not Kubeocean",)),
    ],
)
def test_the_remedy_is_about_the_finalizer_that_is_waited_for(finalizers: list[str], words: tuple[str, ...]) -> None:
    told = _remedy(unknown({"metadata": {"name": "demo", "finalizers": finalizers}}))
    assert all(word in told for word in words)


def test_numbers_are_said_as_people_say_them() -> None:
    assert [_counted(number, "virtual node") for number in (0, 1, 2)] == ["no virtual nodes", "1 virtual node", "2 virtual nodes"]
