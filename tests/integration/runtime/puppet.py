"""A provider that a test leads by files, and whose backend outlives it.

Invariant: what happened to a pod is in the backend's files alone, so that a second process finds what the first one left.

Below `directory`: `nodes` (names to declare, by whitespace), `complete` (say nodes_complete), `crash` (raise, again and again while it is
there), `refuse` (raise SettingsError), `ping` (fail, hang or bug), `end` (names of pods whose containers end by themselves), `lose` (names
of pods that vanish), `stubborn` (names of pods that end by nothing but grace 0), `blind` (pods can not be listed), `linger` (do not return
at the stop: but when cancelled, with `deaf` in it not even then); the provider writes `pods/UID` and appends each call to `calls`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from attrs import frozen

from vkubelet import (
    ContainerReport,
    Host,
    NodeDescription,
    Pod,
    PodRef,
    PodReport,
    Running,
    SettingsError,
    Terminated,
    Unavailable,
)

LOOK = 0.05


class Puppet:
    @frozen(kw_only=True)
    class Settings:
        directory: str

    def __init__(self, settings: Settings) -> None:
        self.directory = Path(settings.directory)
        self.pods = self.directory / "pods"
        self.pods.mkdir(parents=True, exist_ok=True)
        self.declared: set[str] = set()
        self.host: Host

    async def run(self, host: Host) -> None:
        self.host, self.declared = host, set()
        self.note("run")
        stopped = asyncio.ensure_future(host.until_stopped())
        while not stopped.done():
            self.look()
            await asyncio.wait([stopped], timeout=LOOK)
        lingers = self.told("linger")
        while lingers is not None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lingers != "deaf":
                    raise
        self.note("stopped")

    def look(self) -> None:
        refused = self.told("refuse")
        if refused is not None:
            path, _, sentence = refused.partition(": ")
            raise SettingsError(path, sentence)
        if self.told("crash") is not None:
            raise RuntimeError("told to crash")
        wanted = set((self.told("nodes") or "").split())
        for name in sorted(wanted - self.declared):
            labels = {"puppet": name, "color": "red"}
            self.host.set_node(NodeDescription(name, {"cpu": "8", "memory": "32Gi", "pods": "500"}, labels=labels))
        for name in sorted(self.declared - wanted):
            self.host.remove_node(name)
        self.declared = wanted
        if self.told("complete") is not None:
            self.host.nodes_complete()
        ended, lost = set((self.told("end") or "").split()), set((self.told("lose") or "").split())
        for file in self.pods.iterdir():
            pod = json.loads(file.read_text())
            if pod["ref"]["name"] in lost:
                file.unlink()
                self.host.pod_gone(PodRef(**pod["ref"]))
                continue
            if pod["ref"]["name"] in ended and not pod["ended"]:
                pod["ended"] = host_time(self.host)
                write(file, json.dumps(pod))
                self.host.report(report_of(pod))

    def told(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text()
        except FileNotFoundError:
            return None

    def note(self, call: str) -> None:
        with (self.directory / "calls").open("a") as out:
            out.write(call + "\n")

    async def sync_pod(self, pod: Pod) -> None:
        self.note(f"sync {pod.ref.name}")
        file = self.pods / pod.ref.uid
        if not file.exists():
            ref = {"namespace": pod.ref.namespace, "name": pod.ref.name, "uid": pod.ref.uid, "node": pod.ref.node}
            containers = [c["name"] for c in pod.spec["containers"]]
            write(file, json.dumps({"ref": ref, "containers": containers, "started": host_time(self.host), "ended": ""}))
            self.note(f"start {pod.ref.name}")
        self.host.report(report_of(json.loads(file.read_text())))

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.note(f"delete {pod.name}")
        self.note(f"grace {pod.name} {grace:.0f}")
        if grace > 0 and pod.name in (self.told("stubborn") or "").split():
            return
        (self.pods / pod.uid).unlink(missing_ok=True)
        self.host.pod_gone(pod)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        if self.told("blind") is not None:
            raise Unavailable("told to see nothing")
        reports = [report_of(json.loads(file.read_text())) for file in self.pods.iterdir()]
        return [report for report in reports if report.pod.node == node]

    async def ping(self, node: str) -> None:
        told = (self.told("ping") or "").strip()
        if told == "fail":
            raise Unavailable("told to fail")
        if told == "bug":
            raise KeyError(node)
        if told == "hang":
            await asyncio.Event().wait()


def write(file: Path, text: str) -> None:
    """Readers of other processes see all or nothing; temporary files lie beside the folder."""
    draft = file.parent.with_name(file.name + ".draft")
    draft.write_text(text)
    draft.replace(file)


def host_time(host: Host) -> str:
    return host.clock.now().isoformat()


def report_of(pod: dict[str, object]) -> PodReport:
    started = datetime.fromisoformat(str(pod["started"]))
    state: Running | Terminated = Running(started)
    if pod["ended"]:
        state = Terminated(0, started_at=started, finished_at=datetime.fromisoformat(str(pod["ended"])))
    ref = PodRef(**pod["ref"])  # type: ignore[arg-type]
    names = pod["containers"]
    return PodReport(ref, [ContainerReport(str(name), state) for name in names], ["10.1.2.3"])  # type: ignore[attr-defined]
