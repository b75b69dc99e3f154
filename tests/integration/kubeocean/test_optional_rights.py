"""What works without the rights of the worker identity that are optional, on simulated nodes."""

from __future__ import annotations

import json
from typing import Any

from tests.support.bound import get
from tests.support.kubectl import Kubectl
from tests.support.program import eventually
from tests.support.stage import Stage

STREAMS = ["pods/exec", "pods/attach", "pods/portforward"]


async def test_without_the_rights_of_streams_logs_are_shown_and_commands_refused(stage: Stage) -> None:
    bound, kubectl = stage.bound, Kubectl(stage.bound.hub, stage.namespace)
    name = f"kubeocean-syncer-{bound.name}"
    role = await get(bound.worker, "role", name, "-n", bound.mount)
    less = [rule for rule in role["rules"] if rule["resources"] != STREAMS]
    assert len(less) == len(role["rules"]) - 1
    await stage.create("works", script={"log-text": "hello", "log-interval": "1"})
    await stage.running("works")

    async def granted(rules: list[dict[str, Any]]) -> None:
        change = json.dumps({"rules": rules})
        await bound.worker.kubectl("patch", "role", name, "-n", bound.mount, "--type=merge", "-p", change)

    async def refused() -> str:
        ran = await kubectl.run("exec", "works", "--", "true")
        return ran.stderr if ran.code else ""

    await granted(less)
    try:
        text = await eventually(refused, "the worker refuses the command", every=0.3)
        assert "pods/exec" in text and "forbidden" in text, text
        assert b"hello" in (await kubectl.run("logs", "works", "--tail=1")).stdout
    finally:
        await granted(role["rules"])
    await eventually(lambda: accepted(kubectl), "the right is granted again", every=0.3)


async def accepted(kubectl: Kubectl) -> bool:
    return (await kubectl.run("exec", "works", "--", "true")).code == 0
