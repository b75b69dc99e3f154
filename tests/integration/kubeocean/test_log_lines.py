"""What the process of a binding logs: nothing while nothing happens, and whose line it is; and what a changed settings file does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import yaml

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage
from vkubelet.api.codec import decode_yaml

QUIET_SECONDS = 12.0
SPANS = 3
"""On a machine that stands still for seconds something does happen, and is said. What is said time and again is said in each span."""
Line = dict[str, Any]

# Everything periodic happens many times in that span.
SETTINGS = {
    "log": {"level": "INFO"},
    "health": {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"},
    "ping": {"every": 1.0},
    "lease": {"renew_every": 1.0},
    "pods": {"list_interval": 2.0},
    "provider": {"probe_interval": 0.5, "reconnect_interval": 1.0, "unused_copy_after": 1.0},
}


def change_file(made: Scene, change: Callable[[Line], None]) -> None:
    """As an owner edits it, or the kubelet replaces what a ConfigMap gives."""
    file = made.bound.directory / f"{made.bound.name}.yaml"
    body = decode_yaml(file.read_text())
    change(body)
    ready = file.with_suffix(".new")
    ready.write_text(yaml.safe_dump(body))
    ready.rename(file)


async def said(made: Scene, text: str, *, seconds: float = PATIENCE) -> Line:
    def find() -> Line | None:
        return next((line for line in made.program.messages() if text in line["message"]), None)

    out: Line = await eventually(find, f"the log says: {text}", seconds=seconds)
    return out


async def settled(made: Scene) -> int:
    """The number of lines, once it has not grown for some seconds."""
    state = {"count": 0, "since": time.monotonic()}

    def still() -> bool:
        now = len(made.program.messages())
        if now != state["count"]:
            state.update(count=now, since=time.monotonic())
        return time.monotonic() - state["since"] > 5

    await eventually(still, "nothing more is written", seconds=90, every=0.5)
    return int(state["count"])


async def in_a_span(made: Scene) -> list[Line]:
    """What is said while nothing happens."""
    before = await settled(made)
    end = time.monotonic() + QUIET_SECONDS
    await eventually(lambda: time.monotonic() > end, "the span is over", seconds=QUIET_SECONDS + PATIENCE, every=1)
    return made.program.messages()[before:]


async def test_log_is_silent_while_nothing_happens_and_follows_its_settings_file(scene: MakeScene) -> None:
    made = await scene(settings=SETTINGS)
    stage = await Stage.of(made.bound, made.nodes)
    await stage.home.create("configmaps", {"metadata": {"name": "c", "namespace": stage.namespace}, "data": {"a": "b"}})
    for name in ("one", "two"):
        await stage.create(name, volumes=[{"name": "c", "configMap": {"name": "c"}}])
        await stage.running(name)
    said_in_spans: list[list[Line]] = []
    while not said_in_spans or (said_in_spans[-1] and len(said_in_spans) < SPANS):
        said_in_spans.append(await in_a_span(made))
    assert said_in_spans[-1] == [], said_in_spans

    change_file(made, lambda body: body["log"].update(level="DEBUG"))
    assert (await said(made, "log level changed"))["to"] == "DEBUG"
    # By itself it would be once in ten.
    await eventually(lambda: probes(made, seconds=5) >= 3, "the worker is asked often in five seconds", every=0.5)
    change_file(made, lambda body: (body["provider"].update(probe_interval=60.0), body["server"].update(port_last=20000)))
    assert (await said(made, "settings changed"))["settings"] == "provider.probe_interval"
    left = await said(made, "changed settings take effect only after a restart")
    assert (left["settings"], left["level"]) == ("server.port_last", "WARNING")
    await eventually(lambda: probes(made, seconds=5) == 0, "it is asked once a minute", every=0.5)
    change_file(made, lambda body: body["provider"].update(probe_intervall=1.0))
    assert (
        "provider.probe_intervall: is not a setting"
        in (await said(made, "the changed settings file is invalid, the settings stay unchanged"))["message"]
    )
    await every_line_says_whose_it_is(made, stage)


def probes(made: Scene, *, seconds: float) -> int:
    """How often the worker was asked whether it lives, in the last seconds of the log."""
    lines = [line for line in made.program.messages() if line.get("path") == "/readyz"]
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - seconds))
    return sum(line["time"] >= since for line in lines)


async def every_line_says_whose_it_is(made: Scene, stage: Stage) -> None:
    """Time, level, binding; of a pod its uid and, but for its tokens, its node; of a node its name."""
    body = await stage.create("three")
    await stage.running("three")
    await stage.home.delete("pods", "three", stage.namespace, grace=0)
    await stage.absent("three")
    lines = made.program.messages()
    assert [line for line in lines if not {"time", "level", "logger", "message", "binding"} <= line.keys()] == []
    assert {line["binding"] for line in lines} == {made.bound.name}
    of_pods = [line for line in lines if "pod" in line]
    assert [line for line in of_pods if not line.get("uid")] == []
    assert [line for line in of_pods if "node" not in line and line.get("controller") != "tokens"] == []
    own = [line for line in of_pods if line["pod"] == f"{stage.namespace}/three"]
    assert own and {line["uid"] for line in own} == {body["metadata"]["uid"]}
    assert any(line.get("node") == stage.vnode for line in own)
