"""kubectl as the independent observer of the effects of provider and runtime.

Invariant: only state that kubectl has shown counts; a process that was started is stopped with the context that started it.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import termios
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from vkubelet.api.objects import Json, JsonView
from vkubelet.clock import Clock
from vkubelet.provider import TerminalSize
from vkubelet.testing.conformance.observed import Changes
from vkubelet.testing.conformance.rules import Broken

SECONDS = 60.0
"""Seconds for one command that does not stream."""

_LONGEST_LINE = 8 * 1024 * 1024
"""A complete object is on one line of a watch."""


@frozen
class Outcome:
    """Result of a command."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def complaint(self) -> str:
        return self.stderr.decode(errors="replace").strip()


@frozen(kw_only=True)
class Kubectl:
    """Commands as the kubeconfig's user, in one namespace."""

    program: Path
    kubeconfig: Path
    cache: Path
    context: str = ""
    namespace: str = ""

    def command(self, *args: str) -> list[str]:
        where = [f"--{flag}={value}" for flag, value in (("context", self.context), ("namespace", self.namespace)) if value]
        return [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", *where, *args]

    async def run(self, *args: str, stdin: bytes | None = None, seconds: float = SECONDS) -> Outcome:
        """Runs a command until it exits. Raises Broken when it does not exit in time."""
        async with self.started(*args, stdin=DEVNULL if stdin is None else PIPE) as process:
            try:
                async with asyncio.timeout(seconds):
                    stdout, stderr = await process.communicate(stdin)
            except TimeoutError:
                raise Broken(f"kubectl {' '.join(args)} did not end within {seconds:g} s") from None
        return Outcome(process.returncode or 0, stdout, stderr)

    async def ok(self, *args: str, stdin: bytes | None = None) -> bytes:
        """Returns the output of a command. Raises Broken with its error when it fails."""
        outcome = await self.run(*args, stdin=stdin)
        if outcome.code != 0:
            raise Broken(f"kubectl {' '.join(args)} ended with {outcome.code}: {outcome.complaint}")
        return outcome.stdout

    async def json(self, *args: str) -> Json:
        """Returns `kubectl ARGS -o json`; empty when nothing was found."""
        out = await self.ok(*args, "--output=json", "--ignore-not-found")
        found: Json = json.loads(out) if out.strip() else {}
        return found

    async def items(self, *args: str) -> list[Json]:
        """Returns the items of a `kubectl get` of many."""
        return list((await self.json(*args)).get("items", ()))

    async def create(self, *bodies: JsonView) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
        await self.ok("create", "--filename=-", stdin=json.dumps(listed).encode())

    @asynccontextmanager
    async def started(self, *args: str, stdin: int = DEVNULL, stdout: int = PIPE, stderr: int = PIPE) -> AsyncIterator[Process]:
        """Starts a command; it is killed when the context exits."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*args), stdin=stdin, stdout=stdout, stderr=stderr, limit=_LONGEST_LINE, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


class PodWatch:
    """Latest state of the pods of a namespace as kubectl shows them; `run` is a background task."""

    def __init__(self, kubectl: Kubectl, clock: Clock) -> None:
        self._kubectl = kubectl
        self._clock = clock
        self.changes = Changes()
        self.pods: dict[str, Json] = {}
        """Pods by name."""
        self.known: dict[str, Json] = {}
        """Pods by UID, including deleted ones."""
        self.flapped: dict[str, str] = {}
        """By UID, a container that was shown as waiting after it had run, although no run of it had terminated."""

    async def run(self) -> None:
        """Watches until cancelled; a closed watch is restarted."""
        while True:
            async with self._kubectl.started("get", "pods", "--watch", "--output-watch-events", "--output=json") as process:
                assert process.stdout is not None
                self.pods.clear()
                async for line in process.stdout:
                    self._note(json.loads(line))
            await self._clock.sleep(0.5)

    def _note(self, event: Json) -> None:
        pod = event["object"]
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._note_flapping(self.known.get(uid), pod)
        self.known[uid] = pod
        if event["type"] != "DELETED":
            self.pods[name] = pod
        elif self.pods.get(name, {}).get("metadata", {}).get("uid") == uid:
            del self.pods[name]
        self.changes.notify()

    def _note_flapping(self, before: JsonView | None, pod: JsonView) -> None:
        began = {entry["name"] for entry in _entries(before) if "waiting" not in (entry.get("state") or {"waiting": {}})}
        for entry in _entries(pod):
            if entry["name"] in began and "waiting" in (entry.get("state") or {}) and not (entry.get("lastState") or {}).get("terminated"):
                self.flapped[pod["metadata"]["uid"]] = entry["name"]

    async def until(self, name: str, wanted: Callable[[JsonView], object], what: str, *, seconds: float) -> Json:
        """Waits until the pod matches, and returns it. Raises Broken, with its state instead."""

        def look() -> Json | None:
            pod = self.pods.get(name)
            return pod if pod is not None and wanted(pod) else None

        try:
            return await self.changes.until(look, f"pod {name} {what}", seconds=seconds)
        except Broken as error:
            raise Broken(f"{error}; it is {described(self.pods.get(name))}") from None

    async def gone(self, name: str, uid: str, *, seconds: float) -> None:
        """Waits until this incarnation is deleted. Raises Broken."""

        def look() -> bool:
            return uid in self.known and self.pods.get(name, {}).get("metadata", {}).get("uid") != uid

        await self.changes.until(look, f"pod {name} is removed from the cluster", seconds=seconds)


def _entries(pod: JsonView | None) -> Sequence[JsonView]:
    """Returns the statuses of its app containers."""
    return (pod or {}).get("status", {}).get("containerStatuses") or ()


def condition(body: Mapping[str, Any], kind: str) -> str:
    """Returns the status of a condition, or an empty string."""
    found = (entry["status"] for entry in body.get("status", {}).get("conditions") or () if entry["type"] == kind)
    return str(next(found, ""))


def running(pod: JsonView) -> bool:
    """Checks whether the pod is Running and Ready."""
    return pod.get("status", {}).get("phase") == "Running" and condition(pod, "Ready") == "True"


def described(pod: JsonView | None) -> str:
    """Describes a pod in short: its phase, and the state of each container."""
    if pod is None:
        return "not there"
    status = pod.get("status", {})
    states = []
    for entry in status.get("containerStatuses") or ():
        (kind, detail), *_ = (entry.get("state") or {"unknown": {}}).items()
        states.append(f"{entry['name']} {kind} {detail.get('reason', '')}".strip())
    words = [status.get("phase", "without a phase"), status.get("reason", ""), *states]
    return ", ".join(word for word in words if word) + (", terminating" if pod["metadata"].get("deletionTimestamp") else "")


# --- on a terminal ----------------------------------------------------------------------------------------------------------------------


async def on_terminal(command: Sequence[str], size: TerminalSize, *, seconds: float) -> tuple[int, bytes]:
    """Runs a command on a terminal of this size; returns its exit code and its output. Raises Broken when it does not exit in time."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))
        process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    shown = bytearray()
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, _read, ours, shown)
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Broken(f"a command on a terminal did not end within {seconds:g} s; it showed {bytes(shown[-200:])!r}") from None
    finally:
        loop.remove_reader(ours)
        _read(ours, shown)
        os.close(ours)
    return code, bytes(shown)


def _read(descriptor: int, into: bytearray) -> None:
    """Reads available data; once the other side is closed, reading fails."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 65536):
            into += data
