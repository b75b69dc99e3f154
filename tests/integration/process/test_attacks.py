"""Pods that attack the node and one another, on a process node with the default settings: none of them obtains anything.

Invariant: all of them run at the same time, each as a user of its own, beside a victim; what they obtained is read from what they printed,
from the files that are root's, and from the victim.
"""

from __future__ import annotations

import asyncio
import ctypes
import grp
import os
import pwd
import re
import shutil
import struct
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from tests.integration.process.attacks import ATTACKS, SET_ID, Attack
from tests.integration.process.conftest import NODE, Bench, remove_groups, running
from tests.support.program import eventually
from vkubelet import PodRejected, Running, Unavailable, VKubeletError
from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.references import Content
from vkubelet.testing.host import make_pod
from vkubelet.testing.streams import MemoryIO
from vkubelet_providers.process import Process
from vkubelet_providers.process.keeper import kernel
from vkubelet_providers.process.local_pods import Container

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root has mounts and other users")

SECRET = f"secret-{uuid.uuid4().hex}"
VICTIM_USER, FIRST_USER = 19_999, 20_000
TRIES = 5
PAM = "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\nsession optional pam_permit.so\n"
_ADD_KEY = {"x86_64": 248, "aarch64": 217}
_SESSION_KEYRING = -3
_READ_ALL_FILES = struct.pack("<IIIII", 0x02000001, 1 << 2, 0, 0, 0)


@define
class Scene:
    """Files of root on this host, and what the pods have printed so far."""

    base: Path
    cgroup: str
    words: dict[str, str] = field(factory=dict)
    """By the name for which they stand in a row."""
    printed: dict[str, str] = field(factory=dict)
    host_group: int = field(init=False)
    """One that is no user's number."""

    def __attrs_post_init__(self) -> None:
        users = {each.pw_uid for each in pwd.getpwall()}
        self.host_group = next(each.gr_gid for each in grp.getgrall() if each.gr_gid not in users)

    @property
    def settings(self) -> Process.Settings:
        return Process.Settings(
            node=NODE, address="127.0.0.1", directory=str(self.base / "process"), host_paths=[str(self.base / "open")], cgroup=self.cgroup
        )

    def build(self) -> None:
        self.base.chmod(0o755)
        for name, mode in (("private", 0o700), ("private/app", 0o755), ("protected", 0o755), ("open", 0o777), ("tools", 0o755)):
            (self.base / name).mkdir()
            (self.base / name).chmod(mode)
        for name, mode in (("private/shadow", 0o600), ("protected/group", 0o640), ("private/app/config", 0o644), ("protected/file", 0o600)):
            (self.base / name).write_text(SECRET)
            (self.base / name).chmod(mode)
        (self.base / "protected/member").write_text(SECRET)
        os.chown(self.base / "protected/member", 0, self.host_group)
        (self.base / "protected/member").chmod(0o640)
        program = shutil.which("cat")
        assert program is not None
        for name, mode in (
            ("tools/cat-user", 0o4755),
            ("tools/cat-group", 0o2755),
            ("tools/cat-capable", 0o755),
            ("open/cat-user", 0o4755),
        ):
            shutil.copyfile(program, self.base / name)
            (self.base / name).chmod(mode)
        os.setxattr(self.base / "tools/cat-capable", "security.capability", _READ_ALL_FILES)
        self.words = {
            **{name: str(self.base / name) for name in ("private", "protected", "open", "tools")},
            **{"pods": str(self.base / "process/pods"), "vkubelet": str(os.getpid()), "cgroup": self.cgroup, "key": SECRET},
            **{"library": os.path.dirname(os.path.realpath(os.__file__))},
        }

    def filled(self, value: Any, row: Attack) -> Any:
        """With the words of the scene, and those of this row."""
        words = {**self.words, "mark": str(self.base / "open" / f"mark-{row.name}"), "uid": f"uid-{row.name}"}
        if value == "@host-group@":
            return self.host_group
        if isinstance(value, str):
            return re.sub("@([a-z-]+)@", lambda match: words[match[1]], value)
        if isinstance(value, Mapping):
            return {key: self.filled(each, row) for key, each in value.items()}
        return [self.filled(each, row) for each in value] if isinstance(value, (list, tuple)) else value

    def changed(self) -> list[str]:
        """What is root's and is not as it was, and what root was made to make."""
        found = [str(path) for path in (self.base / "protected").iterdir() if path.name not in ("file", "group", "member")]
        if (self.base / "protected/file").read_text() != SECRET:
            found.append("protected/file")
        made = (path for path in (self.base / "open").glob("mark-*"))
        return found + [str(path) for path in made]


class Campaign:
    """The rows on one node, beside the victim."""

    def __init__(self, scene: Scene, bench: Bench) -> None:
        self.scene = scene
        self.bench = bench
        bench.host.objects = {
            Reference(Kind.CONFIGMAP, "pam"): Content(text={"su": PAM, "other": PAM}),
            Reference(Kind.CONFIGMAP, "passwd"): Content(text={"passwd": "root:x:0:0::/:/bin/sh\nevil::0:0::/:/bin/sh\n"}),
            Reference(Kind.SECRET, "password"): Content(text={"password": SECRET}),
        }

    def container(self, uid: str, name: str = "main") -> Container:
        held = self.bench.provider.pods.get(uid)
        assert held is not None
        return held.containers[name]

    async def add_victim(self) -> None:
        script = f"echo {SECRET} | tee file /srv/data/file /dev/termination-log; sleep 1000"
        main = {"name": "main", "image": "i", "command": ["sh", "-c", script], "securityContext": {"runAsUser": VICTIM_USER}}
        main["env"] = [{"name": "PASSWORD", "value": SECRET}]
        main["volumeMounts"] = [{"name": "secret", "mountPath": "/srv/secret"}, {"name": "data", "mountPath": "/srv/data"}]
        volumes = [{"name": "secret", "secret": {"secretName": "password"}}, {"name": "data", "emptyDir": {}}]
        await self.start({"containers": [main], "volumes": volumes}, "victim", "main")
        state = self.container("uid-victim").state
        self.scene.words |= {"victim": "uid-victim", "victim-pid": str(state.pid), "victim-keeper": str(state.keeper)}

    async def start(self, spec: dict[str, Any], name: str, container: str) -> None:
        """Raises PodRejected, Unavailable."""
        pod = make_pod(name, node=NODE, spec=spec)
        if pod.ref not in self.bench.pods:
            self.bench.pods.append(pod.ref)
        sandbox = await self.bench.provider.prepare_pod(pod)
        whole = await self.bench.host.resolve(pod, files=sandbox.files, pod_ips=sandbox.ips, containers=[container])
        await self.bench.provider.start_container(whole, whole.containers[container], restarts=0)

    async def ended(self, uid: str, name: str) -> None:
        await eventually(lambda: not self.container(uid, name).runs, f"{uid} {name} ends", every=0.02)

    async def run(self, row: Attack, user: int) -> None:
        """Everything of one row; what it prints, or why it is refused, is kept."""
        uid, printed = f"uid-{row.name}", list[str]()
        spec = self.scene.filled(spec_of(row, user), row)
        try:
            if row.first:
                await self.start(spec, row.name, "first")
                await self.ended(uid, "first")
            if row.beside:
                await self.start(spec, row.name, "beside")
            await self.attack(row, spec, printed)
        except (PodRejected, Unavailable) as refusal:
            printed.append(f"refused: {refusal}")
        held = self.bench.provider.pods.get(uid)
        for one in held.containers.values() if held is not None else ():
            printed += [path.read_text(errors="replace") for path in sorted(one.attempt.logs.iterdir())]
            printed.append(one.attempt.terminated(one.state).message)
        assert printed, f"{row.name} left nothing"
        self.scene.printed[row.name] = "\n".join(printed)

    async def attack(self, row: Attack, spec: dict[str, Any], printed: list[str]) -> None:
        """Its main container; a start that meets a name in the wrong moment is tried again. Raises PodRejected, Unavailable."""
        for left in range(TRIES - 1, -1, -1):
            try:
                await self.start(spec, row.name, "main")
                break
            except (PodRejected, Unavailable):
                if not row.beside or not left:
                    raise
        if row.command:
            io = MemoryIO()
            with suppress(VKubeletError):
                await self.bench.provider.exec(self.ref(row), "main", ["sh", "-c", self.scene.filled(row.command, row)], io)
            printed.append((io.stdout + io.stderr).decode(errors="replace"))
        else:
            await self.ended(f"uid-{row.name}", "main")

    def ref(self, row: Attack) -> Any:
        return next(ref for ref in self.bench.pods if ref.name == row.name)


def spec_of(row: Attack, user: int) -> dict[str, Any]:
    """Its pod."""
    shared = [{"name": "v", "mountPath": "/srv/v"}] if "v" in row.volumes else []
    main: dict[str, Any] = {"name": "main", "image": "i", "command": ["sh", "-c", row.script], "volumeMounts": list(row.mounts)}
    main |= {"securityContext": row.security, **row.container}
    first, beside = (
        {"name": name, "image": "i", "command": ["sh", "-c", script], "volumeMounts": shared}
        for name, script in (("first", row.first), ("beside", row.beside))
    )
    return {
        "securityContext": {"runAsUser": user, **row.pod_security},
        "volumes": [{"name": name, **source} for name, source in row.volumes.items()],
        "initContainers": [first],
        "containers": [beside, *([] if row.ephemeral else [main])],
        "ephemeralContainers": [main] if row.ephemeral else [],
    }


async def campaign(scene: Scene, rows: tuple[Attack, ...], settings: Process.Settings) -> bool:
    """Runs all rows; returns whether the victim lives at the end."""
    async with running(settings) as bench:
        fight = Campaign(scene, bench)
        try:
            await fight.add_victim()
            async with asyncio.TaskGroup() as group:
                for number, row in enumerate(rows):
                    group.create_task(fight.run(row, FIRST_USER + number))
            latest = bench.host.latest("uid-victim")
            return (
                latest is not None and isinstance(latest.containers[0].state, Running) and fight.container("uid-victim").attempt.is_kept()
            )
        finally:
            async with asyncio.TaskGroup() as group:
                for ref in bench.pods:
                    group.create_task(bench.provider.remove_pod(ref))


@pytest.fixture(scope="module")
def place() -> Iterator[Scene]:
    base = Path(tempfile.mkdtemp(prefix="vkubelet-attacks-", dir="/tmp"))
    scene = Scene(base, f"vkubelet-test-{uuid.uuid4().hex[:8]}")
    try:
        scene.build()
        yield scene
    finally:
        shutil.rmtree(base, ignore_errors=True)
        remove_groups(scene.cgroup)


@pytest.fixture(scope="module")
def fought(place: Scene) -> tuple[Scene, bool]:
    """The scene after all attacks, and whether the victim lives."""
    add_key()
    os.environ["OF_VKUBELET"] = SECRET
    try:
        return place, asyncio.run(campaign(place, ATTACKS, place.settings))
    finally:
        del os.environ["OF_VKUBELET"]


def add_key() -> None:
    """A key of root, in a session keyring that this process shares with those that it starts from now on."""
    kernel.leave_keyring()
    number = _ADD_KEY.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, b"user", SECRET.encode(), b"x", ctypes.c_size_t(1), _SESSION_KEYRING)


def gained(scene: Scene, row: Attack) -> bool:
    return "GAINED" in scene.printed[row.name] or SECRET in scene.printed[row.name]


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: row.name)
def test_an_attack_obtains_nothing(fought: tuple[Scene, bool], row: Attack) -> None:
    scene, _ = fought
    assert not gained(scene, row), scene.printed[row.name]


def test_attacks_change_nothing_of_root_and_leave_the_victim_alive(fought: tuple[Scene, bool]) -> None:
    scene, victim_lives = fought
    assert not scene.changed() and victim_lives and os.stat(os.devnull).st_uid == 0


def test_where_privileges_may_be_gained_the_same_attacks_succeed(place: Scene) -> None:
    """So the attacks are real. In a volume set-user-ID has no effect even then; what depends on the host's `su` is left out."""
    names = {"set-user-id", "set-group-id", "file-capabilities", "set-user-id-by-exec", "set-user-id-in-host-path"}
    rows = tuple(evolve(row, security={"allowPrivilegeEscalation": True}) for row in SET_ID if row.name in names)
    asyncio.run(campaign(place, rows, evolve(place.settings, allow_privilege_escalation=True)))
    assert {row.name for row in rows if gained(place, row)} == names - {"set-user-id-in-host-path"}
