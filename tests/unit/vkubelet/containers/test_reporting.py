"""Words of the kubelet in reports."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import PodRef
from vkubelet.api.shapes import Json
from vkubelet.containers.life import ContainerLife, PodLife, Resize
from vkubelet.containers.plan import ContainerPlan, Kind, PodPlan
from vkubelet.containers.reporting import duration, report_of, resize_conditions
from vkubelet.provider import Running


@pytest.mark.parametrize(("seconds", "text"), [(10, "10s"), (40, "40s"), (80, "1m20s"), (160, "2m40s"), (300, "5m0s")])
def test_durations_are_written_as_by_go(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("resize", "wanted"),
    [
        (Resize(), []),
        (Resize(running=True), [("PodResizeInProgress", "")]),
        (Resize(running=True, failed=True, message="busy"), [("PodResizeInProgress", "Error")]),
        (Resize(pending="Deferred", message="full"), [("PodResizePending", "Deferred")]),
        (Resize(pending="Deferred", running=True), [("PodResizePending", "Deferred"), ("PodResizeInProgress", "")]),
    ],
)
def test_conditions_of_a_resize(resize: Resize, wanted: list[tuple[str, str]]) -> None:
    found = resize_conditions(resize, 7)
    assert [(c["type"], c.get("reason", "")) for c in found] == wanted
    assert all((c["status"], c["observedGeneration"]) == ("True", 7) for c in found)


@pytest.mark.parametrize(
    ("kind", "created", "resources", "told"),
    [
        (Kind.APP, True, {}, ({}, None)),
        (Kind.SIDECAR, True, {"requests": {"cpu": "1"}}, ({"requests": {"cpu": "1"}}, {"cpu": "1"})),
        (Kind.APP, False, {"requests": {"cpu": "1"}}, (None, None)),
        (Kind.INIT, True, {}, ({}, None)),
        (Kind.EPHEMERAL, True, {"requests": {"cpu": "1"}}, (None, None)),
    ],
)
def test_amounts_are_told_of_what_has_begun(kind: Kind, created: bool, resources: Json, told: tuple[Json | None, Json | None]) -> None:
    life = PodLife(PodRef("space", "web", "123", "node"), PodPlan())
    plan = ContainerPlan(name="main", kind=kind, spec={"name": "main"})
    life.containers["main"] = ContainerLife(plan, state=Running(), created=created, resources=resources, actual=resources)
    (report,) = report_of(life, 0.0).containers
    assert (report.resources, report.allocated) == told
