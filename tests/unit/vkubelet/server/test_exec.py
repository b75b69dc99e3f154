"""Which containers commands can run in, and what is kept of their output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vkubelet.api.objects import Pod
from vkubelet.provider import ContainerIO
from vkubelet.server.exec import LONGEST_RUN, Printed, runs


def pod_with(kind: str, spec: Any = None, **state: Any) -> Pod:
    status = {kind: [{"name": "app", "state": state}]}
    return Pod.decode(
        json.dumps({"metadata": {"name": "web", "namespace": "n", "uid": "u"}, "spec": spec or {}, "status": status}).encode()
    )


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"])
def test_a_container_of_any_kind_that_runs(kind: str) -> None:
    assert runs(pod_with(kind, running={}), "app")
    assert not runs(pod_with(kind, terminated={"exitCode": 0}), "app")
    assert not runs(pod_with(kind, waiting={"reason": "ContainerCreating"}), "app")
    assert not runs(pod_with(kind), "app")
    hooked = {"containers": [{"name": "app", "lifecycle": {"postStart": {"exec": {"command": ["slow"]}}}}]}
    assert runs(pod_with(kind, hooked, waiting={"reason": "ContainerCreating"}), "app")
    assert not runs(pod_with(kind, hooked, terminated={"exitCode": 0}), "app")
    assert not runs(pod_with(kind, running={}), "other")


async def test_output_is_kept_up_to_a_limit() -> None:
    printed = Printed()
    io: ContainerIO = printed
    assert io.stdin is None
    assert [size async for size in io.resizes] == []
    for _ in range(3):
        await io.write_stdout(bytes(LONGEST_RUN // 2))
    await io.write_stderr(b"err")
    assert (len(printed.stdout), bytes(printed.stderr)) == (LONGEST_RUN, b"err")
