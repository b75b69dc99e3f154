"""How kubectl's answers are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkubelet.api.objects import Json
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.conformance.judge import Kubectl, PodWatch, described, running
from vkubelet.testing.conformance.rules import Broken


def event(kind: str, uid: str, phase: str = "Running", ready: str = "True") -> Json:
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
    }
    return {"type": kind, "object": {"metadata": {"name": "web", "uid": uid}, "status": status}}


def watch() -> PodWatch:
    return PodWatch(kubectl(), ManualClock())


def kubectl(**more: str) -> Kubectl:
    return Kubectl(program=Path("kubectl"), kubeconfig=Path("config"), cache=Path("cache"), **more)


def test_commands_name_cluster_context_and_namespace() -> None:
    assert kubectl().command("get", "pods") == ["kubectl", "--kubeconfig=config", "--cache-dir=cache", "get", "pods"]
    assert kubectl(context="c", namespace="n").command("get")[3:] == ["--context=c", "--namespace=n", "get"]


def test_pod_runs_when_it_is_running_and_ready() -> None:
    assert running(event("ADDED", "1")["object"])
    assert not running(event("ADDED", "1", ready="False")["object"])
    assert not running(event("ADDED", "1", phase="Pending")["object"])


async def test_the_end_of_one_pod_is_not_that_of_its_successor() -> None:
    pods = watch()
    for one in (event("ADDED", "1"), event("ADDED", "2"), event("DELETED", "1")):
        pods._note(one)
    assert pods.pods["web"]["metadata"]["uid"] == "2" and set(pods.known) == {"1", "2"}
    await pods.gone("web", "1", seconds=0.1)
    with pytest.raises(Broken, match="not within 0.1 s: pod web is removed"):
        await pods.gone("web", "2", seconds=0.1)


async def test_vain_wait_says_how_the_pod_is_instead() -> None:
    pods = watch()
    with pytest.raises(Broken, match="pod web is ready; it is not there"):
        await pods.until("web", running, "is ready", seconds=0.01)
    pods._note(event("ADDED", "1", ready="False"))
    with pytest.raises(Broken, match="it is Running, main waiting CrashLoopBackOff"):
        await pods.until("web", running, "is ready", seconds=0.01)
    pods._note(event("MODIFIED", "1"))
    assert (await pods.until("web", running, "is ready", seconds=0.01))["metadata"]["uid"] == "1"


def test_pod_without_a_status_can_be_described() -> None:
    assert described({"metadata": {"deletionTimestamp": "now"}}) == "without a phase, terminating"
