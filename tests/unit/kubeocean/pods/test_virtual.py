"""Tests of kubeocean.pods.virtual; the reconciler is driven against real clusters in tests/integration/kubeocean."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType

import kubeocean
import vkubelet
from kubeocean.copies.dependents import Dependents
from kubeocean.pods.admission import LeaseAdmission
from kubeocean.pods.changes import Pending
from kubeocean.pods.physical import PhysicalPodReconciler
from kubeocean.pods.placement import Placement
from kubeocean.pods.translate import physical_pod
from kubeocean.pods.update import ResizePending
from kubeocean.pods.virtual import REFUSED, VirtualPodReconciler, reported
from tests.unit.kubeocean.builders import TARGET, binding, physical, pod, worker_scope
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.errors import Forbidden, PodRejected, Unavailable, Unreachable, VKubeletError
from vkubelet.testing.host import RecordingHost


def outcome(error: VKubeletError) -> tuple[str, str, float | None]:
    """By which event, and as what containers wait for, the runtime reports the failure, and when it tries again."""
    found = reported(error)
    assert isinstance(found, Unavailable) and str(found) == str(error)
    return found.event, found.waiting, found.retry_after


def test_failure_without_a_reason_of_its_own_is_one_event() -> None:
    assert outcome(Unavailable("node a is not declared", retry_after=2.0)) == ("FailedCreatePod", "ProviderFailed", 2.0)
    assert outcome(Forbidden("create configmaps mnt/a", "quota")) == ("FailedCreatePod", "ProviderFailed", None)


def test_failure_with_a_reason_keeps_it() -> None:
    refused = Unavailable("no", event="FailedCreatePod", waiting=REFUSED)
    missing = Unavailable("no", retry_after=5.0, event="MandatorySecretNotFound", waiting="CreateContainerConfigError")
    resize = ResizePending(Pending("Deferred", "no room"), 5.0)
    assert [reported(each) for each in (refused, missing, resize)] == [refused, missing, resize]


def test_rejection_and_silence_are_not_failures_to_create() -> None:
    rejected, silent = PodRejected("UnsupportedReference", "x"), Unreachable("get pods", "no route")
    assert [reported(rejected), reported(silent)] == [rejected, silent]


MODULES, RETURNS = 6, 2
PLUMBING = ("vkubelet.api.", "vkubelet.control.", "vkubelet.testing.")
"""Decoding of objects, caches and queues; and the host of a test, which is the runtime otherwise."""


@contextmanager
def modules_entered() -> Iterator[list[str]]:
    """Collects the module of each function of the product that is called."""
    packages = {str(Path(package.__file__).parent): package.__name__ for package in (kubeocean, vkubelet) if package.__file__}
    entered: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            for root, package in packages.items():
                if path.is_relative_to(root):
                    entered.append(".".join((package, *path.relative_to(root).with_suffix("").parts)))

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def walk(entered: Sequence[str]) -> list[str]:
    """The modules in the order in which they are entered, without the plumbing."""
    return [module for module, _ in groupby(each for each in entered if not each.startswith(PLUMBING))]


def reconciler() -> VirtualPodReconciler:
    scope = worker_scope(RecordingHost(client=Client(Connection("https://192.0.2.1"))))
    scope.binding.current = binding()
    scope.worker.pods.ever_synced = True
    dependents = Dependents(scope)
    return VirtualPodReconciler(
        scope=scope,
        dependents=dependents,
        placement=Placement(scope=scope),
        admission=LeaseAdmission(scope=scope, policy=lambda name: None),
        physical=PhysicalPodReconciler(scope=scope, released=dependents.release),
    )


async def test_sync_of_an_unchanged_pod_enters_six_modules_and_each_at_most_three_times() -> None:
    pods, web = reconciler(), pod({"volumes": [{"name": "c", "configMap": {"name": "settings"}}]}, labels={"app": "web"})
    pods.scope.worker.pods.adopt(physical(physical_pod(web, TARGET), resourceVersion="5"))
    await pods.sync(web)
    with modules_entered() as entered:
        await pods.sync(web)
    steps = walk(entered)
    assert steps and steps[0] == "kubeocean.pods.virtual", "nothing was traced"
    listed = "\n".join(steps)
    assert len(set(steps)) <= MODULES, f"{len(set(steps))} modules:\n{listed}"
    often = {module: steps.count(module) - 1 for module in steps if steps.count(module) - 1 > RETURNS}
    assert not often, f"returns {often}:\n{listed}"
