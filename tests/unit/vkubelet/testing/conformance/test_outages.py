"""Rules of restarts: when a container was started again."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import Json
from vkubelet.testing.conformance.outages import _all_new
from vkubelet.testing.conformance.pods import Incarnation, expect_same, incarnations
from vkubelet.testing.conformance.rules import Broken


def shown(id: str, started: str = "2026-01-01T00:00:00Z", restarts: int = 0) -> Json:
    status = {"name": "main", "containerID": id, "state": {"running": {"startedAt": started}}, "restartCount": restarts}
    return {"status": {"containerStatuses": [status]}}


def test_incarnation_is_id_start_and_restarts() -> None:
    assert incarnations(shown("a://1", restarts=2)) == {"main": Incarnation("a://1", "2026-01-01T00:00:00Z", 2)}
    assert incarnations({"status": {}}) == {}


def test_only_another_id_is_another_container() -> None:
    before = incarnations(shown("a://1"))
    assert _all_new(before, shown("a://2"))
    assert not _all_new(before, shown("a://1", started="2026-01-01T00:00:09Z"))
    assert not _all_new(before, {"status": {}})


def test_id_that_comes_late_is_no_new_container() -> None:
    expect_same(shown("a://1", started="2026-01-01T00:00:01Z"), incarnations(shown("")))
    for before, after in ((shown("a://1"), shown("a://2")), (shown(""), shown("a://1", restarts=1)), (shown("a://1"), shown(""))):
        with pytest.raises(Broken, match="started again"):
            expect_same(after, incarnations(before))
    with pytest.raises(Broken, match="started again"):
        expect_same(shown("", started="2026-01-01T00:00:01Z"), incarnations(shown("")))
