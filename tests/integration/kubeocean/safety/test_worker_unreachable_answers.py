"""Rule `worker-unreachable`: a worker that answers anything is reachable, and a process that was stopped does not lose it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, all_nodes, is_held, is_released, now, renewed_after, running_pods
from tests.support.bound import condition, get
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.troubles import Trouble
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane

STOPPED = 9.0
"""Seconds: longer than `unreachable_after`, and than what counts as standing still."""


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as made:
        yield made


async def _problem(scene: Scene) -> str:
    """Message of the binding's condition Connected while it is False."""
    binding = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
    if condition(binding, "Connected") != "False":
        return ""
    return next(str(each["message"]) for each in binding["status"]["conditions"] if each["type"] == "Connected")


def _count(scene: Scene, message: str) -> int:
    return sum(str(line.get("message", "")).startswith(message) for line in scene.program.messages())


async def test_answers_of_any_kind_hold_the_nodes_and_a_stopped_process_does_not(
    gate: Gate, scene: MakeScene, worker: ControlPlane
) -> None:
    def way(plane: ControlPlane, user: str) -> Path:
        return gate.way(plane, user) if plane is worker else plane.client_config(user)

    spec = {"onUnreachable": {"mode": "FailOver", "afterSeconds": 40}}
    made = await scene(nodes=1, way=way, settings=SHORT, spec=spec)
    namespace, labels = await running_pods(made, 1), f"kubeocean.io/cluster-binding={made.bound.name}"
    with (
        watching(made.bound.hub.kubeconfig, namespace=namespace) as pods,
        watching(made.bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
    ):
        with gate.trouble(Trouble(status=500)):
            with gate.trouble(Trouble(status=401)):
                await eventually(lambda: _says(made, "put a valid kubeconfig into the Secret"), "the condition names the remedy")
                await all_nodes(made, is_held, what="held")
            await eventually(lambda: _says(made, "status 500"), "the condition names the answer")
            await all_nodes(made, is_held, what="held")
        await all_nodes(made, is_released, what="released")
        assert _count(made, "worker cluster is unreachable") == 1
        await _stop_for(made, STOPPED)
        await renewed_after(made, now())
        await eventually(lambda: _count(made, "process was suspended") == 1, "the process notes that it stood still")
        await all_nodes(made, is_released, what="as before")
    assert _count(made, "worker cluster is unreachable") == 1, "the standstill counts as silence"
    assert not pods.where(lambda event: event.deleting or event.kind == "DELETED")
    assert not nodes.where(lambda event: event.condition("Ready") != "True")


async def _says(scene: Scene, text: str) -> bool:
    return text in await _problem(scene)


async def _stop_for(scene: Scene, seconds: float) -> None:
    pid = scene.program.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
