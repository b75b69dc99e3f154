"""What holds for the whole package `fleet`: its layers, its deletions, its annotations."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import fleet
from fleet.api import keys
from fleet.ocm.acceptance import Step, decide
from tests.unit.fleet.builders import SINCE, condition, managed

ROOT = Path(fleet.__file__).parent
LAYERS = ["__main__", "cli", "processes", "hub_settings", "kubefleet | ocm | agent | commands", "clusters", "core", "api"]


def test_f_7_the_layers_of_the_package_are_checked() -> None:
    contracts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each for each in contracts if each.get("containers") == ["fleet"]]
    assert layers["layers"] == LAYERS and layers["exhaustive"]
    pure = [each for each in contracts if each.get("source_modules") == ["fleet.api", "fleet.core"]]
    assert {"asyncio", "vkubelet.client", "vkubelet.control"} < set(pure[0]["forbidden_modules"])
    strangers = [each for each in contracts if each["type"] == "independence" or "fleet | kubeocean" in str(each.get("layers"))]
    assert strangers, "fleet and kubeocean never import one another"


def deletions(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of `delete` of a client."""
    clients = ("client", "_client", "hub", "worker")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "delete":
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name in clients:
                yield node


def test_f_55_every_delete_names_the_uid() -> None:
    found = {path.name: list(deletions(ast.parse(path.read_text()))) for path in ROOT.rglob("*.py")}
    assert sum(map(len, found.values())) >= 4
    unnamed = [name for name, calls in found.items() for call in calls if "uid" not in {each.arg for each in call.keywords}]
    assert not unnamed


def test_f_58_annotations_and_status_of_another_record_give_no_consent() -> None:
    annotations = {keys.ACCEPTED_ON: SINCE, keys.ORIGIN: "MemberCluster"}
    accepted = condition("HubAcceptedManagedCluster", "True", "HubClusterAdminAccepted")
    copied = managed("w2", spec={}, status={"conditions": [accepted]}, annotations=annotations)
    assert decide(copied, None).step is Step.DENY
