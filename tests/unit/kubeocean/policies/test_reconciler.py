"""Which hub keeps a policy, and which one writes its status."""

from __future__ import annotations

from kubeocean.model.keys import FINALIZER_POLICY, Owner, policy_finalizer
from kubeocean.policies.reconciler import claimed, other_writer, released

HERE, THERE = Owner("hub-1", "demo"), Owner("hub-2", "demo")
OURS, THEIRS = policy_finalizer(HERE), policy_finalizer(THERE)


def test_each_hub_has_a_claim_of_its_own() -> None:
    both = claimed(claimed(["example.com/other"], HERE), THERE)
    assert both == ["example.com/other", OURS, THEIRS]
    assert claimed(both, HERE) == both
    assert released(both, HERE, meant=True) == ["example.com/other", THEIRS]


def test_the_hub_that_claimed_first_writes_the_status_until_its_claim_is_gone() -> None:
    both = claimed(claimed([], HERE), THERE)
    assert (other_writer(both, HERE), other_writer(both, THERE)) == ("", HERE.mark)
    assert other_writer(released(both, HERE, meant=True), THERE) == ""
    assert other_writer([FINALIZER_POLICY, THEIRS], THERE) == ""


def test_a_claim_on_a_policy_that_names_another_binding_by_now_is_removed() -> None:
    assert released([OURS], HERE, meant=False) == []
    assert released([FINALIZER_POLICY, OURS], HERE, meant=False) == []


def test_a_finalizer_without_owner_is_removed_by_whom_the_policy_is_meant_for() -> None:
    assert released([FINALIZER_POLICY], HERE, meant=True) == []
    assert released([FINALIZER_POLICY], HERE, meant=False) == [FINALIZER_POLICY]
    assert released([FINALIZER_POLICY, OURS, THEIRS], HERE, meant=True) == [FINALIZER_POLICY, THEIRS]


def test_a_claim_is_a_finalizer_that_the_api_server_accepts() -> None:
    longest = policy_finalizer(Owner("6f1c2c39-0a75-4f0e-9f5c-6d0f5a3f6f10", "c" * 24))
    assert len(longest.partition("/")[2]) <= 63
