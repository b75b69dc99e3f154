"""Our hub and the workers whose owners run our commands.

Invariant: the hub's process has the identity that `fleet init` made and no other; an agent runs inside its worker's network as the
ServiceAccount that `fleet join` made, with the settings that it wrote.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from tests.integration.fleet.player import Agent, Body
from tests.support.cable import Cable
from tests.support.command import run_command
from tests.support.kubectl import Ran
from tests.support.program import LONG, Program, eventually
from vkubelet.testing.cluster import CommandFailed, ControlPlane

NOWHERE = {"health_address": "", "metrics_address": ""}


async def initialized(hub: ControlPlane) -> list[str]:
    """Runs `fleet init`; the words of the line that it prints, without the name."""
    ran = await run_command("fleet", "init", "--kubeconfig", str(hub.kubeconfig), "--yes", "--token-life", "1h", within=LONG)
    assert ran.code == 0, ran.stderr
    (line,) = re.findall(r"^  (fleet join .*) --name NAME$", ran.stdout.decode(), re.MULTILINE)
    return shlex.split(line)[1:]


def with_token(cluster: ControlPlane, token: str, file: Path) -> Path:
    """A kubeconfig with this token."""
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": token}
    file.write_text(yaml.safe_dump(kubeconfig))
    return file


async def identity(cluster: ControlPlane, namespace: str, account: str, file: Path) -> Path:
    """A kubeconfig with a token of a ServiceAccount."""
    token = await cluster.kubectl("-n", namespace, "create", "token", account)
    return with_token(cluster, token.strip(), file)


@contextmanager
def serving(hub: ControlPlane, directory: Path, settings: Body) -> Iterator[Program]:
    """`fleet hub` as the ServiceAccount of the hub; `settings` are its section `hub:`."""
    account = asyncio.run(identity(hub, "fleet-system", "fleet-hub", directory / "hub.kubeconfig"))
    config = directory / "hub.yaml"
    config.write_text(yaml.safe_dump({"health": NOWHERE, "log": {"level": "DEBUG"}, "hub": settings}))
    with Program("fleet", "hub", "--config", str(config), "--kubeconfig", str(account), log=directory / "hub.log") as program:
        yield program


@frozen
class Fleet:
    """A hub with its process, and the API server of its workers."""

    hub: ControlPlane
    worker: ControlPlane
    line: Sequence[str]
    """What `fleet init` printed, from the word join on and without the name."""
    process: Program
    lines: Sequence[Cable]
    """Other ways from the workers to the hub, which a test may cut; each test has to restore them."""

    async def on_hub(self, *arguments: str) -> Ran:
        """A command of the hub's owner."""
        return await run_command("fleet", *arguments, "--kubeconfig", str(self.hub.kubeconfig), within=LONG)

    async def done(self, *arguments: str) -> str:
        """One that has to succeed; its output."""
        ran = await self.on_hub(*arguments)
        assert ran.code == 0, ran.stderr
        return ran.stdout.decode()


@frozen
class Laptop:
    """One worker: a namespace in the API server of workers, in which an agent may be."""

    fleet: Fleet
    name: str
    namespace: str
    directory: Path

    @property
    def worker(self) -> ControlPlane:
        return self.fleet.worker

    @property
    def here(self) -> tuple[str, ...]:
        return ("--namespace", self.namespace, "--kubeconfig", str(self.worker.kubeconfig), "--yes")

    def line(self, *flags: str, **changes: str) -> list[str]:
        """The printed line with the name, and with other values of its flags."""
        words = list(self.fleet.line)
        for flag, value in changes.items():
            words[words.index(f"--{flag.replace('_', '-')}") + 1] = value
        return [*words, "--name", self.name, "--image", "none:1", *self.here, *flags]

    async def run(self, *arguments: str) -> Ran:
        """A command of the worker's owner, to its end."""
        return await run_command("fleet", *arguments, within=LONG, network=self.worker.network)

    def joining(self, **changes: str) -> Program:
        """The printed line, not started, with other values of its flags."""
        return Program("fleet", *self.line(**changes), log=self.directory / "join.log", network=self.worker.network)

    def joining_as_member(self, token: str) -> Program:
        """The line for the second door, not started, with the token of the member's identity."""
        file = self.directory / "token"
        file.write_text(token)
        words = self.line("--door", "kubefleet", "--token-file", str(file))
        at = words.index("--token")
        return Program("fleet", *words[:at], *words[at + 2 :], log=self.directory / "join.log", network=self.worker.network)

    def set_clock(self, ahead: int) -> Path:
        """Sets the clock of an agent that has one of its own; returns its file."""
        file = self.directory / "ahead"
        draft = file.with_suffix(".draft")
        draft.write_text(str(ahead))
        return draft.replace(file)

    async def agent(self, join: Program, name: str = "agent", *, ahead: int | None = None, **own: Any) -> Program:
        """What a kubelet would start once the Deployment exists, not started; `own` is laid over the section `agent:`.

        With `ahead` its clock is so many seconds ahead, until it is set again.
        """

        async def deployed() -> bool:
            try:
                await self._kubectl("get", "deployment", "fleet-agent")
            except CommandFailed:
                return False
            return True

        await eventually(deployed, "the Deployment of the agent", every=0.5, by=[join])
        written = json.loads(await self._kubectl("get", "configmap", "fleet-agent", "-o", "json"))["data"]["settings.yaml"]
        file = self.directory / f"{name}.yaml"
        settings = yaml.safe_load(written)
        file.write_text(yaml.safe_dump({"agent": {**settings["agent"], **own}, "health": NOWHERE, "log": {"level": "DEBUG"}}))
        account = await identity(self.worker, self.namespace, "fleet-agent", self.directory / f"{name}.kubeconfig")
        words = ("agent", "--settings", str(file), "--kubeconfig", str(account))
        log, network = self.directory / f"{name}.log", self.worker.network
        if ahead is None:
            return Program("fleet", *words, log=log, network=network)
        return Program("tests.support.shifted", str(self.set_clock(ahead)), "fleet", *words, log=log, network=network)

    async def secret(self, name: str = "hub-kubeconfig-secret") -> dict[str, bytes]:
        """The entries of a Secret of the agent."""
        found = json.loads(await self._kubectl("get", "secret", name, "-o", "json"))
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    async def issued(self) -> Agent:
        """An agent of the `kubernetes` package with the certificate of this one."""
        entries = await self.secret()
        return Agent.of(self.name, self.fleet.hub.kubeconfig, entries["tls.crt"], entries["tls.key"])

    async def namespace_of(self, name: str) -> Body:
        """A namespace of the worker."""
        found: Body = json.loads(await self.worker.kubectl("get", "namespace", name, "-o", "json"))
        return found

    async def _kubectl(self, *arguments: str) -> str:
        return await self.worker.kubectl("-n", self.namespace, *arguments)
