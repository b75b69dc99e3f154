"""Prepares the order for a keeper from a resolved container. Pure, except for the files it writes.

Invariant: a container's environment is the pod's, and the few variables that a container engine adds; nothing of vkubelet's own.
"""

import grp
import os
import platform
import pwd
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.quantity import Quantity
from vkubelet.beneath import Directory
from vkubelet.provider import Pod, ResolvedContainer, ResolvedPod, Unavailable
from vkubelet_providers.process.attempts import About, Attempt
from vkubelet_providers.process.cgroups import Cgroups, Limits
from vkubelet_providers.process.keeper.child import Order
from vkubelet_providers.process.keeper.mounts import Bind
from vkubelet_providers.process.local_pods import LocalPod
from vkubelet_providers.process.usage import group_of
from vkubelet_providers.process.users import Identity, asks_for_escalation
from vkubelet_providers.process.volumes import ROOT_VARIABLE, Places, binds, inside, link

_MESSAGE_PATH: Final = "/dev/termination-log"
_OF_DEV: Final = ("shm", "termination-log")
"""Names in /dev at which a pod may mount, beside those that the host does not have."""
_REAL_TIME: Final = re.compile(r"SIGRT(MIN|MAX)(?:([+-])([0-9]+))?")


@frozen(kw_only=True)
class Ways:
    """Features of this host for running processes."""

    mounts: bool
    """Whether containers have separate mounts."""
    path: str
    log_size: int
    log_files: int
    memory: int
    """Memory of the host, in bytes."""
    cgroups: Cgroups
    host_paths: Sequence[str] = ()
    privilege_escalation: bool = False
    """Whether a container that requests it may run set-user-ID programs as such."""
    start_timeout: float = 30.0

    @property
    def private(self) -> bool:
        """Whether no container needs to reach its files by the host's paths as another user than ours."""
        return self.mounts or os.getuid() != 0


def about(container: ResolvedContainer) -> About:
    return About(image=container.image, memory_limit=Limits.of(container.spec).memory)


def command_of(container: ResolvedContainer) -> list[str]:
    """Returns the command. Raises Unavailable (CreateContainerError) without one: there is no image with an entry point."""
    if not container.command:
        raise Unavailable(
            f"container {container.name}: command is missing; this node runs no images but processes of its host: give a command",
            event="Failed",
            waiting="CreateContainerError",
        )
    return [*container.command, *container.args]


def order(pod: ResolvedPod, container: ResolvedContainer, *, held: LocalPod, attempt: Attempt, who: Identity, ways: Ways) -> Order:
    """Prepares an order; the directories of `attempt` exist. Raises Unavailable, OSError."""
    spec = container.spec
    mounts = binds(
        container, Places.of(pod.pod.spec, held.volumes, host_paths=ways.host_paths), extra=_files(pod, container, held, attempt)
    )
    if ways.mounts:
        refuse_targets(mounts)
    cwd = container.working_dir or str(attempt.root)
    env = {**_given(pod, who, ways), **container.env}
    if not ways.mounts:
        link(mounts, attempt.root)
        env[ROOT_VARIABLE] = str(attempt.root)
        place = attempt.root / inside(container.working_dir).lstrip("/")
        cwd = str(place) if place.is_dir() else cwd
    group = group_of(attempt)
    return Order(
        directory=str(attempt.directory),
        command=command_of(container),
        env=env,
        cwd=cwd,
        root=str(attempt.root),
        uid=who.uid,
        gid=who.gid,
        groups=list(who.groups) if who.groups is not None else None,
        stdin=bool(spec.get("stdin")),
        stdin_once=bool(spec.get("stdinOnce")),
        tty=bool(spec.get("tty")),
        no_new_privileges=not (ways.privilege_escalation and asks_for_escalation(spec)),
        start_timeout=ways.start_timeout,
        hostname=pod.hostname,
        binds=mounts if ways.mounts else None,
        stage=str(attempt.stage),
        cgroups=ways.cgroups.join_files(held.ref.uid, group),
        keeper_cgroups=ways.cgroups.keeper_files(),
        oom_files=ways.cgroups.oom_files(held.ref.uid, group),
        oom_score=oom_score(pod.pod, spec, memory=ways.memory),
        stop_signal=stop_signal(spec),
        log_directory=str(attempt.logs),
        log_size=ways.log_size,
        log_files=ways.log_files,
    )


def refuse_targets(mounts: Sequence[Bind]) -> None:
    """Refuses mounts over the host's views of processes and devices. Raises Unavailable (RunContainerError)."""
    for one in mounts:
        _, top, *below = one["target"].split("/")
        is_free = top == "dev" and below and (below[0] in _OF_DEV or not os.path.lexists(f"/dev/{below[0]}"))
        if top in ("proc", "sys", "dev") and not is_free:
            raise Unavailable(
                f"{one['target']} cannot be mounted: it is in /{top}, which each container shares with the host; choose another path",
                event="Failed",
                waiting="RunContainerError",
            )


def _given(pod: ResolvedPod, who: Identity, ways: Ways) -> dict[str, str]:
    """Returns the defaults that a container engine adds."""
    home_of = home(who.uid if who.uid is not None else os.getuid())
    return {"PATH": ways.path, "HOME": home_of, "HOSTNAME": pod.hostname or platform.node()}


def group_of_user(uid: int) -> int | None:
    """Returns the primary group of a user on the host."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return None


def foreign_groups(uid: int, groups: Collection[int], *, allowed: Collection[int] = ()) -> set[int]:
    """Returns those that exist on the host, and belong neither to this user nor to every user."""
    known = {gid for gid in groups if gid not in allowed and _is_group(gid)}
    if not known:
        return set()
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return known
    return known - set(os.getgrouplist(user.pw_name, user.pw_gid))


def _is_group(gid: int) -> bool:
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True


def home(uid: int) -> str:
    """Returns the home directory of a user of the host; empty without one."""
    try:
        place = pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"
    return place if Path(place).is_dir() else "/"


def _files(pod: ResolvedPod, container: ResolvedContainer, held: LocalPod, attempt: Attempt) -> Mapping[str, Path]:
    """Writes files of the pod; returns them by their paths in its containers."""
    texts = {"/etc/hosts": pod.hosts, "/etc/resolv.conf": pod.resolv_conf, "/etc/hostname": f"{pod.hostname}\n" if pod.hostname else ""}
    found = {container.spec.get("terminationMessagePath") or _MESSAGE_PATH: attempt.message_file}
    with Directory.at(held.etc, make=0o755) as etc:
        for path, text in texts.items():
            if text:
                # In place: other containers of the pod have it mounted.
                etc.write(os.path.basename(path), text.encode(), mode=0o644)
                found[path] = held.etc / os.path.basename(path)
    return found


def stop_signal(container: JsonView) -> int:
    """Returns `lifecycle.stopSignal`, or SIGTERM."""
    name = (container.get("lifecycle") or {}).get("stopSignal") or "SIGTERM"
    match = _REAL_TIME.fullmatch(name)
    if match is not None:
        base = signal.SIGRTMIN if match[1] == "MIN" else signal.SIGRTMAX
        return int(base) + int(f"{match[2] or '+'}{match[3] or 0}")
    known = {each.name: int(each) for each in signal.Signals}
    return known.get(name, int(signal.SIGTERM))


def oom_score(pod: Pod, container: JsonView, *, memory: int) -> int:
    """Computes the score as the kubelet does: without requests a container is killed first, with limits equal to requests last."""
    quality = pod.status.get("qosClass", "BestEffort")
    if quality == "Guaranteed":
        return -997
    requested = ((container.get("resources") or {}).get("requests") or {}).get("memory")
    if quality == "BestEffort" or not memory:
        return 1000
    share = Quantity.parse(requested).value() * 1000 // memory if requested else 0
    return max(3, min(999, 1000 - share))


def described(fields: Sequence[str], mounts: Sequence[Bind] = ()) -> str:
    return f"a process of the host runs this container and ignores: {', '.join(fields)}; remove these fields, or use a node with containers"
