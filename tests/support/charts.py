"""The charts, rendered by helm itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vkubelet.api.codec import decode_yaml_documents

DEPLOY = Path(__file__).parents[2] / "deploy"
CHARTS = DEPLOY / "charts"
HUB, WORKER = "kubeocean", "kubeocean-worker"
FLEET_HUB, FLEET_AGENT = "fleet-hub", "fleet-agent"
Body = dict[str, Any]

IMAGE = {"image": {"repository": "kubeocean"}}
"""The one value without a default."""
REQUIRED: Mapping[str, Body] = {HUB: IMAGE, FLEET_HUB: IMAGE, FLEET_AGENT: {**IMAGE, "cluster": "laptop"}}
"""All values without a default."""


def ran(helm: str, *args: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    command = [helm, *args, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, timeout=60, check=False)


def rendered(helm: str, chart: str, values: Mapping[str, Any] | None = None) -> list[Body]:
    done = ran(helm, "template", chart, str(CHARTS / chart), values={**REQUIRED.get(chart, {}), **(values or {})})
    assert done.returncode == 0, done.stderr
    return [body for body in decode_yaml_documents(done.stdout) if body]
