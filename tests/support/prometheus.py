"""A real Prometheus for one test: it scrapes what it is told, and judges alert rules.

Invariant: it ends with the test; what it stores goes with the test's directory.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import urlopen

from attrs import define, field

from tests.support.bound import ROOT
from tests.support.program import STOP_SECONDS
from tests.support.warm import die_with_parent
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import network, packages

ALERTS = ROOT / "deploy" / "charts" / "kubeocean" / "files" / "alerts.yaml"
GRAFANA = ALERTS.with_name("grafana.json")
_EVERY = "500ms"

Body = dict[str, Any]


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    folder = packages.prometheus()
    assert folder is not None, "there is no prometheus: run deploy/dev/packages.py"
    return str(folder / name)


def promtool(*args: str, cwd: Path) -> str:
    """What it says; AssertionError when it fails."""
    done = subprocess.run([program("promtool"), *args], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def rules() -> list[Body]:
    """The alert rules of the chart."""
    return [rule for group in decode_yaml(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """The queries of the Grafana dashboard of the chart."""
    return [target["expr"] for panel in json.loads(GRAFANA.read_text())["panels"] for target in panel.get("targets", ())]


def metrics_of(expression: str) -> set[str]:
    """The names of the series that an expression reads; every one of ours begins like this."""
    return set(re.findall(r"\b(?:kubeocean|vkubelet|kubelet)_[a-z_0-9]+", expression))


@define
class Prometheus:
    """Use as a context manager. `jobs` are its scrape_configs."""

    directory: Path
    jobs: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]] = ()
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.port = network.free_port(set())
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "rules.yaml").write_text(json.dumps({"groups": [{"name": "test", "rules": list(self.rules)}]}))
        jobs = [{"scrape_interval": _EVERY, "scrape_timeout": _EVERY, **job} for job in self.jobs]
        config = {"global": {"evaluation_interval": _EVERY}, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
        (self.directory / "prometheus.yml").write_text(json.dumps(config))
        flags = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": f"127.0.0.1:{self.port}"}
        with (self.directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), *(f"--{name}={value}" for name, value in flags.items())],
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def query(self, expression: str) -> list[Body]:
        """The series of an instant query, empty while it does not answer yet."""
        return list(self._get("query", query=expression).get("result") or ())

    def firing(self) -> dict[str, Body]:
        """Alerts that fire, by name."""
        return {alert["labels"]["alertname"]: alert for alert in self._firing()}

    def all_firing(self, name: str) -> list[Body]:
        """Those of one name, which may fire for several series."""
        return [alert for alert in self._firing() if alert["labels"]["alertname"] == name]

    def _firing(self) -> list[Body]:
        return [alert for alert in self._get("alerts").get("alerts") or () if alert["state"] == "firing"]

    def problems(self) -> list[str]:
        """Why targets can not be scraped."""
        return [target["lastError"] for target in self._get("targets").get("activeTargets") or () if target["lastError"]]

    def _get(self, what: str, **query: str) -> Body:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{what}?{urlencode(query)}", timeout=5) as answer:
                data: Body = json.load(answer)["data"]
                return data
        except OSError:
            return {}
