"""Tests of vkubelet.commands.definitions; `kubeocean bind` drives the rest in tests/integration/commands."""

import pytest

from vkubelet.api.names import LAST_APPLIED
from vkubelet.api.objects import ObjectMeta
from vkubelet.commands.definitions import MANAGED_BY, Installer, is_outdated

INSTALLER = Installer(name="ours", content="example.com/content", version="example.com/version")
DESIRED = {"metadata": {"annotations": {INSTALLER.content: "new", INSTALLER.version: "1.10.0"}}}


@pytest.mark.parametrize(
    ("manager", "content", "version", "outdated"),
    [
        ("ours", "old", "1.9.0", True),
        ("ours", "old", "1.10.0", True),
        ("ours", "old", "1.11.0", False),
        ("ours", "new", "1.9.0", False),
        ("Helm", "old", "1.9.0", False),
    ],
)
def test_a_definition_is_updated_where_an_earlier_version_created_it(manager: str, content: str, version: str, outdated: bool) -> None:
    notes = {INSTALLER.content: content, INSTALLER.version: version}
    assert is_outdated(ObjectMeta(labels={MANAGED_BY: manager}, annotations=notes), DESIRED, INSTALLER) is outdated


def test_a_definition_that_kubectl_applied_is_left_alone() -> None:
    notes = {INSTALLER.content: "old", INSTALLER.version: "1.0.0", LAST_APPLIED: "{}"}
    assert not is_outdated(ObjectMeta(annotations=notes), DESIRED, INSTALLER)
