"""Pod lifecycle controller: syncs each pod to the provider, terminates it in the backend, and deletes its API object last.

Invariant: calls for one UID never overlap, a deletion cancels a running sync first, and every pod is tracked by its UID until neither the
API nor the backend has it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from attrs import define, field

from vkubelet.api.compact import shared
from vkubelet.api.objects import PODS, Pod, PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_timeout
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.control.workqueue import Priority
from vkubelet.errors import NoSuchPod, NotAdmitted, NotFound, PodRejected, Unavailable, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.pods.decisions import ORPHAN_GRACE, Content, PodRecord, Situation, Step, concerns, next_step
from vkubelet.pods.dispatch import Dispatch
from vkubelet.pods.slots import Slots
from vkubelet.pods.status import End
from vkubelet.pods.status_writer import StatusWriter
from vkubelet.provider import Provider, Waiting
from vkubelet.provider.admission import Admission

log = logging.getLogger(__name__)

IN_FLIGHT = 200
"""Maximum number of syncs running in the provider at the same time; a slow one does not block the others."""

WORKERS = 2000
"""More workers than syncs, and a pod that waits for its sync occupies none, so that deletions continue while the provider hangs in all
syncs."""

FINAL_STATUS = 10.0
"""Seconds for the final status to be accepted; after that the API object is deleted without it."""

TERMINATE_AGAIN = 10.0
"""Seconds until a failed `delete_pod` is retried at the latest, as a kubelet does: a user waits for it."""

CONFIRM_AGAIN = 5.0
"""Seconds until a pod that a list missed, but that exists, is checked again."""

_TERMINATED = End("Terminated", "Pod was terminated in response to imminent node shutdown.", failed=True, disrupts=True)
_NOT_ADMITTED = "Pod was rejected: "
"""Prefix of the reason in the message of a pod that was not admitted; its event has the reason alone (rejectPod)."""
_REFUSED = End("NodeShutdown", f"{_NOT_ADMITTED}Pod was rejected as the node is shutting down.", failed=True)

MISSING_EARLY = 1000
"""Number of reports of missing workloads kept for pods that the watch has not delivered yet."""


@define(kw_only=True, eq=False)
class Lifecycle:
    """Lifecycle controller of all pods; `on_drop(node)` is called when a pod of that node is dropped."""

    _provider: Provider
    _dispatch: Dispatch
    _status_writer: StatusWriter
    _node_client: Callable[[str], Client]
    _recorder: Recorder
    _clock: Clock
    _on_drop: Callable[[str], None]
    _metrics: Metrics | None = None
    _admission: Admission | None = None
    """None: the provider admits or rejects pods itself."""
    controller: Controller[str] = field(init=False)
    slots: Slots = field(init=False)
    _records: dict[str, PodRecord] = field(factory=dict, init=False)
    _by_node: dict[str, dict[str, None]] = field(factory=dict, init=False)
    """UIDs by node, in the order in which the pods were observed."""
    _missing_early: dict[str, None] = field(factory=dict, init=False)
    _working: bool = field(default=False, init=False)
    _round: int = field(default=0, init=False)
    """Number of starts of the provider: a call that started before the last of them is repeated."""

    def __attrs_post_init__(self) -> None:
        self.controller = Controller("pods", self._reconcile, workers=WORKERS, clock=self._clock, metrics=self._metrics)
        self.slots = Slots(IN_FLIGHT, wake=lambda uid, priority: self.controller.add(uid, priority=priority))
        self._status_writer.on_terminal(self.requeue)

    async def run(self) -> None:
        """Runs the controller until cancelled."""
        self._working = True
        try:
            await self.controller.run()
        finally:
            self._working = False

    # --- input; nothing here waits ---

    def observe(self, change: Change[Pod]) -> None:
        """Handles the creation, change or deletion of a pod of a known node."""
        if change.new is not None:
            self._observe_pod(change, change.new)
        elif change.old is not None:
            self._observe_deletion(change, change.old)

    def _observe_pod(self, change: Change[Pod], pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._admission is not None:
            self._admission.observe(pod)
        record = self._records.get(uid)
        if record is None:
            # Only a pod whose creation we watched is known not to have been started by a previous process.
            may_exist = change.initial or not self._working
            record = self._add(PodRecord(pod.ref, may_exist, missing=uid in self._missing_early))
            self._missing_early.pop(uid, None)
        record.suspected = False
        if not record.object_deleted:
            # Our own deletion sets the grace period to zero too; the deadline that the provider has remains valid.
            record.observe_deletion(pod, now=self._clock.monotonic(), wall=self._clock.now())
        if pod.terminating and record.syncing:
            self.controller.cancel_running(uid)
        if concerns(change.old, pod, ours=self._status_writer.annotations(uid)):
            self.controller.add(uid, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _observe_deletion(self, change: Change[Pod], old: Pod) -> None:
        uid = old.metadata.uid
        record = self._records.get(uid)
        if record is None:
            return
        record.suspected = change.suspected
        if not change.suspected:
            self._on_object_deleted(record)
        self.controller.add(uid)

    def _on_object_deleted(self, record: PodRecord) -> None:
        """Handles the deletion of the object: unless the runtime deleted it, this was a forced deletion, and the grace period is over."""
        record.suspected = False
        if not record.object_deleted:
            record.shorten_deadline(self._clock.monotonic())
        if record.syncing:
            self.controller.cancel_running(record.ref.uid)

    def on_missing(self, ref: PodRef) -> None:
        """Records that the backend has nothing left of this pod."""
        record = self._records.get(ref.uid)
        if record is not None:
            record.missing = True
            self.controller.add(ref.uid)
            return
        if self._dispatch.informer.saw_deleted(ref.uid):
            # If a hub that is restored from a backup has the pod again, the provider has to check again too.
            return
        self._missing_early[ref.uid] = None
        if len(self._missing_early) > MISSING_EARLY:
            self._missing_early.pop(next(iter(self._missing_early)))

    def terminate_orphan(self, ref: PodRef) -> None:
        """Terminates the workload of a pod that the API does not have."""
        if ref.uid in self._records:
            return
        record = self._add(PodRecord(ref, may_exist=True))
        record.shorten_deadline(self._clock.monotonic() + ORPHAN_GRACE)
        self.controller.add(ref.uid)

    def requeue_node(self, node: str) -> None:
        """Requeues all pods of a node whose dispatch mode changed."""
        for uid in self._by_node.get(node, ()):
            self.controller.add(uid, priority=Priority.LOW)

    def resync(self) -> None:
        """Requeues every pod after a restart of the provider, including pods that it is syncing and pods that are terminating."""
        self._round += 1
        for uid, record in self._records.items():
            record.synced = record.sent_deadline = record.forced_at = None
            self.controller.add(uid, priority=Priority.LOW)

    def resync_pod(self, uid: str) -> None:
        """Hands one pod to the provider again, whether or not it has changed."""
        record = self._records.get(uid)
        if record is not None:
            # A sync that is in progress may have used the previous state.
            record.synced, record.outdated = None, True
            self.controller.add(uid)

    def drain(self, grace: float) -> None:
        """Terminates all pods because the process stops; each has its own grace period, but no more than `grace` seconds."""
        now = self._clock.monotonic()
        for uid, record in self._records.items():
            pod = self._dispatch.store.by_uid(uid)
            own = pod.spec.get("terminationGracePeriodSeconds", grace) if pod is not None else 0.0
            record.shorten_deadline(now + min(own, grace))
            if record.syncing:
                self.controller.cancel_running(uid)
            self.controller.add(uid)

    @property
    def drained(self) -> bool:
        """Whether no pod runs any more and the API shows it."""
        pods = (self._dispatch.store.by_uid(uid) for uid in self._records)
        return all(pod is None or pod.terminal for pod in pods)

    def remove_node(self, node: str) -> None:
        """Drops a node that this process no longer serves, and its pods."""
        for uid in list(self._by_node.get(node, ())):
            if self._records[uid].syncing:
                self.controller.cancel_running(uid)
            self._drop(self._records[uid])

    def requeue(self, uid: str) -> None:
        """Requeues a pod because something that may matter to it has changed."""
        if uid in self._records:
            self.controller.add(uid)

    def record(self, uid: str) -> PodRecord | None:
        """Returns the record of a pod, or None when it was never seen or is dropped."""
        return self._records.get(uid)

    def records(self, node: str) -> Sequence[PodRecord]:
        """Returns the records of the pods of a node that are not dropped yet."""
        return [self._records[uid] for uid in self._by_node.get(node, ())]

    def may_have_workloads(self, node: str) -> bool:
        """Checks whether the backend may have something of a pod of this node."""
        return any(record.may_exist for record in self.records(node))

    def _add(self, record: PodRecord) -> PodRecord:
        record.ref = shared(record.ref)
        self._records[record.ref.uid] = record
        self._by_node.setdefault(record.ref.node, {})[record.ref.uid] = None
        return record

    # --- one step ---

    async def _reconcile(self, uid: str) -> float | None:
        record = self._records.get(uid)
        if record is None:
            return None
        pod = self._dispatch.store.by_uid(uid)
        step, number = self._next(record, pod)
        if step is Step.SYNC and not self.slots.take(uid, self.controller.queue.priority(uid)):
            return None
        if step is not Step.SYNC:
            self.slots.drop(uid)
        with bind(node=record.ref.node, pod=str(record.ref.key), uid=record.ref.uid):
            match step:
                case Step.WAIT:
                    return number
                case Step.TERMINATE:
                    return await self._terminate(record, number or 0.0)
                case Step.CONFIRM:
                    return await self._confirm(record)
                case Step.DROP_RECORD:
                    self._drop(record)
                    return None
            assert pod is not None
            match step:
                case Step.SYNC:
                    return await self._sync(pod, record)
                case Step.FAIL_LOST:
                    return self._fail_lost(pod)
                case Step.FAIL_SHUTDOWN:
                    return self._fail_shutdown(pod, record)
                case _:
                    return await self._delete_object(pod, record)

    def _next(self, record: PodRecord, pod: Pod | None) -> tuple[Step, float | None]:
        ours = self._status_writer.annotations(record.ref.uid)
        situation = Situation(
            pod=pod,
            terminal=pod is not None and self._status_writer.terminal(pod),
            mode=self._dispatch.mode(record.ref.node),
            current=pod is not None and record.synced is not None and Content.of(pod).same_as(record.synced, ours=ours),
        )
        return next_step(record, situation, now=self._clock.monotonic())

    async def _sync(self, pod: Pod, record: PodRecord) -> float | None:
        record.syncing = True
        try:
            if self._admission is not None and record.accepted_at is None:
                self._admission.admit(pod)
            record.may_exist, record.outdated, round_before = True, False, self._round
            operation = "create" if record.accepted_at is None else "sync"
            with self._provider_call(record.ref.node, operation, report=partial(self._report_failed_sync, pod)):
                await self._provider.sync_pod(pod)
        except PodRejected as error:
            record.made_terminal = True
            self._emit(pod, error.reason, error.message)
            # The kubelet's message for a pod that it did not admit (rejectPod); a provider's own message is used unchanged.
            refused = isinstance(error, NotAdmitted)
            message = f"{_NOT_ADMITTED}{error.message}" if refused else error.message
            if refused and self._metrics is not None:
                self._metrics.admission_rejections.labels(error.reason).inc()
            self._status_writer.end(record.ref.uid, End(error.reason, message, failed=True))
            log.info("pod rejected")
            return None
        finally:
            record.syncing = False
            self.slots.free(record.ref.uid)
        current = round_before == self._round and not record.outdated
        record.synced, record.accepted_at = Content.of(pod) if current else None, self._clock.monotonic()
        self._status_writer.synced(record.ref.uid, pod.metadata.generation)
        return None

    def _report_failed_sync(self, pod: Pod, error: Exception) -> None:
        """Emits an event for a sync that will be retried, and shows why the containers wait."""
        reason, waiting = (error.event, error.waiting) if isinstance(error, Unavailable) else ("FailedSync", "ProviderFailed")
        message = _published(error)
        if reason:
            # The kubelet's format of an event for a container that cannot be created.
            self._emit(pod, reason, f"Error: {message}" if reason == "Failed" else message)
        if waiting:
            self._status_writer.sync_failed(pod.metadata.uid, Waiting(waiting, message))

    def _report_failed_termination(self, record: PodRecord, pod: Pod | None, error: Exception) -> None:
        """Emits an event for a `delete_pod` that will be retried, within TERMINATE_AGAIN unless the error states another delay."""
        if pod is not None:
            self._emit(pod, "FailedKillPod", _published(error))
        # An API server states it in Retry-After.
        if getattr(error, "retry_after", None) is None:
            self.controller.add(record.ref.uid, after=TERMINATE_AGAIN)

    def _emit(self, pod: Pod, reason: str, message: str) -> None:
        self._recorder.event(ObjectReference.of(PODS, pod), reason, message, warning=True)

    @contextmanager
    def _provider_call(self, node: str, operation: str, *, report: Callable[[Exception], None]) -> Iterator[None]:
        """Measures a call to the provider, and reports the error that it raises, which propagates."""
        began, failed = self._clock.monotonic(), True
        try:
            yield
            failed = False
        except asyncio.CancelledError:
            failed = False
            raise
        except (PodRejected, NoSuchPod):
            # The provider's regular answers.
            raise
        except Exception as error:
            report(error)
            raise
        finally:
            if self._metrics is not None:
                self._metrics.pod_worker.observe(node, operation, self._clock.monotonic() - began, failed=failed)

    async def _terminate(self, record: PodRecord, grace: float) -> float | None:
        now, round_before = self._clock.monotonic(), self._round
        pod = self._dispatch.store.by_uid(record.ref.uid)
        try:
            with self._provider_call(record.ref.node, "kill", report=partial(self._report_failed_termination, record, pod)):
                call = self._provider.delete_pod(record.ref, grace)
                await with_timeout(call, "delete_pod", clock=self._clock)
        except NoSuchPod:
            record.missing = True
        if pod is not None and pod.terminating:
            self._status_writer.observed(record.ref.uid, pod.metadata.generation)
        record.accepted_at = self._clock.monotonic()
        if round_before == self._round:
            record.sent_deadline, record.forced_at = now + grace, now if grace <= 0 else record.forced_at
        step, number = self._next(record, self._dispatch.store.by_uid(record.ref.uid))
        return number if step is Step.WAIT else 0.0

    async def _confirm(self, record: PodRecord) -> float | None:
        """Asks the API for the pod itself before its workload is terminated, because a list without the pod may have been wrong."""
        if await exists(self._node_client(record.ref.node), record.ref):
            return CONFIRM_AGAIN
        if record.suspected:
            self._on_object_deleted(record)
        return 0.0

    def _fail_lost(self, pod: Pod) -> float | None:
        text = "the provider's backend no longer has this pod, although it was not deleted; see the log of the backend for the cause"
        self._emit(pod, "ProviderLost", text)
        self._status_writer.end(pod.metadata.uid, End("ProviderLost", text, failed=True))
        log.info("pod lost by the provider")
        record = self._records.get(pod.metadata.uid)
        if record is not None:
            record.made_terminal = True
        return None

    def _fail_shutdown(self, pod: Pod, record: PodRecord) -> float | None:
        """Fails the pod as a kubelet does at a graceful node shutdown (KEP-2000)."""
        end = _TERMINATED if record.may_exist else _REFUSED
        self._emit(pod, end.reason, end.message.removeprefix(_NOT_ADMITTED))
        self._status_writer.end(record.ref.uid, end)
        record.made_terminal = True
        return None

    async def _delete_object(self, pod: Pod, record: PodRecord) -> float | None:
        now = self._clock.monotonic()
        if not self._status_writer.terminal(pod):
            record.final_status_since = now if record.final_status_since is None else record.final_status_since
            self._status_writer.end(record.ref.uid, End())
            left = record.final_status_since + FINAL_STATUS - now
            if left > 0:
                return left
        # The watch may deliver the deletion before the response arrives; it must not be mistaken for one by another client.
        record.object_deleted = True
        try:
            await self._node_client(pod.node).delete(PODS, pod.ref, grace=0, uid=pod.metadata.uid)
        except NotFound:
            log.debug("pod was removed already")
        except VKubeletError:
            # Also after a conflict the pod may exist; if another one has its name, the watch reports that.
            record.object_deleted = False
            raise
        return None

    def _drop(self, record: PodRecord) -> None:
        del self._records[record.ref.uid]
        self.slots.drop(record.ref.uid)
        left = self._by_node[record.ref.node]
        left.pop(record.ref.uid, None)
        if not left:
            del self._by_node[record.ref.node]
        self._status_writer.remove(record.ref.uid)
        if self._admission is not None:
            self._admission.forget(record.ref.uid)
        self._on_drop(record.ref.node)


def _published(error: Exception) -> str:
    """Returns the text to publish about an error: that of an unknown one may contain anything, so it is only logged."""
    return str(error) if isinstance(error, VKubeletError) else f"the provider raised {type(error).__name__}; its log contains the cause"


async def exists(client: Client, ref: PodRef) -> bool:
    """Checks whether the API still has exactly this incarnation. Raises ApiError when the API server does not answer that."""
    try:
        found = await client.get(PODS, ref)
    except NotFound:
        return False
    return found.metadata.uid == ref.uid
