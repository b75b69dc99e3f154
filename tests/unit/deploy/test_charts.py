"""What in the charts follows from the code is as the code says, and every value is documented and checked by its schema.

Invariant: no helm here; what it makes of the charts is looked at in tests/integration/deploy.
"""

from __future__ import annotations

import json
import runpy
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from vkubelet.api.codec import decode_yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
MADE: dict[Path, str] = runpy.run_path(str(DEPLOY / "dev" / "charts.py"))["files"]()
CHARTS = ("kubeocean", "kubeocean-worker", "fleet-hub", "fleet-agent")
FREE = {"global"}
"""Helm hands these to every chart; nobody has to write them."""


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_what_follows_from_the_code_is_as_the_code_says(path: Path) -> None:
    assert path.read_text() == MADE[path], "run: make manifests"


def documented(chart: str) -> Any:
    return decode_yaml((DEPLOY / "charts" / chart / "values.yaml").read_text())


def paths(values: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Paths that only one of the two knows, and which of them."""
    properties = schema.get("properties")
    if properties is None:
        return
    former = {name for name, each in properties.items() if each.get("deprecated")}
    for name in (values.keys() | properties.keys()) - former - (FREE if not path else set()):
        where = f"{path}.{name}".lstrip(".")
        if name not in values or name not in properties:
            yield where, "schema" if name in properties else "values"
        elif isinstance(values[name], dict):
            yield from paths(values[name], properties[name], where)


@pytest.mark.parametrize("chart", CHARTS)
def test_every_value_has_a_default_and_a_place_in_the_schema(chart: str) -> None:
    schema = json.loads((DEPLOY / "charts" / chart / "values.schema.json").read_text())
    found = {(path, side) for path, side in paths(documented(chart), schema) if not path.endswith("resources.claims")}
    assert not found


def closed(schema: Mapping[str, Any]) -> bool:
    """No object that names its keys lets others in."""
    named = "properties" not in schema or schema.get("additionalProperties") is False
    return named and all(closed(inner) for inner in schema.get("properties", {}).values())


@pytest.mark.parametrize("chart", CHARTS)
def test_a_value_that_is_not_known_is_refused(chart: str) -> None:
    assert closed(json.loads((DEPLOY / "charts" / chart / "values.schema.json").read_text()))


def undocumented(text: str) -> list[str]:
    """Sections of a values file that have neither a comment above them nor one inside."""
    lines, found = text.splitlines(), []
    for at, line in enumerate(lines):
        if line and not line.startswith((" ", "#")):
            end = next((i for i in range(at + 1, len(lines)) if lines[i] and not lines[i].startswith((" ", "#"))), len(lines))
            above = at > 0 and lines[at - 1].startswith("#")
            if not above and not any(inner.startswith(" ") and inner.strip().startswith("#") for inner in lines[at:end]):
                found.append(line)
    return found


@pytest.mark.parametrize("chart", CHARTS)
def test_every_section_of_the_values_says_what_it_is_for(chart: str) -> None:
    assert not undocumented((DEPLOY / "charts" / chart / "values.yaml").read_text())
    assert undocumented("a: 1\n# said\nb: 2\n") == ["a: 1"]


def test_the_image_runs_as_a_number_and_its_base_is_a_name() -> None:
    lines = (DEPLOY.parent / "Dockerfile").read_text().splitlines()
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":"))
    (base,) = [line.partition("=")[2] for line in lines if line.startswith("ARG BASE=")]
    assert "/" not in base
    assert all(line.split()[1] == "${BASE}" for line in lines if line.startswith("FROM "))


def test_addresses_of_the_project_are_all_set_or_none_is() -> None:
    """The repository has no public address yet; an invented one would lead people to a stranger. CONTRIBUTING.md lists what to set."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    charts = [decode_yaml((DEPLOY / "charts" / chart / "Chart.yaml").read_text()) for chart in CHARTS]
    krew = runpy.run_path(str(DEPLOY / "dev" / "release.py"))["krew_manifest"]("0", "https://files.example/plugin.tar.gz", "")
    places = [
        project.get("urls"),
        *(chart.get(key) for chart in charts for key in ("home", "sources")),
        decode_yaml(krew)["spec"].get("homepage"),
    ]
    assert all(places) or not any(places)
