"""Removal of deleted bindings: their process cleans up, then everything that ran it is deleted.

Invariant: removal always completes. A missing object is no error, objects of other owners are not changed, and where no process can clean
up any more, the timeout or the annotation that the owner set stops the waiting.
"""

from __future__ import annotations

import logging
from typing import Protocol

from kubeocean.manager.owned import ForeignObject, Owned
from kubeocean.manager.settings import ManagerSettings
from kubeocean.manager.workloads import certificate_name, workloads
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.resources import CLUSTERBINDINGS
from vkubelet.api.objects import Key, Unknown
from vkubelet.client.resources import NODES, SECRETS
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.errors import ApiError, Conflict, Forbidden, NotFound

log = logging.getLogger(__name__)

FORCED = "ForcedUnbinding"
_LOOK_AGAIN = 30.0


class Announce(Protocol):
    """Records an Event about a binding."""

    def __call__(self, obj: Unknown, reason: str, message: str, *, warning: bool = False) -> None: ...


class Removal:
    """Removal of all bindings."""

    def __init__(self, client: Client, owned: Owned, announce: Announce, *, clock: Clock, settings: ManagerSettings) -> None:
        self._client = client
        self._owned = owned
        self._announce = announce
        self._clock = clock
        self._settings = settings
        self._told: set[tuple[str, str]] = set()

    async def reconcile(self, obj: Unknown, binding: ClusterBinding) -> float | None:
        """Performs one step of the removal; returns the seconds until the binding is rechecked. Raises ApiError."""
        if keys.FINALIZER_MANAGER not in binding.finalizers:
            return None
        if keys.FINALIZER_SYNCER in binding.finalizers:
            return await self._await_process(obj, binding)
        try:
            await self._owned.remove(binding)
        except ApiError as error:
            if not error.retryable:
                self._once(obj, "CleanupFailed", f"what runs the binding can not be deleted: {error}", warning=True)
            raise
        await self._remove_certificate(obj, binding)
        self._announce(obj, "Cleanup", "everything that ran the binding is deleted")
        await self._drop_finalizer(obj, keys.FINALIZER_MANAGER)
        self._announce(obj, "Deleted", "the binding is gone")
        log.info("removed")
        self._told = {each for each in self._told if each[0] != binding.uid}
        return None

    async def _await_process(self, obj: Unknown, binding: ClusterBinding) -> float | None:
        outlook = self._owned.outlook(binding)
        remaining = self._remaining(binding)
        if remaining is not None and remaining <= 0 and not outlook.speaks:
            await self._give_up(obj, binding)
            return None
        if outlook.exists or keys.Identity.accepted(obj.metadata) is not None:
            await self._keep_running(obj, binding)
        until = "" if remaining is None else "; it is given up when it takes longer than spec.forceUnbindAfter"
        text = f"waiting for the process of the binding to clean up in both clusters{until}"
        self._once(obj, "WaitingSyncerCleanup", text)
        return _LOOK_AGAIN if remaining is None or remaining <= 0 else min(_LOOK_AGAIN, remaining + 0.1)

    async def _keep_running(self, obj: Unknown, binding: ClusterBinding) -> None:
        """Restores the process if it was deleted, as only the process can clean up. Raises ApiError for transient failures."""
        try:
            await self._owned.apply(workloads(binding, self._settings))
        except ForeignObject as error:
            self._once(obj, "CleanupFailed", str(error), warning=True)
        except ApiError as error:
            if error.retryable or isinstance(error, Conflict):
                raise
            self._once(obj, "CleanupFailed", f"what runs the binding can not be written: {error}", warning=True)

    def _remaining(self, binding: ClusterBinding) -> float | None:
        """Returns the seconds for which the process is still waited for; None: without limit."""
        if binding.annotations.get(keys.FORCE_UNBIND) == "true":
            return 0.0
        if binding.force_unbind_after is None or not binding.deleted_at:
            return None
        gone_by = self._clock.now() - parse_rfc3339(binding.deleted_at)
        return binding.force_unbind_after - gone_by.total_seconds()

    async def _give_up(self, obj: Unknown, binding: ClusterBinding) -> None:
        selector = f"{keys.CLUSTER_BINDING}={keys.label_value(binding.name)}"
        left = [f"objects in namespace {binding.mount_namespace} of the worker cluster that bear {keys.CLUSTER_ID}: {binding.cluster_id}"]
        try:
            count = len((await self._client.list(NODES, Selection(labels=selector))).items)
        except Forbidden:
            count = 0
        if count:
            left.append(f"{count} virtual nodes here (kubectl delete nodes -l {selector})")
        left.append(f"marks {keys.synced_by(binding.cluster_id)} on objects that pods refer to")
        text = f"no process could clean up in time; left behind, if they are still there: {'; '.join(left)}"
        self._announce(obj, FORCED, text, warning=True)
        log.warning("given up what could not be cleaned up")
        await self._drop_finalizer(obj, keys.FINALIZER_SYNCER)

    async def _remove_certificate(self, obj: Unknown, binding: ClusterBinding) -> None:
        """Deletes the certificate that Kubeocean (Go) created for this binding; it has no owner, but labels."""
        key = Key(self._settings.namespace, certificate_name(binding.cluster_id))
        try:
            secret = await self._client.get(SECRETS, key)
            labels = secret.metadata.labels
            if labels.get("app.kubernetes.io/instance") == binding.name and labels.get("app.kubernetes.io/component") == "tls":
                await self._client.delete(SECRETS, key, uid=secret.metadata.uid)
        except NotFound:
            log.debug("there is no certificate")
        except Forbidden as error:
            self._announce(obj, "CertificateCleanupFailed", f"Secret {key} may be left behind: {error}", warning=True)

    async def _drop_finalizer(self, obj: Unknown, finalizer: str) -> None:
        """Removes the finalizer from the binding as observed; a later change results in a Conflict and a retry."""
        meta = obj.metadata
        rest = [each for each in meta.finalizers if each != finalizer]
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": rest}
        try:
            await self._client.patch(CLUSTERBINDINGS, meta.name, {"metadata": metadata}, kind=PatchKind.MERGE)
        except NotFound:
            log.debug("gone already")

    def _once(self, obj: Unknown, reason: str, message: str, *, warning: bool = False) -> None:
        if (obj.metadata.uid, reason) not in self._told:
            self._told.add((obj.metadata.uid, reason))
            self._announce(obj, reason, message, warning=warning)
