"""Tests of kubeocean.pods.virtual; the reconciler is driven against real clusters in tests/integration/kubeocean."""

from __future__ import annotations

from kubeocean.pods.resize import Pending
from kubeocean.pods.update import ResizePending
from kubeocean.pods.virtual import REFUSED, reported
from vkubelet.errors import Forbidden, PodRejected, Unavailable, Unreachable, VKubeletError


def told(error: VKubeletError) -> tuple[str, str, float | None]:
    """By which event, and as what containers wait for, the runtime reports the failure, and when it tries again."""
    found = reported(error)
    assert isinstance(found, Unavailable) and str(found) == str(error)
    return found.event, found.waiting, found.retry_after


def test_failure_without_a_reason_of_its_own_is_one_event() -> None:
    assert told(Unavailable("node a is not declared", retry_after=2.0)) == ("FailedCreatePod", "ProviderFailed", 2.0)
    assert told(Forbidden("create configmaps mnt/a", "quota")) == ("FailedCreatePod", "ProviderFailed", None)


def test_failure_with_a_reason_keeps_it() -> None:
    refused = Unavailable("no", event="FailedCreatePod", waiting=REFUSED)
    missing = Unavailable("no", retry_after=5.0, event="MandatorySecretNotFound", waiting="CreateContainerConfigError")
    resize = ResizePending(Pending("Deferred", "no room"), 5.0)
    assert [reported(each) for each in (refused, missing, resize)] == [refused, missing, resize]


def test_rejection_and_silence_are_not_failures_to_create() -> None:
    rejected, silent = PodRejected("UnsupportedReference", "x"), Unreachable("get pods", "no route")
    assert [reported(rejected), reported(silent)] == [rejected, silent]
