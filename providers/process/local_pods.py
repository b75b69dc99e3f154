"""LocalPods of this node: their directories, and the keepers of their containers, which are watched from here.

Invariant: everything known of a container is on the disk; nothing is started here, and nothing is dropped except by `remove`.
"""

import asyncio
import json
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import define, field

from vkubelet.beneath import Directory, real
from vkubelet.clock import Clock
from vkubelet.logformat import bind
from vkubelet.provider import ContainerReport, NoSuchContainer, PodRef, PodReport, Terminated, Unavailable
from vkubelet_providers.process import keepers, machine
from vkubelet_providers.process.attempts import Attempt, State, as_running, session_of
from vkubelet_providers.process.cgroups import Cgroups
from vkubelet_providers.process.keeper.mounts import unmount
from vkubelet_providers.process.threads import in_thread
from vkubelet_providers.process.usage import group_of

log = logging.getLogger(__name__)

_REF: Final = "pod.json"
_REMOVED: Final = "."
"""First character of the name of a directory while it is removed."""
_STARTING_SECONDS, _STOPPING_SECONDS, _LOOK_SECONDS = 20.0, 30.0, 0.02
_PATIENCE: Final = 10.0
"""Seconds that a keeper has to terminate its container when it is asked to do so at once."""


@define
class Container:
    """One container of a pod, as it was started last; `last` is its previous termination."""

    attempt: Attempt
    state: State
    last: Terminated | None = None
    _descriptor: int = -1

    @property
    def runs(self) -> bool:
        return not self.state.finished


@define
class LocalPod:
    """One pod."""

    ref: PodRef
    directory: Path
    containers: dict[str, Container] = field(factory=dict)

    @property
    def files(self) -> Path:
        return self.directory / "files"

    @property
    def volumes(self) -> Path:
        return self.files / "volumes"

    @property
    def etc(self) -> Path:
        return self.directory / "etc"

    def guard(self, *, private: bool) -> None:
        """Restricts access to us where containers reach volumes by their mounts alone, or run as our own user. Raises OSError."""
        with Directory.at(self.directory) as place:
            for path, mode in ((self.files, 0o700 if private else 0o711), (self.etc, 0o755)):
                place.make(path.name, mode).close()
                place.change(path.name, mode=mode)

    def attempts(self, container: str) -> list[Attempt]:
        """Returns the attempts of one container on the disk, oldest first."""
        numbers = sorted(int(name) for name in _names(self.directory / "containers" / container) if name.isdigit())
        return [self.attempt(container, number) for number in numbers]

    def attempt(self, container: str, number: int) -> Attempt:
        return Attempt(self.directory / "containers" / container / str(number), container, number)

    def names(self) -> list[str]:
        """Returns the containers that were ever started."""
        return _names(self.directory / "containers")


class LocalPods:
    """The pods of this node; `on_terminated` is called with every container that terminates by itself."""

    def __init__(
        self, directory: Path, *, cgroups: Cgroups, clock: Clock, address: str, on_terminated: Callable[[PodReport], None]
    ) -> None:
        self._directory = directory
        self._cgroups = cgroups
        self._clock = clock
        self._address = address
        self._on_terminated = on_terminated
        self._pods: dict[str, LocalPod] = {}

    def __iter__(self) -> Iterator[LocalPod]:
        return iter(list(self._pods.values()))

    def get(self, uid: str) -> LocalPod | None:
        return self._pods.get(uid)

    async def hold(self, ref: PodRef) -> LocalPod:
        """Returns the pod, creating its directory. Raises OSError."""
        known = self._pods.get(ref.uid)
        if known is not None:
            return known
        directory = self._directory / ref.uid
        await in_thread(self._make, ref, directory)
        return self._pods.setdefault(ref.uid, LocalPod(ref, directory))

    def _make(self, ref: PodRef, directory: Path) -> None:
        with Directory.at(directory, make=0o711) as place:
            # Users of containers must reach their working directory, and need not see more.
            place.change(mode=0o711)
            values = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid, "node": ref.node}
            # On the disk before anything runs: a pod whose name is missing would not be found again after a power failure.
            place.store(_REF, json.dumps(values).encode(), mode=0o600, sync=True)

    def report(self, held: LocalPod) -> PodReport:
        containers = [self._report(name, each, held) for name, each in held.containers.items()]
        return PodReport(held.ref, containers, (self._address,))

    def _report(self, name: str, one: Container, held: LocalPod) -> ContainerReport:
        state = as_running(one.state) if one.runs else one.attempt.terminated(one.state)
        identifier = f"process://{held.ref.uid}.{group_of(one.attempt)}"
        return ContainerReport(name, state, id=identifier, restarts=one.attempt.number, last=one.last)

    # --- adopting ---

    async def load(self) -> None:
        """Adopts everything on the disk, and starts nothing. Raises OSError."""
        with Directory.at(self._directory, make=0o711) as top:
            top.change(mode=0o711)
            places = [self._directory / name for name in top.names()]
        for place in places:
            is_removed = place.name.startswith(_REMOVED)
            held = None if is_removed else _read_held(place)
            if held is None:
                if not is_removed and _has_run(place):
                    # It continues, and is found again when it is to be started.
                    with bind(uid=place.name):
                        log.warning("record of a pod cannot be read")
                else:
                    # Its creation, before anything ran, or its removal was interrupted.
                    await in_thread(erase, place)
                continue
            self._pods[held.ref.uid] = held
            for name in held.names():
                try:
                    await self.adopt(held, name)
                except Unavailable as error:
                    # When it is to be started, it is checked again.
                    with bind(uid=place.name, container=name, error=str(error)):
                        log.warning("container not adopted yet")

    async def adopt(self, held: LocalPod, name: str) -> Container | None:
        """Returns the container as it was started last, watched from now on; None when it never ran."""
        for attempt in reversed(held.attempts(name)):
            state = await self._settled(attempt)
            if state is not None:
                self.unwatch(held, name)
                one = held.containers[name] = Container(attempt, state, self._last(held, attempt))
                if one.runs:
                    self._watch(held, one)
                return one
            await in_thread(erase, attempt.directory)
        return None

    async def _settled(self, attempt: Attempt) -> State | None:
        """Returns the state on the disk, once a keeper that is just being started has written one."""
        deadline = self._clock.monotonic() + _STARTING_SECONDS
        while (state := attempt.state()) is None and attempt.is_kept():
            if self._clock.monotonic() > deadline:
                raise Unavailable(f"container {attempt.container}: its keeper does not respond")
            await self._clock.sleep(_LOOK_SECONDS)
        return state or attempt.state()

    def _last(self, held: LocalPod, attempt: Attempt) -> Terminated | None:
        before = [each for each in held.attempts(attempt.container) if each.number < attempt.number]
        state = before[-1].state() if before else None
        return before[-1].terminated(state) if state is not None and state.finished else None

    # --- watching ---

    def _watch(self, held: LocalPod, one: Container) -> None:
        """Watches for the exit of its keeper. The lock proves that the number is still the keeper's."""
        try:
            descriptor = os.pidfd_open(one.state.keeper)
        except ProcessLookupError:
            descriptor = -1
        if descriptor < 0 or not one.attempt.is_kept():
            if descriptor >= 0:
                os.close(descriptor)
            self._take_end(held, one, just_now=False)
            return
        one._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._keeper_ended, held, one)

    def _keeper_ended(self, held: LocalPod, one: Container) -> None:
        with suppress(ChildProcessError):
            # Only as the first process of a PID namespace are orphans our children.
            os.waitid(os.P_PIDFD, one._descriptor, os.WEXITED | os.WNOHANG)
        self._unwatch(one)
        self._take_end(held, one, just_now=True)
        if held.containers.get(one.attempt.container) is one and held.ref.uid in self._pods:
            self._on_terminated(self.report(held))

    def _take_end(self, held: LocalPod, one: Container, *, just_now: bool) -> None:
        try:
            state = one.attempt.state() or one.state
        except Unavailable:
            state = one.state
        if not state.finished:
            self._end_leftovers(held.ref.uid, one.attempt, state, just_now=just_now)
            state = one.attempt.give_up(state, finished=round(self._clock.now().timestamp() * 1e9))
            with bind(pod=held.ref.name, namespace=held.ref.namespace, container=one.attempt.container):
                log.warning("keeper of a container has disappeared")
        one.state = state
        self._cgroups.remove(held.ref.uid, group_of(one.attempt))

    def _end_leftovers(self, uid: str, attempt: Attempt, state: State, *, just_now: bool) -> None:
        for pid in session_of(state, just_now=just_now):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._cgroups.kill(uid, group_of(attempt))

    def unwatch(self, held: LocalPod, name: str) -> None:
        if name in held.containers:
            self._unwatch(held.containers[name])

    def _unwatch(self, one: Container) -> None:
        if one._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(one._descriptor)
            os.close(one._descriptor)
            one._descriptor = -1

    def close(self) -> None:
        """Stops watching; everything continues."""
        for held in self:
            for name in held.containers:
                self.unwatch(held, name)

    # --- removal ---

    def prune(self, held: LocalPod, name: str) -> Sequence[Path]:
        """Returns attempts older than the one before the last."""
        return [each.directory for each in held.attempts(name)[:-2]]

    async def remove(self, uid: str) -> None:
        """Removes everything of a pod, even if another process started it. Raises Unavailable when something remains."""
        place = self._directory / uid
        held = self._pods.get(uid) or LocalPod(PodRef(namespace="", name="", uid=uid, node=""), place)
        if place.is_dir():
            for name in held.names():
                for attempt in held.attempts(name):
                    await self._end(uid, attempt)
                self.unwatch(held, name)
        deadline = self._clock.monotonic() + _STOPPING_SECONDS
        while self._cgroups.kill(uid) or not self._cgroups.remove(uid):
            if self._clock.monotonic() > deadline:
                raise Unavailable(f"pod {uid}: processes still run after SIGKILL")
            await self._clock.sleep(_LOOK_SECONDS)
        await in_thread(erase, place)
        self._pods.pop(uid, None)

    async def _end(self, uid: str, attempt: Attempt) -> None:
        """Terminates one attempt. Raises Unavailable."""
        begin = self._clock.monotonic()
        asked, was_kept = False, attempt.is_kept()
        while attempt.is_kept():
            if not asked:
                # One that is just being started does not listen yet.
                with suppress(NoSuchContainer, Unavailable):
                    await keepers.stop(attempt.directory, 0, patience=_PATIENCE)
                    asked = True
            waited = self._clock.monotonic() - begin
            if waited > _PATIENCE:
                # It hangs, or is stopped by a signal.
                attempt.kill_keeper()
            if waited > _STOPPING_SECONDS:
                raise Unavailable(f"container {attempt.container} still runs after SIGKILL")
            await self._clock.sleep(_LOOK_SECONDS)
        state = attempt.state()
        if state is not None and not state.finished:
            self._end_leftovers(uid, attempt, state, just_now=was_kept)


def _read_held(place: Path) -> LocalPod | None:
    """Reads the record of a pod; None for a directory without one. Raises OSError."""
    try:
        with Directory.at(place) as found:
            known = json.loads(found.read(_REF))
        # A later version may have written more.
        return LocalPod(PodRef(**{name: known[name] for name in ("namespace", "name", "uid", "node")}), place)
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        return None


def _has_run(place: Path) -> bool:
    return any(_names(place / "containers" / name) for name in _names(place / "containers"))


def _names(place: Path) -> list[str]:
    """Returns the entries of a directory that may be missing."""
    try:
        with Directory.at(place) as found:
            return found.names()
    except (FileNotFoundError, NotADirectoryError):
        return []


def erase(place: Path) -> None:
    """Removes a directory with its mounts and everything in it; it is renamed first, so that half of it is never found. Raises OSError."""
    for top in _mounted_below(place):
        unmount(top)
    with Directory.at(place.parent) as above:
        if above.has(place.name):
            going = f"{_REMOVED}{secrets.token_hex(8)}"
            above.move(place.name, going)
            above.remove(going)


def _mounted_below(place: Path) -> list[str]:
    """Returns the mount points, deepest first."""
    top = f"{real(place)}/"
    return sorted((point for point in machine.mount_points() if point.startswith(top)), key=len, reverse=True)
