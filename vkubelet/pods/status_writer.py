"""Status writer: publishes the latest status of each pod. Providers report here without waiting.

Invariant: a status reaches exactly the incarnation of the pod that it describes, at most one write per pod is in flight, and a status that
is already published, or terminal, is not written again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import define, evolve, field

from vkubelet.api.objects import PODS, Json, JsonView, Pod, PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.errors import Conflict, Invalid, NotFound
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.pods.desired_status import StatusInputs, desired_status, gates
from vkubelet.pods.dispatch import PodCache
from vkubelet.pods.status import End, redact_status, status_patch
from vkubelet.provider import PodReport, Waiting

log = logging.getLogger(__name__)

MERGE = 0.05
"""Seconds a change waits for others of the same pod, unless it may make the pod terminal (rule `no-intent-write`)."""

STALE = 5.0
"""Seconds after a conflict until the pod is checked again if the watch has not delivered the newer version by then."""

UNCLAIMED = 10_000
"""Statuses kept for pods that the watch has not delivered yet; above this number the oldest are dropped."""


@define
class _Entry:
    inputs: StatusInputs = field(factory=StatusInputs)
    written: Pod | None = None
    """Response to the last write, kept as long as the watch delivers an older version."""
    cause: object = None
    """State that caused the last write; a difference with the same cause was made by another client."""
    refused: tuple[Json, JsonView] | None = None
    """Desired value and the value that the server stored instead, when it stores a field differently from what was sent."""
    repair_at: float = 0.0
    since: float | None = None
    published: tuple[str, StatusInputs] | None = None
    """The resourceVersion whose status equals the desired status."""

    def latest(self, pod: Pod) -> Pod:
        """Returns the newest known version: the one of the watch, or the response to the last write."""
        if self.written is not None and _version(self.written) <= _version(pod):
            self.written = None
        return self.written or pod

    def is_published(self, pod: Pod) -> bool:
        """Checks that nothing has changed since this version was written, even if the watch delivered it before the response arrived."""
        return self.published is not None and self.published == (pod.metadata.resource_version, self.inputs)


def _version(pod: Pod) -> int:
    """Parses a resourceVersion: those of one resource type compare as integers (API concepts, "Resource versions")."""
    text = pod.metadata.resource_version
    return int(text) if text.isdigit() else 0


@define(kw_only=True, eq=False)
class StatusWriter:
    """Status writer of all pods."""

    _pods: PodCache
    _node_client: Callable[[str], Client]
    _node_ips: Callable[[str], Sequence[str]]
    _clock: Clock
    _metrics: Metrics | None = None
    _record_version: Callable[[str], None] = lambda version: None
    """`record_version(version)` compares the resourceVersion of a write with those that the watch receives later."""
    _redact: Callable[[str, str], str] = lambda uid, text: text
    """`redact(uid, text)` removes values that must not be published about a pod."""
    controller: Controller[str] = field(init=False)
    _terminal_listeners: list[Callable[[str], None]] = field(factory=list, init=False)
    _entries: dict[str, _Entry] = field(factory=dict, init=False)
    _unclaimed: dict[str, None] = field(factory=dict, init=False)
    _repairs: Backoff = field(factory=partial(Backoff, first=1.0, limit=60.0), init=False)

    def __attrs_post_init__(self) -> None:
        self.controller = Controller("pod-status", self._reconcile, workers=32, clock=self._clock, metrics=self._metrics)

    def on_terminal(self, listener: Callable[[str], None]) -> None:
        """Registers `listener(uid)`, called when the API server has accepted a terminal phase."""
        self._terminal_listeners.append(listener)

    # --- inputs of the desired status; none of these waits or fails ---

    def report(self, report: PodReport) -> None:
        """Records the states of all containers of a pod."""
        self._change(report.pod.uid, lambda inputs: inputs.with_report(report))

    def set_pod_status(self, ref: PodRef, status: JsonView, annotations: Mapping[str, str] | None = None) -> None:
        """Records a complete PodStatus; `annotations` are set by the same write."""
        self._change(ref.uid, lambda inputs: inputs.with_status(status, annotations))

    def sync_failed(self, uid: str, waiting: Waiting) -> None:
        """Records that the pod cannot start, or follow a change, for now; published only until the provider has reported the pod itself."""
        self._change(uid, lambda inputs: inputs if inputs.report or inputs.status is not None else evolve(inputs, waiting=waiting))

    def synced(self, uid: str, generation: int) -> None:
        """Records that the backend has applied the spec of this generation."""
        self._change(uid, lambda inputs: evolve(inputs, generation=max(generation, inputs.generation), waiting=None))

    def observed(self, uid: str, generation: int) -> None:
        """Records that the backend acts on this generation, which is that of a deletion."""
        self._change(uid, lambda inputs: evolve(inputs, generation=max(generation, inputs.generation)))

    def end(self, uid: str, end: End) -> None:
        """Makes the pod terminal; the first recorded reason is kept."""
        self._change(uid, lambda inputs: inputs if inputs.end else evolve(inputs, end=end))

    def remove(self, uid: str) -> None:
        """Drops a pod that neither the API nor the backend has any more."""
        self._entries.pop(uid, None)
        self._unclaimed.pop(uid, None)
        self._repairs.reset(uid)
        self.controller.discard(uid)

    def annotations(self, uid: str) -> Mapping[str, str]:
        """Returns the annotations that the runtime set on a pod: they do not count as a change of the pod."""
        entry = self._entries.get(uid)
        return entry.inputs.annotations if entry is not None else {}

    def terminal(self, pod: Pod) -> bool:
        """Checks whether the API has a terminal phase for this pod, even if the watch has not delivered it yet."""
        entry = self._entries.get(pod.metadata.uid)
        return pod.terminal or (entry is not None and entry.latest(pod).terminal)

    def observe(self, change: Change[Pod]) -> None:
        """Handles a change of a pod: publishes what was waiting for it, or repairs what another client changed."""
        pod = change.new
        if pod is None:
            return
        uid = pod.metadata.uid
        self._unclaimed.pop(uid, None)
        entry = self._entries.get(uid)
        if entry is None:
            return
        if change.restored:
            # What was written since the backup is lost, and its resourceVersion will be given to other changes.
            entry.written = entry.published = None
        if entry.written is not None and _version(entry.written) >= _version(pod):
            # Once the watch has caught up, one copy of the pod is enough.
            entry.latest(pod)
            return
        self.controller.add(uid)

    def _change(self, uid: str, change: Callable[[StatusInputs], StatusInputs]) -> None:
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = _Entry()
            self._keep_few_unclaimed(uid)
        inputs = change(entry.inputs)
        if inputs == entry.inputs:
            return
        entry.inputs = inputs
        if inputs.silent:
            return
        entry.since = entry.since if entry.since is not None else self._clock.monotonic()
        self.controller.add(uid, after=0.0 if inputs.urgent else MERGE)

    def _keep_few_unclaimed(self, uid: str) -> None:
        if self._pods.by_uid(uid) is not None:
            return
        self._unclaimed[uid] = None
        if len(self._unclaimed) > UNCLAIMED:
            self.remove(next(iter(self._unclaimed)))

    # --- writing ---

    async def _reconcile(self, uid: str) -> float | None:
        # On a loaded machine one turn of the loop takes longer than MERGE; what others report in this turn belongs to the same write.
        await self._clock.sleep(0)
        entry, pod = self._entries.get(uid), self._pods.by_uid(uid)
        if entry is None or pod is None:
            return None
        pod = entry.latest(pod)
        if entry.is_published(pod):
            return None
        wanted = desired_status(pod, entry.inputs, now=self._clock.now(), host_ips=self._node_ips(pod.node))
        if wanted is not None:
            redact_status(wanted, partial(self._redact, uid))
        patch = self._patch(pod, entry, wanted) if wanted is not None else None
        if wanted is None or patch is None:
            entry.since = None
            return None
        cause = (entry.inputs, pod.terminating, tuple(gates(pod)))
        repair = cause == entry.cause
        if repair and (wait := entry.repair_at - self._clock.monotonic()) > 0:
            return wait
        with bind(node=pod.node, pod=str(pod.key), uid=pod.metadata.uid):
            wait_for_watch = await self._write(pod, entry, wanted=wanted, patch=patch)
        if wait_for_watch is None:
            entry.cause = cause
            entry.repair_at = self._next_repair(uid, repair)
        return wait_for_watch

    def _patch(self, pod: Pod, entry: _Entry, wanted: Json) -> Json | None:
        published = pod.metadata.annotations
        annotations = {key: value for key, value in entry.inputs.annotations.items() if published.get(key) != value}
        status = pod.status
        if not annotations and entry.refused == (wanted, status):
            return None
        meta = pod.metadata
        return status_patch(status, wanted, uid=meta.uid, resource_version=meta.resource_version, annotations=annotations)

    def _next_repair(self, uid: str, repair: bool) -> float:
        """Returns when the next repair is due, with back-off: two clients that disagree must not overwrite each other at full speed."""
        if not repair:
            self._repairs.reset(uid)
            return 0.0
        return self._clock.monotonic() + self._repairs.next(uid)

    async def _write(self, pod: Pod, entry: _Entry, *, wanted: Json, patch: Json) -> float | None:
        """Writes the status; returns the seconds to wait for the watch if another client was faster, or None when it is written."""
        uid, inputs = pod.metadata.uid, entry.inputs
        try:
            answer = await self._node_client(pod.node).patch(PODS, pod.ref, patch, subresource="status")
        except NotFound:
            return STALE
        except (Conflict, Invalid) as error:
            if isinstance(error, Invalid) and "metadata.uid" not in error.causes:
                raise
            log.debug("pod changed since it was read; its status is computed again")
            return STALE
        entry.written = answer
        left = status_patch(answer.status, wanted, uid=uid, resource_version="")
        entry.refused = (wanted, answer.status) if left is not None else None
        entry.published = (answer.metadata.resource_version, inputs) if left is None else None
        self._record_version(answer.metadata.resource_version)
        self._measure(entry, inputs, pod.node)
        if answer.terminal:
            for listener in self._terminal_listeners:
                listener(uid)
        return None

    def _measure(self, entry: _Entry, inputs: StatusInputs, node: str) -> None:
        now = self._clock.monotonic()
        if entry.since is not None and self._metrics is not None:
            self._metrics.status_lag_seconds.observe(now - entry.since)
            self._metrics.pod_status.observe(node, "", now - entry.since)
        entry.since = None if entry.inputs == inputs else now
