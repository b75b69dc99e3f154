"""The console script `kubeocean` as two owners of clusters use it, and the process that serves what they have bound.

Invariant: nothing but the script's own doing gives rights in the worker; in the hub the process has the generated roles and nothing more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from kubeocean.rbac.permissions import hub_objects, syncer_name, worker_guards
from tests.support.bound import SYSTEM, Bound, apply, delete, get, vacate
from tests.support.command import run_command
from tests.support.keyboard import at_terminal
from tests.support.kubectl import Ran
from tests.support.program import Program
from vkubelet.testing.cluster import CommandFailed, ControlPlane
from vkubelet.testing.cluster.pki import write_kubeconfig

SCRIPT = Path(sys.executable).with_name("kubeocean")
OWNERS = ["system:masters"]


@frozen(kw_only=True)
class Console:
    """Binds `bound`; the files are those of the clusters' owners."""

    bound: Bound
    hub_file: Path
    worker_file: Path

    @classmethod
    def of(cls, hub: ControlPlane, worker: ControlPlane, *, name: str, directory: Path) -> Console:
        files = (plane.client_config(owner(name), OWNERS) for plane in (hub, worker))
        hub_file, worker_file = files
        return cls(bound=Bound(hub=hub, worker=worker, name=name, directory=directory), hub_file=hub_file, worker_file=worker_file)

    @property
    def syncer(self) -> str:
        """The ServiceAccount of the serving process, as the hub's audit log knows it."""
        return f"system:serviceaccount:{SYSTEM}:{syncer_name(self.bound.name)}"

    @property
    def borrower(self) -> str:
        """The ServiceAccount that `bind` makes, as the worker's audit log knows it."""
        return f"system:serviceaccount:{self.bound.mount}:kubeocean-syncer"

    async def run(self, *arguments: str, within: float = 90.0) -> Ran:
        """The script to its end, without a terminal."""
        ran = await run_command("kubeocean", *arguments, within=within)
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran

    async def answer(self, text: str, *arguments: str) -> Ran:
        """The script at a terminal, at which somebody types `text`; what it asks and says is in `stdout`."""
        return await at_terminal(text, str(SCRIPT), *arguments)

    async def bind(self, *flags: str, within: float = 90.0) -> Ran:
        return await self.run(*self.binding, *flags, within=within)

    @property
    def binding(self) -> tuple[str, ...]:
        """The arguments that are always there."""
        return ("bind", self.bound.name, *self.both, "--mount-namespace", self.bound.mount)

    async def unbind(self, *flags: str) -> Ran:
        return await self.run("unbind", self.bound.name, *self.at_home, *flags)

    async def status(self, *flags: str) -> Ran:
        return await self.run("status", self.bound.name, *self.at_home, *flags)

    @property
    def at_home(self) -> tuple[str, ...]:
        return ("--kubeconfig", str(self.hub_file))

    @property
    def both(self) -> tuple[str, ...]:
        return (*self.at_home, "--worker-kubeconfig", str(self.worker_file))

    async def program(self) -> Program:
        """`kubeocean run` with the roles that are generated for this binding; not started."""
        name, hub = syncer_name(self.bound.name), self.bound.hub
        await apply(hub, *hub_objects(name, binding=self.bound.name))
        token = (await hub.kubectl("create", "token", name, "-n", SYSTEM)).strip()
        self.bound.directory.mkdir(parents=True, exist_ok=True)
        access = write_kubeconfig(self.bound.directory / f"{name}.kubeconfig", "hub", server=hub.url, ca=hub.ca.read_bytes(), client=token)
        settings = {
            "server": {"node_address": hub.host_address, "main_port": 0, "approve_own_csr": True},
            "health": {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"},
            "log": {"level": "DEBUG"},
        }
        config = self.bound.directory / f"{name}.yaml"
        config.write_text(yaml.safe_dump(settings))
        arguments = ("run", "--binding", self.bound.name, "--config", str(config), "--kubeconfig", str(access))
        return Program("kubeocean", *arguments, log=self.bound.directory / f"{name}.log")

    async def is_bound(self) -> bool:
        """Whether there is a ClusterBinding; its definition may be missing, or not served yet."""
        try:
            return await get(self.bound.hub, "clusterbindings.cloud.tencent.com", self.bound.name) is not None
        except CommandFailed as error:
            if "doesn't have a resource type" in error.stderr:
                return False
            raise

    async def remove(self) -> None:
        """Everything cluster-wide that was made for it, and what runs in the mount namespace."""
        bound, worker_role = self.bound, f"kubeocean-syncer-{self.bound.mount}"
        for plane, kind, name in (
            (bound.hub, "clusterbindings", bound.name),
            (bound.worker, "resourceleasingpolicies", f"all-of-{bound.name}"),
        ):
            # A definition may be missing that `bind` was to make.
            if await get(plane, "crd", f"{kind}.cloud.tencent.com"):
                await delete(plane, kind, name, "--ignore-not-found", "--wait=false")
        await delete(bound.hub, "nodes", "-l", f"kubeocean.io/cluster-binding={bound.name}", "--wait=false")
        for plane, name in ((bound.hub, syncer_name(bound.name)), (bound.worker, worker_role), (bound.worker, f"{worker_role}-metrics")):
            await delete(plane, "clusterrole,clusterrolebinding", name, "--ignore-not-found", "--wait=false")
        guards = json.dumps({"apiVersion": "v1", "kind": "List", "items": worker_guards(bound.mount, policy_label=True)})
        await bound.worker.kubectl("delete", "--ignore-not-found", "--wait=false", "--filename", "-", stdin=guards)
        await vacate(bound.worker, bound.mount)

    async def secrets(self) -> list[str]:
        """What must never be printed: the token, as text and inside of the kubeconfig."""
        found = await get(self.bound.worker, "secret", "kubeocean-syncer-token", "-n", self.bound.mount)
        stored = await get(self.bound.hub, "secret", self.bound.secret, "-n", SYSTEM)
        return [found["data"]["token"], stored["data"]["kubeconfig"]] if found and stored else []


def owner(name: str) -> str:
    """Who has all rights, and types the commands."""
    return f"owner-{name}"


def decoded(ran: Ran) -> Any:
    return json.loads(ran.stdout)
