"""Removal of deleted bindings: their process cleans up, then everything that ran it is deleted.

Invariant: removal always completes. A missing object is no error, objects of other owners are not changed, and where no process can clean
up any more, the timeout or the annotation that the owner set stops the waiting.
"""

import logging
from typing import Protocol

from kubeocean.manager.owned import BindingObjects
from kubeocean.manager.workloads import certificate_name, deployment_name, desired_objects
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.settings import ManagerSettings
from vkubelet.api.objects import NODES, SECRETS, Key, Unknown
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.control.owned import ForeignObject
from vkubelet.errors import ApiError, Conflict, Forbidden, NotFound

log = logging.getLogger(__name__)

FORCED = "ForcedUnbinding"
_RECHECK_AFTER = 30.0


class Announce(Protocol):
    """Records an Event about a binding."""

    def __call__(self, obj: Unknown, reason: str, message: str, *, warning: bool = False) -> None: ...


class Removal:
    """Removal of all bindings."""

    def __init__(self, client: Client, owned: BindingObjects, announce: Announce, *, clock: Clock, settings: ManagerSettings) -> None:
        self._client = client
        self._owned = owned
        self._announce = announce
        self._clock = clock
        self._settings = settings
        self._announced: set[tuple[str, str]] = set()

    async def reconcile(self, obj: Unknown, binding: ClusterBinding) -> float | None:
        """Performs one step of the removal; returns the seconds until the binding is rechecked. Raises ApiError."""
        if keys.FINALIZER_MANAGER not in binding.finalizers:
            return None
        if keys.FINALIZER_SYNCER in binding.finalizers:
            return await self._await_process(obj, binding)
        try:
            await self._owned.remove(binding.uid)
        except ApiError as error:
            if not error.retryable:
                self._announce_once(obj, "CleanupFailed", _not_permitted("delete", error), warning=True)
            raise
        await self._remove_certificate(obj, binding)
        self._announce(obj, "Cleanup", "deleted the objects that ran the binding")
        await self._drop_finalizer(obj, keys.FINALIZER_MANAGER)
        self._announce(obj, "Deleted", f"removed the finalizer {keys.FINALIZER_MANAGER}; the binding is deleted")
        log.info("removed")
        self._announced = {each for each in self._announced if each[0] != binding.uid}
        return None

    async def _await_process(self, obj: Unknown, binding: ClusterBinding) -> float | None:
        health = self._owned.process_health(binding)
        remaining = self._remaining(binding)
        if remaining is not None and remaining <= 0 and not health.reports:
            await self._give_up(obj, binding)
            return None
        if health.exists or keys.Identity.accepted(obj.metadata) is not None:
            await self._keep_running(obj, binding)
        until = f"annotate the binding with {keys.FORCE_UNBIND}=true to delete it without the cleanup"
        if remaining is not None:
            until = "the binding is deleted without the cleanup after spec.forceUnbindAfter"
        text = f"waiting for Deployment {deployment_name(binding.cluster_id)} to clean up in both clusters; {until}"
        self._announce_once(obj, "WaitingSyncerCleanup", text)
        return _RECHECK_AFTER if remaining is None or remaining <= 0 else min(_RECHECK_AFTER, remaining + 0.1)

    async def _keep_running(self, obj: Unknown, binding: ClusterBinding) -> None:
        """Restores the process if it was deleted, as only the process can clean up. Raises ApiError for transient failures."""
        try:
            await self._owned.apply(desired_objects(binding, self._settings))
        except ForeignObject as error:
            self._announce_once(obj, "CleanupFailed", str(error), warning=True)
        except ApiError as error:
            if error.retryable or isinstance(error, Conflict):
                raise
            self._announce_once(obj, "CleanupFailed", _not_permitted("write", error), warning=True)

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
        mark = f"{keys.CLUSTER_ID}: {binding.cluster_id}"
        left = [f"objects in namespace {binding.mount_namespace} of the worker cluster with the annotation {mark}"]
        try:
            count = len((await self._client.list(NODES, Selection(labels=selector))).items)
        except Forbidden:
            count = 0
        if count:
            left.append(f"{count} virtual nodes of this cluster (kubectl delete nodes -l {selector})")
        left.append(f"the label {keys.synced_by(binding.cluster_id)} of objects that pods refer to")
        text = f"deleted without the cleanup, because no process of the binding finished it; delete what is left: {'; '.join(left)}"
        self._announce(obj, FORCED, text, warning=True)
        log.warning("removing the binding without its cleanup")
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
            self._announce(obj, "CertificateCleanupFailed", f"cannot delete Secret {key}: {error}; delete it if it exists", warning=True)

    async def _drop_finalizer(self, obj: Unknown, finalizer: str) -> None:
        """Removes the finalizer from the binding as observed; a later change results in a Conflict and a retry."""
        meta = obj.metadata
        rest = [each for each in meta.finalizers if each != finalizer]
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": rest}
        try:
            await self._client.patch(CLUSTERBINDINGS, meta.name, {"metadata": metadata}, kind=PatchKind.MERGE)
        except NotFound:
            log.debug("deleted already")

    def _announce_once(self, obj: Unknown, reason: str, message: str, *, warning: bool = False) -> None:
        if (obj.metadata.uid, reason) not in self._announced:
            self._announced.add((obj.metadata.uid, reason))
            self._announce(obj, reason, message, warning=warning)


def _not_permitted(verb: str, error: ApiError) -> str:
    return f"cannot {verb} the objects that run the binding: {error}; grant the manager the rights of the chart kubeocean"
