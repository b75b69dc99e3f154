"""Events and messages of postStart and preStop hooks. Pure.

Invariant: the texts are the kubelet's (lifecycle/handlers.go).
"""

from __future__ import annotations

import json
from collections.abc import Collection

from vkubelet.api.objects import PodRef
from vkubelet.containers.checks import Outcome
from vkubelet.containers.life import ContainerLife, Stage
from vkubelet.containers.plan import ContainerPlan


def hooks_of(container: ContainerLife) -> Collection[str]:
    """Returns the hooks that fail when the container terminates now: they run, and in it or against it."""
    found = []
    if container.stage is Stage.HOOKING and _needs_container(container.plan.post_start):
        found.append("postStart")
    stop = container.stop
    if stop is not None and (stop.hook_runs or stop.hook_cut) and _needs_container(container.plan.pre_stop):
        found.append("preStop")
    return found


def _needs_container(action: object) -> bool:
    return isinstance(action, dict) and action.get("sleep") is None


def hook_failure(ref: PodRef, plan: ContainerPlan, outcome: Outcome) -> str:
    """Returns why a postStart hook has failed, for the status of its container."""
    action = plan.post_start or {}
    where = f"for Container {_quoted(plan.name)} in Pod {_quoted(full_name(ref))} failed - error: {outcome.error or outcome.output}"
    if action.get("exec") is not None:
        output = outcome.output if outcome.error else ""
        return f"Exec lifecycle hook ([{' '.join(action['exec'].get('command') or ())}]) {where}, message: {_quoted(output)}"
    if action.get("httpGet") is not None:
        return f"HTTP lifecycle hook ({action['httpGet'].get('path') or ''}) {where}"
    return f"Cannot run handler: {outcome.output}"


def full_name(ref: PodRef) -> str:
    """Formats a pod name as the kubelet does in messages."""
    return f"{ref.name}_{ref.namespace}({ref.uid})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
