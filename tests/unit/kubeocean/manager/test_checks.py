"""What is concluded of a worker cluster."""

from __future__ import annotations

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, VALIDATION_FAILED, Failure
from kubeocean.manager.checks import Findings
from vkubelet.api.rbac import Check


def check(verb: str, *, essential: bool) -> Check:
    return Check(group="", resource="pods", subresource="", verb=verb, namespace="mnt", essential=essential)


def test_only_a_wrong_binding_is_rejected() -> None:
    assert Findings(problem=Failure(VALIDATION_FAILED, "x")).rejected
    assert not Findings(problem=Failure(CONNECTIVITY_FAILED, "x")).rejected and not Findings().rejected


def test_only_essential_rights_hold_it_up() -> None:
    small, great = check("watch", essential=False), check("create", essential=True)
    assert Findings(missing=(small,)).lacking is None and Findings().lacking is None
    lacking = Findings(missing=(small, great)).lacking
    assert lacking is not None and "create pods" in lacking.message and "watch" not in lacking.message
