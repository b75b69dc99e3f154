"""Every reason, mark and field that a reader may meet has a line in the reference.

Invariant: what must be documented is collected from the code, so that a new one without a line fails here.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from fleet.api import resources
from fleet.api.resources import DEFINED
from kubeocean.model import keys
from kubeocean.settings import KubeoceanSettings, ManagerSettings
from tests.unit.test_commands_of_pages import flags
from vkubelet.api.objects import Resource
from vkubelet.settings import Settings
from vkubelet_providers.mock import Mock
from vkubelet_providers.process import Process

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
ANNOUNCERS = {"event", "emit", "_emit", "_announce", "_announce_once", "announce", "Problem", "Failure", "PodFailure", "End"}
REJECTIONS = {"PodRejected", "NotAdmitted"}
REASON = re.compile(r"[A-Z][a-z]+[A-Za-z]*")
FOR_TESTS = ("vkubelet/testing/", "providers/mock/")
"""What the mock provider rejects is documented with it."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in ("kubeocean", "vkubelet", "providers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(FOR_TESTS):
                yield name, ast.parse(path.read_text())


def reasons(tree: ast.Module) -> Iterator[str]:
    """Reasons of events, conditions, waiting containers and failed pods, given as texts or by constants of the same module."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            for given in reasons_of(call):
                value = given.value if isinstance(given, ast.Constant) else constants.get(given.id) if isinstance(given, ast.Name) else None
                if isinstance(value, str) and REASON.fullmatch(value):
                    yield value


def reasons_of(call: ast.Call) -> list[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    if name in ANNOUNCERS:
        return call.args[:3]
    if name in REJECTIONS:
        return call.args[:1]
    if name == "_condition":
        return call.args[:1] + call.args[2:3]
    return [word.value for word in call.keywords if name == "Unavailable" and word.arg in ("event", "waiting")]


def test_every_reason_of_the_code_has_a_line() -> None:
    page = set(re.findall(r"`([^`\s=]+)", (REFERENCE / "conditions-events.md").read_text()))
    found = {reason: name for name, tree in sources() for reason in reasons(tree)}
    assert len(found) > 60
    assert not {reason: name for reason, name in found.items() if reason not in page}


def test_every_reason_has_one_anchor_on_the_site() -> None:
    site = runpy.run_path(str(ROOT / "deploy" / "dev" / "site.py"))
    shown = site["anchored"]((REFERENCE / "conditions-events.md").read_text())
    anchors = re.findall(r'<a id="(\w+)"></a>', shown)
    assert len(anchors) == len(set(anchors))
    assert not {reason for _, tree in sources() for reason in reasons(tree)} - set(anchors)
    assert re.search(r'^\| <a id="FailedCreatePod"></a>`FailedCreatePod`', shown, re.MULTILINE), "at its row, not where it is mentioned"


def test_reasons_are_found_as_texts_and_as_constants() -> None:
    text = 'A = "FirstReason"\nx.event(o, A, "a text")\nraise Unavailable("t", event="SecondReason")\nPodRejected("ThirdReason", "why")'
    assert list(reasons(ast.parse(text))) == ["FirstReason", "SecondReason", "ThirdReason"]


def test_every_mark_has_a_line() -> None:
    page = (REFERENCE / "labels.md").read_text() + (REFERENCE / "conditions-events.md").read_text()
    marks = [value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str) and "kubeocean.io/" in value]
    assert len(marks) > 60
    assert not [mark for mark in marks if mark != keys.DOMAIN and f"`{mark}" not in page]


@pytest.mark.parametrize("kind", ["clusterbinding", "resourceleasingpolicy"])
def test_every_field_of_a_definition_has_a_line(kind: str) -> None:
    source = {"clusterbinding": "clusterbindings", "resourceleasingpolicy": "resourceleasingpolicies"}[kind]
    schema = yaml.safe_load((ROOT / "kubeocean" / "manifests" / f"{source}.yaml").read_text())["spec"]["versions"][0]["schema"]
    named = set(re.findall(r"^\| `([\w.\[\]{}]+)`", (REFERENCE / f"{kind}.md").read_text(), re.MULTILINE))
    found = set(fields(schema["openAPIV3Schema"], ""))
    assert len(found) > 40 and found <= named, found - named


def fields(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of all fields below spec and status, those of the entries of lists and maps too."""
    for name, inner in schema.get("properties", {}).items():
        at = f"{path}.{name}".lstrip(".")
        if at not in ("apiVersion", "kind", "metadata", "spec", "status"):
            yield at
        if at == "spec.podPatch":
            continue  # any fields of a pod
        yield from fields(inner, at)
        yield from fields(inner.get("items", {}), f"{at}[]")
        more = inner.get("additionalProperties", {})
        yield from fields(more if isinstance(more, dict) else {}, f"{at}{{}}")


def test_every_flag_of_a_command_has_a_line_below_it() -> None:
    page = (REFERENCE / "cli.md").read_text() + (REFERENCE / "fleet.md").read_text()
    below = {title.strip(): text for title, _, text in (part.partition("\n") for part in re.split(r"^###? ", page, flags=re.MULTILINE)[1:])}
    missing = [
        f"{command} {flag}"
        for command, known in flags().items()
        for flag in sorted(known - {"-h", "--help"})
        if flag.startswith("-")
        if not any(re.search(rf"`[^`]*(?<![\w-]){re.escape(flag)}(?![\w-])", text) for title, text in below.items() if command in title)
    ]
    assert len(flags()) > 15 and not missing


def test_every_series_has_a_line() -> None:
    """Names of series, wherever the code has them; those of a node are composed of their level."""
    page = (REFERENCE / "metrics.md").read_text()
    series = re.compile(
        r"(?:vkubelet|kubeocean|kubelet|kubernetes|container|node|pod|prober|machine)_[a-z_]+_(?:total|seconds|bytes|pods|depth|cores)"
    )
    texts = {
        node.value: name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        if isinstance(node.value, str)
    }
    found = {text: name for text, name in texts.items() if series.fullmatch(text)}
    assert len(found) >= 40
    assert not {text: name for text, name in found.items() if f"`{text}" not in page}


def test_every_setting_has_a_line() -> None:
    page = (REFERENCE / "settings.md").read_text()
    below = dict(part.partition("\n")[::2] for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    chosen = {
        **{f"`{path}:`" if path else "Top level": kind for path, kind in classes(Settings)},
        "`provider:` of kubeocean": KubeoceanSettings,
        "`provider:` of mock": Mock.Settings,
        "`provider:` of process": Process.Settings,
        "`manager:` of kubeocean": ManagerSettings,
    }
    for title, kind in chosen.items():
        nested = {path for path, _ in classes(kind)}
        names = [each.name for each in attrs.fields(kind) if each.init and each.name not in nested]
        assert not [name for name in names if f"| `{name}` |" not in below[title]], title


def classes(kind: type, path: str = "") -> Iterator[tuple[str, type]]:
    """A class of settings and those in it, by their paths."""
    yield path, kind
    for each in attrs.fields(attrs.resolve_types(kind)):
        if isinstance(each.type, type) and attrs.has(each.type):
            yield from classes(each.type, f"{path}.{each.name}".lstrip("."))


CAMEL = re.compile(r"[A-Z][a-z]+(?:[A-Z]+[a-z]+)+")
NOT_REASONS = {
    *(
        "ClusterProperty",
        "ClusterRole",
        "ConfigMap",
        "JsonView",
        "KubeFleet",
        "MemberAgent",
        "RoleBinding",
        "SelfSubjectReview",
        "ServiceAccount",
        "TokenRequest",
    ),
    *("ExclusiveClusterSetLabel", "LabelSelector", "NoSchedule", "NoSelect", "NoSelectIfNew", "PreferNoSelect"),
    *("FallbackToLogsOnError", "RuntimeDefault"),
}
"""Kinds, names, and values of fields that have no line of their own."""


def test_every_condition_and_event_of_a_fleet_has_a_line() -> None:
    page = set(re.findall(r"`(\w+)`", (REFERENCE / "fleet-conditions.md").read_text()))
    kinds = {each.kind for each in DEFINED} | {each.kind for each in vars(resources).values() if isinstance(each, Resource)}
    found = {
        node.value: path.name
        for path in sorted((ROOT / "fleet").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CAMEL.fullmatch(node.value)
    }
    assert len(found) > 80
    assert not {name: path for name, path in found.items() if name not in page | kinds | NOT_REASONS}
