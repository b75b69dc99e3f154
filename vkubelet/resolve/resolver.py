"""`Host.resolve`: reads everything a pod references, writes its volumes, and keeps them up to date.

Invariant: a pod's files change only through its record here, one change at a time, and never after its record is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from attrs import define, evolve, field

from vkubelet.api.objects import PODS, SERVICES, JsonView, Node, Pod, Unknown
from vkubelet.api.podspec import Kind, Reference, environment_references, file_references, pull_secrets
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, in_batches, steps
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.control.store import Store
from vkubelet.control.workqueue import Priority
from vkubelet.errors import ApiError, Unavailable
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.provider import PullSecret, ResolvedPod
from vkubelet.resolve import assembly
from vkubelet.resolve.downward import Facts
from vkubelet.resolve.environment import MASTER_NAMESPACE, Environment, service_variables
from vkubelet.resolve.names import Names
from vkubelet.resolve.objects import RENEW, Name, ObjectCache, TokenCache
from vkubelet.resolve.redaction import redacted
from vkubelet.resolve.references import Absence, Content, MissingReferenceError, all_references
from vkubelet.resolve.volumes import Tokens, token_sources

log = logging.getLogger(__name__)

_SERVICES_PATIENCE: Final = 5.0
_AT_LEAST: Final = 1.0
"""Seconds between two checks of a pod's volumes."""
_OVERDUE: Final = 20.0
"""Seconds until a token that could not be renewed in time is requested again."""


@define
class _Record:
    """Record of a pod between two calls; `seen` are the sources of its environment, `reported` the last event message of each trouble."""

    pod: Pod
    files: Path | None = None
    pod_ips: Sequence[str] = ()
    seen: dict[Reference, Content] = field(factory=dict, repr=False)
    reported: dict[str, str] = field(factory=dict)
    waiting: bool = False
    lock: asyncio.Lock = field(factory=asyncio.Lock)


@define(kw_only=True, eq=False)
class Resolver:
    """Resolver for all pods of a process. `pod` returns a pod as last observed, `wake` makes the runtime retry what failed for it."""

    client: Client
    node_client: Callable[[str], Client]
    recorder: Recorder
    clock: Clock
    node: Callable[[str], Node | None]
    node_ips: Callable[[str], Sequence[str]]
    pod: Callable[[str], Pod | None]
    names: Callable[[], Names]
    wake: Callable[[str], None]
    metrics: Metrics | None = None
    controller: Controller[str] = field(init=False)
    _records: dict[str, _Record] = field(init=False, factory=dict)
    _objects: ObjectCache = field(init=False)
    _tokens: TokenCache = field(init=False)
    _services: Informer[Unknown] = field(init=False)
    _services_wanted: asyncio.Event = field(init=False, factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self._objects = ObjectCache(clock=self.clock, changed=self._object_changed)
        self._tokens = TokenCache(self.clock)
        store: Store[Unknown] = Store(indexes={"namespace": lambda service: [service.metadata.namespace]})
        self._services = Informer(self.client, SERVICES, store=store, clock=self.clock, metrics=self.metrics)
        self.controller = Controller("pod-files", self._refresh, workers=8, clock=self.clock, metrics=self.metrics)

    async def run(self) -> None:
        """Watches what pods use, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run(), name="objects of pods")
            group.create_task(self.controller.run(), name="files of pods")
            group.create_task(self._watch_clock(), name="wall clock")
            await self._services_wanted.wait()
            await self._services.run()

    # --- input; nothing here waits ---

    def observe(self, change: Change[Pod]) -> None:
        """Handles a change of a pod: files may show its labels, annotations and resources. A terminal pod does not read them any more."""
        old, new = change.old, change.new
        if old is None or new is None or new.metadata.uid not in self._records:
            return
        if new.terminal:
            self.release(new.metadata.uid)
        elif _shown(old) != _shown(new):
            self.controller.add(new.metadata.uid)

    def release(self, uid: str) -> None:
        """Drops a pod of which nothing is left."""
        if self._records.pop(uid, None) is not None:
            self._objects.release(uid)
            self._tokens.forget(uid)
            self.controller.discard(uid)

    def forget(self, node: str) -> None:
        """Drops a node that this process no longer serves."""
        for uid in [uid for uid, record in self._records.items() if record.pod.node == node]:
            self.release(uid)

    def _object_changed(self, uid: str) -> None:
        record = self._records.get(uid)
        if record is None:
            return
        self.controller.add(uid)
        if record.waiting:
            self.wake(uid)

    def redacted(self, uid: str, text: str) -> str:
        """Returns the text without values of the Secrets in the pod's environment, such as in an error that quotes a command."""
        record = self._records.get(uid)
        return redacted(text, {value for content in record.seen.values() for value in content.secrets()}) if record is not None else text

    # --- one pod ---

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        """Resolves a pod; see `vkubelet.provider.Host.resolve`."""
        uid = pod.metadata.uid
        record = self._records.setdefault(uid, _Record(pod))
        async with record.lock:
            if uid not in self._records:
                raise Unavailable("the pod was deleted")
            record.pod, record.pod_ips = pod, pod_ips or record.pod_ips
            record.files = files if files is not None else record.files
            record.waiting = True
            resolved = await self._resolve(record, containers)
            record.waiting = False
            record.reported = {trouble: text for trouble, text in record.reported.items() if "Mandatory" not in trouble}
        wait = self._next_check(record)
        if wait is not None and uid in self._records:
            self.controller.add(uid, after=wait, priority=Priority.LOW)
        return resolved

    async def _resolve(self, record: _Record, chosen: Collection[str] | None) -> ResolvedPod:
        pod, facts = record.pod, self._facts(record)
        references = all_references(facts.spec, volumes=record.files is not None)
        self._objects.hold(pod.metadata.uid, [self._name(pod, reference) for reference in references])
        if record.files is not None:
            for volume in assembly.make_volumes(facts.spec, record.files):
                await self._fill(record, volume, facts)
        secrets = await self._pull_secrets(record, facts)
        read = assembly.Read(services=await self._service_variables(facts), names=self.names())
        environments: dict[str, Environment] = {}
        for container in assembly.select(facts.spec, chosen):
            # Containers about to be started need the current objects; for a repeated check of a pod, those it was started with are enough.
            environments[container["name"]] = await self._environment(record, container, facts, read, lenient=chosen is None)
        return evolve(assembly.assemble(pod, facts, read=read, chosen=environments, files=record.files), pull_secrets=secrets)

    def _facts(self, record: _Record) -> Facts:
        node = self.node(record.pod.node)
        return Facts.of(
            record.pod,
            pod_ips=record.pod_ips,
            host_ips=self.node_ips(record.pod.node),
            allocatable=(node.status.get("allocatable") or {}) if node is not None else {},
        )

    def _name(self, pod: Pod, reference: Reference) -> Name:
        return Name(self.node_client(pod.node), pod.metadata.namespace, reference)

    async def _read(self, pod: Pod, references: Iterable[Reference]) -> dict[Reference, Content | None]:
        """Reads these objects. Raises ApiError, ValueError."""
        return {reference: await self._objects.content(self._name(pod, reference)) for reference in dict.fromkeys(references)}

    # --- environment ---

    async def _environment(self, record: _Record, container: JsonView, facts: Facts, read: assembly.Read, *, lenient: bool) -> Environment:
        objects: dict[Reference, Content | None] = {}
        for reference in environment_references(container):
            try:
                objects |= await self._read(record.pod, [reference])
            except (ApiError, ValueError) as error:
                self._warn(record, f"FailedToReadMandatory{reference.kind.value}", _message_of(error))
                raise assembly.config_error(_message_of(error)) from error
        while True:
            try:
                made = assembly.variables(container, facts, evolve(read, objects=objects))
                break
            except MissingReferenceError as error:
                missing = error.absence.reference
                before = record.seen.get(missing) if lenient else None
                if before is None or before == objects[missing]:
                    self._warn(record, error.absence.reason, str(error.absence))
                    raise assembly.config_error(str(error)) from error
                objects[missing] = before
        record.seen |= {reference: content for reference, content in objects.items() if content is not None}
        for absence in made.absent:
            self._tell_absent(record, absence)
        return made

    async def _service_variables(self, facts: Facts) -> dict[str, str]:
        """Returns the variables of Services. Raises Unavailable until Services were read once."""
        self._services_wanted.set()
        if not self._services.ever_synced:
            try:
                async with asyncio.timeout(_SERVICES_PATIENCE):
                    await self._services.wait_synced()
            except TimeoutError as error:
                text = "services have not yet been read at least once, cannot construct envvars"
                raise assembly.config_error(text) from error
        namespaces = dict.fromkeys([MASTER_NAMESPACE, facts.meta.namespace])
        services = [service.body for namespace in namespaces for service in self._services.store.by_index("namespace", namespace)]
        links = facts.spec.get("enableServiceLinks", True)
        return service_variables(services, namespace=facts.meta.namespace, links=links)

    async def _pull_secrets(self, record: _Record, facts: Facts) -> tuple[PullSecret, ...]:
        """Returns existing pull secrets: an image may be available without the others."""
        found: list[PullSecret] = []
        missing: list[str] = []
        for name in pull_secrets(facts.spec):
            reference = Reference(Kind.SECRET, name)
            try:
                secret = assembly.pull_secret(name, (await self._read(record.pod, [reference]))[reference])
            except (ApiError, ValueError):
                secret = None
            found += [secret] if secret is not None else []
            missing += [name] if secret is None else []
        if missing:
            names = ", ".join(missing)
            text = f"Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
            self._warn(record, "FailedToRetrieveImagePullSecret", text)
        return tuple(found)

    # --- volumes ---

    async def _fill(self, record: _Record, volume: JsonView, facts: Facts) -> None:
        """Updates a volume. Raises Unavailable when it was never complete; later it stays unchanged until it can be updated again."""
        name, pod, files = volume["name"], record.pod, record.files
        assert files is not None
        try:
            try:
                objects = await self._read(pod, file_references(volume))
                tokens = await self._issue(pod, volume)
            except (ApiError, ValueError) as error:
                raise assembly.mount_error(name, _message_of(error), facts.spec) from error
            if pod.metadata.uid in self._records:
                assembly.fill_volume(volume, facts, files, objects=objects, tokens=tokens)
        except Unavailable as error:
            if not assembly.is_filled(volume, files):
                raise
            self._warn(record, f"FailedMount {name}", str(error))
            return
        record.reported.pop(f"FailedMount {name}", None)

    async def _issue(self, pod: Pod, volume: JsonView) -> Tokens:
        """Issues the tokens of a volume. Raises ValueError."""
        try:
            return await self._tokens.read(pod, token_sources(volume), self.node_client(pod.node))
        except ApiError as error:
            raise ValueError(f"failed to fetch token: {_message_of(error)}") from error

    async def _watch_clock(self) -> None:
        """Rechecks tokens after the wall clock was set: a wait until they are due does not notice that."""
        async for _ in steps(self.clock):
            async for uid in in_batches(self.clock, self._records):
                self.controller.add(uid, priority=Priority.LOW)

    async def _refresh(self, uid: str) -> float | None:
        """Updates the volumes of a pod; returns the seconds until the next time."""
        record = self._records.get(uid)
        if record is None or record.files is None:
            return None
        async with record.lock:
            record.pod = self.pod(uid) or record.pod
            facts = self._facts(record)
            with bind(pod=str(record.pod.key), uid=uid):
                for volume in assembly.written_volumes(facts.spec):
                    # A missing root was removed by the provider, or is created by `resolve`.
                    if assembly.is_filled(volume, record.files):
                        await self._fill(record, volume, facts)
        return self._next_check(record)

    def _next_check(self, record: _Record) -> float | None:
        uid = record.pod.metadata.uid
        if record.files is None or not assembly.written_volumes(record.pod.spec):
            return None
        due = self._tokens.due_in(uid)
        due = _OVERDUE if due is not None and due <= 0 else due
        waits = [wait for wait in (due, None if self._objects.watched(uid) else RENEW) if wait is not None]
        return max(_AT_LEAST, min(waits)) if waits else None

    # --- events ---

    def _warn(self, record: _Record, trouble: str, message: str) -> None:
        """Emits a warning, once for each message of this trouble."""
        if record.reported.get(trouble) == message:
            return
        record.reported[trouble] = message
        self.recorder.event(ObjectReference.of(PODS, record.pod), trouble.split()[0], message, warning=True)

    def _tell_absent(self, record: _Record, absence: Absence) -> None:
        key = f"{absence.reason} {absence.reference.name} {absence.key}"
        self._warn(record, key, str(absence))


def _message_of(error: Exception) -> str:
    """Returns the API server's own message, if there is one; else the attempted operation is part of it."""
    return error.message if isinstance(error, ApiError) and error.status else str(error)


def _shown(pod: Pod) -> tuple[object, ...]:
    return pod.metadata.labels, pod.metadata.annotations, pod.spec_json
