"""What `bind` says of what it did, and of what did not come."""

from __future__ import annotations

from kubeocean.commands.bind import _changed, _not_ready
from kubeocean.commands.plan import BindFlags, Plan
from kubeocean.commands.status import Readiness
from tests.unit.kubeocean.builders import unknown


def test_an_object_is_made_mended_or_there_already() -> None:
    old, new = (unknown({"metadata": {"name": "x", "resourceVersion": version}}) for version in ("1", "2"))
    assert [_changed(None, new), _changed(old, new), _changed(old, old)] == ["created", "repaired", "unchanged"]


def test_binding_that_is_not_ready_is_reported_with_its_cause_or_where_to_find_it() -> None:
    plan = Plan.of(BindFlags(name="demo"))
    seen = Readiness(ready=False, text="Ready=False, ValidationFailed: spec.x: y", lasting=True)
    assert _not_ready(plan, seen, 21.2) == "ClusterBinding demo is not Ready after 21 s: Ready=False, ValidationFailed: spec.x: y"
    assert "kubeocean run --binding demo" in _not_ready(plan, Readiness(ready=False, seen=False, text="nobody"), 3)
