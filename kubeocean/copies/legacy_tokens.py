"""Legacy token Secrets of Kubeocean (Go): renewed for as long as the containers that mount them run, and deleted after them.

Invariant: the volumes of a running pod are immutable, so its Secrets keep their names; new pods never get one of these.
"""

import base64
import logging

from kubeocean.copies.tokens import TokenReconciler
from kubeocean.model import keys
from kubeocean.model.identity import identity
from kubeocean.model.ownership import Ownership, classify
from kubeocean.model.references import TokenSource, token_sources
from kubeocean.worker.cluster import WorkerCluster, virtual_uid
from vkubelet.api.objects import PODS, SECRETS, Key, Pod, PodRef, Unknown
from vkubelet.client.rest import PatchKind
from vkubelet.clock import rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.workqueue import Priority
from vkubelet.errors import NotFound
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_TOKEN = "token"
_DEFAULT_LIFETIME = 3600
_RECHECK_AFTER = 60.0
_KNOWN_SOON = 5.0


def is_legacy(secret: Unknown) -> bool:
    """Checks for a token Secret with a name that we would not use."""
    ref = identity(secret.metadata) if keys.TOKEN_SECRET in secret.metadata.labels else None
    return ref is not None and secret.metadata.name != keys.token_secret_name(ref.namespace, ref.name, ref.uid)


def source_of(secret: str, pod: Pod) -> TokenSource | None:
    """Returns the token source of a Secret, by its name, which contains pod, volume and uid, or None.

    Of two tokens in one volume the Secret has the first.
    """
    for volume, source in token_sources(pod.spec):
        name = keys.physical_name(pod.metadata.namespace, f"{pod.metadata.name}-{volume['name']}-{pod.metadata.uid}")
        if name == secret:
            return TokenSource(_TOKEN, source.get("audience") or "", source.get("expirationSeconds") or _DEFAULT_LIFETIME)
    return None


class LegacyTokens:
    """Controller whose keys are those of the Secrets, which have our mark since they were adopted."""

    def __init__(self, host: Host, worker: WorkerCluster, tokens: TokenReconciler) -> None:
        self._host = host
        self._worker = worker
        self._tokens = tokens
        self._of_pod: dict[str, set[Key]] = {}
        self.controller: Controller[Key] = Controller("legacy tokens", self.reconcile, workers=4, clock=host.clock)
        worker.secrets.on_change(self._changed)

    async def reconcile(self, key: Key) -> float | None:
        """Renews a due token, or deletes a Secret that no pod mounts any more; returns the seconds until the next check."""
        secret = self._worker.secrets.store.get(key)
        ref = identity(secret.metadata) if secret is not None else None
        if secret is None or ref is None or classify(secret.metadata, self._worker.mount.owner) is not Ownership.OURS:
            return None
        with bind(pod=str(ref.key), uid=ref.uid):
            pod = self._host.pods.by_uid(ref.uid)
            if pod is None and not self._tokens.shard.is_first:
                return _RECHECK_AFTER
            if pod is None or pod.terminating or pod.terminal:
                # An unknown pod may become known soon: its node is declared after the Secrets were listed.
                return await self._delete_unused(secret, ref, again=_KNOWN_SOON if pod is None else _RECHECK_AFTER)
            source = source_of(key.name, pod)
            if source is None:
                return None
            wait = self._tokens.due_in(secret, pod.metadata.uid)
            return wait if wait > 0 else await self._renew(secret, pod, source)

    async def _renew(self, secret: Unknown, pod: Pod, source: TokenSource) -> float:
        issued = await self._tokens.issue(pod, [source])
        self._tokens.keep(secret.key, issued)
        annotations = {keys.TOKEN_EXPIRY: rfc3339(issued.expiry), keys.TOKEN_LIFE: str(issued.lifetime)}
        data = {_TOKEN: base64.b64encode(issued.tokens[_TOKEN].encode()).decode()}
        change = {"metadata": {"uid": secret.metadata.uid, "annotations": annotations}, "data": data}
        self._worker.secrets.adopt(await self._worker.client.patch(SECRETS, secret.key, change, kind=PatchKind.MERGE))
        return 1.0

    async def _delete_unused(self, secret: Unknown, ref: PodRef, *, again: float) -> float | None:
        """Deletes the Secret if live GETs show that the worker has no such pod any more and the hub none that continues to run."""
        try:
            if virtual_uid((await self._worker.client.get(PODS, self._worker.mount.copy_key(ref.key))).metadata) == ref.uid:
                return again
        except NotFound:
            log.debug("no physical pod uses the token any more")
        try:
            live = await self._host.client.get(PODS, ref)
            if live.metadata.uid == ref.uid and not (live.terminating or live.terminal):
                return again
        except NotFound:
            log.debug("the virtual pod is deleted")
        try:
            await self._worker.client.delete(SECRETS, secret.key, uid=secret.metadata.uid)
        except NotFound:
            log.debug("token Secret is deleted already")
        return None

    def _changed(self, change: Change[Unknown]) -> None:
        if change.old is not None:
            self._index(change.old, present=False)
        if change.new is None:
            self._tokens.forget(change.key)
        if change.new is not None and is_legacy(change.new):
            self._index(change.new, present=True)
        if change.new is not None and is_legacy(change.new):
            self.controller.add(change.key, after=2.0 if change.initial else 0.0, priority=Priority.LOW)

    def recheck(self) -> None:
        """Enqueues all Secrets: the clock by which tokens are due was set."""
        for key in {key for known in self._of_pod.values() for key in known}:
            self.controller.add(key, priority=Priority.LOW)

    def released(self, ref: PodRef) -> None:
        """Enqueues the Secrets of a pod whose containers have terminated."""
        for key in self._of_pod.get(ref.uid, ()):
            self.controller.add(key)

    def _index(self, secret: Unknown, *, present: bool) -> None:
        """Indexes the Secret by the uid of its pod: pods are created and deleted by thousands where such Secrets are few or none."""
        uid = virtual_uid(secret.metadata)
        known = self._of_pod.get(uid, set()) - {secret.key}
        if present:
            known.add(secret.key)
        if known:
            self._of_pod[uid] = known
        else:
            self._of_pod.pop(uid, None)
