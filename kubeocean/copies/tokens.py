"""Service account tokens of virtual pods: issued by the hub, bound to the pod, stored in one Secret per pod beside its physical pod.

Invariant: a token outlives its containers and nothing else; a restart of this process renews no token that is not due.
"""

import logging
import random
from collections.abc import Sequence
from datetime import datetime

from attrs import field, frozen

from kubeocean.copies.bodies import token_secret
from kubeocean.model import keys
from kubeocean.model.identity import identity
from kubeocean.model.ownership import Ownership, classify
from kubeocean.model.references import TokenSource, references
from kubeocean.worker.cluster import WorkerCluster, virtual_uid
from vkubelet.api.objects import PODS, SECRETS, Key, Pod, PodRef, Unknown
from vkubelet.clock import parse_rfc3339, rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.shards import ONLY, Shard
from vkubelet.control.tokens import is_issued_later, renewal_time, request_token, spread_of, wait_for_renewal
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, NotFound, Unavailable
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_EARLIEST, _LATEST = 0.7, 0.9
_DELIVERY = 120.0
"""Seconds until containers observe a Secret that was written: a kubelet refreshes it within 90, and its cache lags."""
_ORPHAN_AFTER = 60.0
_RECHECK_AFTER = 60.0
_SOON = 1.0
"""Seconds after a start; pods that are still being listed are known by then."""


def refresh_at(uid: str, expiry: datetime, *, lifetime: float) -> datetime:
    """Returns when a token is renewed: at 70 to 90 % of its lifetime, in seconds, different for each pod, at most after a day.

    Of a short lifetime enough is left that the new token arrives before the old one expires.
    """
    latest = max(_EARLIEST, min(_LATEST, 1 - _DELIVERY / lifetime))
    return renewal_time(expiry, lifetime=lifetime, share=_EARLIEST + (latest - _EARLIEST) * spread_of(uid))


@frozen
class Issued:
    """Tokens issued by the hub's API server, by the keys of the sources."""

    tokens: dict[str, str] = field(repr=False)
    expiry: datetime
    lifetime: int
    """Seconds, of the token that expires first."""


class TokenReconciler:
    """Controller whose keys are virtual pods."""

    def __init__(self, host: Host, worker: WorkerCluster, *, shard: Shard = ONLY) -> None:
        self._host = host
        self._worker = worker
        self.shard = shard
        self._terminated: set[str] = set()
        self._received: dict[Key, tuple[str, float]] = {}
        """By Secret: the expiry of the tokens that this process has requested, and when they were received, by the monotonic clock."""
        self.controller: Controller[PodRef] = Controller("tokens", self.reconcile, workers=8, clock=host.clock, metrics=host.metrics)
        worker.secrets.on_change(self._secret_changed)

    async def ensure(self, pod: Pod, sources: Sequence[TokenSource]) -> None:
        """Creates the pod's Secret, or renews its tokens if they are due. Raises ApiError, Unavailable."""
        if not sources:
            return
        known = await self._secret(pod.ref)
        if known is None or self._due_in(known, pod, sources) <= 0:
            await self._renew(pod, sources, known=known)
        self.controller.add(_without_node(pod.ref), after=1.0, priority=Priority.LOW)

    def released(self, ref: PodRef) -> None:
        """Enqueues the Secret of a pod whose containers have terminated: a live GET found no physical pod of this uid."""
        self._terminated.add(ref.uid)
        self.controller.add(_without_node(ref))

    def recheck(self) -> None:
        """Enqueues all Secrets: the clock by which tokens are due was set."""
        for secret in self._worker.secrets.store:
            ref = identity(secret.metadata) if keys.TOKEN_SECRET in secret.metadata.labels else None
            if ref is not None:
                self.controller.add(_without_node(ref), priority=Priority.LOW)

    async def reconcile(self, ref: PodRef) -> float | None:
        """Renews due tokens, or deletes the Secret of a deleted pod; returns the seconds until the next check."""
        secret = await self._secret(ref)
        if secret is not None and classify(secret.metadata, self._worker.mount.owner) is not Ownership.OURS:
            return None
        with bind(pod=str(ref.key), uid=ref.uid):
            physical = self._worker.physical_pod(ref)
            pod = self._host.pods.by_uid(ref.uid)
            if secret is None:
                self._terminated.discard(ref.uid)
                self.forget(self._key(ref))
                # A pod that Kubeocean (Go) created has its tokens in other Secrets.
                uses_it = physical is not None and self._key(ref).name.encode() in physical.spec_json
                return await self._restore(pod) if pod is not None and uses_it else None
            if physical is None and (pod is None or pod.terminating or pod.terminal):
                return await self._delete_unused(ref, secret, pod)
            if pod is None or pod.terminal:
                return _RECHECK_AFTER
            sources = references(pod).tokens
            wait = self._due_in(secret, pod, sources)
            if sources and wait <= 0:
                await self._renew(pod, sources, known=secret)
                return 1.0
            return wait if physical is not None else min(wait, _RECHECK_AFTER)

    async def _restore(self, pod: Pod) -> float | None:
        """Creates the Secret of a running pod again that another client deleted."""
        sources = references(pod).tokens
        if not sources or pod.terminating or pod.terminal:
            return None
        await self._renew(pod, sources, known=None)
        return 1.0

    async def _secret(self, ref: PodRef) -> Unknown | None:
        """Returns the Secret of a pod. Raises ApiError.

        Until the Secrets are listed it is read: one may exist, of a process before.
        """
        key, secrets = self._key(ref), self._worker.secrets
        known = secrets.store.get(key)
        if known is not None or secrets.ever_synced:
            return known
        try:
            return await self._worker.client.get(SECRETS, key)
        except NotFound:
            return None

    def _key(self, ref: PodRef) -> Key:
        return Key(self._worker.mount.namespace_of(ref.namespace), keys.token_secret_name(ref.namespace, ref.name, ref.uid))

    def _due_in(self, secret: Unknown, pod: Pod, sources: Sequence[TokenSource]) -> float:
        requested = min((source.expiration for source in sources), default=0)
        return self.due_in(secret, pod.metadata.uid, requested=requested) if sources else 0.0

    def due_in(self, secret: Unknown, uid: str, *, requested: float = 0.0) -> float:
        """Returns the seconds until the tokens of a Secret are due; `requested` is their lifetime where the Secret does not contain it."""
        notes = secret.metadata.annotations
        text, given = notes.get(keys.TOKEN_EXPIRY, ""), notes.get(keys.TOKEN_LIFE, "")
        # The API server may limit the lifetime, so the issued one can differ from the requested one.
        lifetime = float(given) if given.isdecimal() else requested
        if not text or not lifetime:
            return 0.0
        now, ends = self._host.clock.now(), parse_rfc3339(text)
        due = refresh_at(uid, ends, lifetime=lifetime)
        expiry, received = self._received.get(secret.key, ("", 0.0))
        if expiry == text:
            return wait_for_renewal(due, received=received, lifetime=lifetime, clock=self._host.clock)
        # Annotations of an earlier process or of another writer.
        return 0.0 if is_issued_later(ends, now=now, lifetime=lifetime) else (due - now).total_seconds()

    def keep(self, secret: Key, issued: Issued) -> None:
        """Notes the tokens that are now in a Secret."""
        self._received[secret] = rfc3339(issued.expiry), self._host.clock.monotonic()

    def forget(self, secret: Key) -> None:
        """Drops a deleted Secret."""
        self._received.pop(secret, None)

    async def _renew(self, pod: Pod, sources: Sequence[TokenSource], *, known: Unknown | None) -> None:
        mount = self._worker.mount
        issued = await self.issue(pod, sources)
        self.keep(self._key(pod.ref), issued)
        space = mount.namespace_of(pod.metadata.namespace)
        body = token_secret(pod, issued.tokens, owner=mount.owner, namespace=space, expiry=issued.expiry, lifetime=issued.lifetime)
        if known is None:
            try:
                self._worker.secrets.adopt(await self._worker.client.create(SECRETS, body))
                return
            except AlreadyExists:
                known = await self._worker.client.get(SECRETS, self._key(pod.ref))
        if classify(known.metadata, mount.owner) is not Ownership.OURS:
            text = f"Secret {known.key} of the worker cluster has another owner and the name that the tokens of pod {pod.ref.key} need"
            raise Unavailable(f"{text}; rename or delete it there")
        body["metadata"]["resourceVersion"] = known.metadata.resource_version
        self._worker.secrets.adopt(await self._worker.client.replace(SECRETS, body))

    async def issue(self, pod: Pod, sources: Sequence[TokenSource]) -> Issued:
        """Requests new tokens of a pod's service account, bound to the pod. Raises ApiError."""
        client = self._host.node_client(pod.node)
        tokens: dict[str, str] = {}
        ends: list[tuple[datetime, int]] = []
        for source in sources:
            issued = await request_token(client, pod, audience=source.audience, expiration=source.expiration)
            tokens[source.key] = issued.text
            ends.append((issued.expiry, issued.lifetime))
        return Issued(tokens, *min(ends))

    async def _delete_unused(self, ref: PodRef, secret: Unknown, pod: Pod | None) -> float | None:
        """Deletes the Secret if live GETs find the pod in neither cluster any more: a Secret is created before its physical pod.

        Of a pod that was released a GET has found no physical pod, so it is not read again.
        """
        created = parse_rfc3339(secret.metadata.creation_timestamp)
        terminated = ref.uid in self._terminated
        if pod is None and not terminated and not self.shard.is_first:
            # Its pod is not known yet, or of another shard; if it does not exist any more, the first shard finds that.
            return _RECHECK_AFTER
        left = _ORPHAN_AFTER - (self._host.clock.now() - created).total_seconds()
        if pod is None and not terminated and left > 0:
            return min(left, _ORPHAN_AFTER)
        if pod is None and not terminated and await self._exists_in_hub(ref):
            return _RECHECK_AFTER
        if not terminated and await self._exists_in_worker(ref):
            return _RECHECK_AFTER
        try:
            await self._worker.client.delete(SECRETS, secret.key, uid=secret.metadata.uid)
        except NotFound:
            log.debug("token Secret is deleted already")
        return None

    async def _exists_in_hub(self, ref: PodRef) -> bool:
        try:
            return (await self._host.client.get(PODS, ref)).metadata.uid == ref.uid
        except NotFound:
            return False

    async def _exists_in_worker(self, ref: PodRef) -> bool:
        try:
            found = await self._worker.client.get(PODS, self._worker.mount.copy_key(ref.key))
        except NotFound:
            return False
        return virtual_uid(found.metadata) == ref.uid

    def _secret_changed(self, change: Change[Unknown]) -> None:
        secret = change.new or change.old
        if secret is None or keys.TOKEN_SECRET not in secret.metadata.labels:
            return
        ref = identity(secret.metadata)
        if ref is not None:
            # Secrets of known pods only need to be renewed; others may be left over from an earlier process.
            known = self._host.pods.by_uid(ref.uid) is not None
            first = _RECHECK_AFTER * (0.2 + 0.8 * random.random()) if known else _SOON * (1 + random.random())
            after = first if change.initial else 1.0
            self.controller.add(_without_node(ref), after=after, priority=Priority.LOW)


def _without_node(ref: PodRef) -> PodRef:
    """Returns the reference without the node of its pod, which the Secret does not contain."""
    return ref._replace(node="")
