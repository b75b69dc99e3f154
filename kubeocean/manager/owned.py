"""The objects that the manager creates for bindings: watched, applied, pruned and deleted.

Invariant: an object that has another owner is never changed; deletions name the UID.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from kubeocean.manager.binding_status import ProcessHealth, process_health
from kubeocean.manager.workloads import OURS, DesiredObject, deployment_name, old_proxier_name
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.rbac import permissions
from vkubelet.api import objects
from vkubelet.api.objects import Key, KubeObject, ObjectMeta, Pod, Resource, Unknown
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import Conflict, Forbidden, NotFound, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

_IN_ONE_NAMESPACE = (objects.CONFIGMAPS, objects.SERVICEACCOUNTS, objects.SERVICES, objects.PDBS)
_ANYWHERE = (objects.ROLES, objects.ROLEBINDINGS, objects.CLUSTERROLES, objects.CLUSTERROLEBINDINGS)
_BY_DEPLOYMENT = "deployment"
_BY_OWNER = "owner"
_POD_LABEL = "k8s-app"


class ForeignObject(VKubeletError):
    """An object of the desired name has another owner."""


class OwnedObjects:
    """Caches and writes these objects. `run` it in a task group, and `wait_synced` before any other call."""

    def __init__(self, client: Client, *, namespace: str, clock: Clock, metrics: Metrics) -> None:
        self._client = client
        self._listeners: list[Callable[[str], None]] = []
        self._applied: dict[tuple[str, Key], tuple[str, str, str]] = {}

        def follow(resource: Resource[Unknown], where: Selection) -> Informer[Unknown]:
            store: Store[Unknown] = Store(indexes={_BY_OWNER: lambda obj: (_owner(obj.metadata),)})
            return Informer(client, resource, where=where, store=store, clock=clock, metrics=metrics)

        # Deployments without a selector: those of Kubeocean (Go) are adopted.
        self._informers = {objects.DEPLOYMENTS.plural: follow(objects.DEPLOYMENTS, Selection(namespace=namespace))}
        self._informers |= {each.plural: follow(each, Selection(namespace=namespace, labels=OURS)) for each in _IN_ONE_NAMESPACE}
        self._informers |= {each.plural: follow(each, Selection(labels=OURS)) for each in _ANYWHERE}
        self._resources = {each.plural: each for each in (objects.DEPLOYMENTS, *_IN_ONE_NAMESPACE, *_ANYWHERE)}
        pods: Store[Pod] = Store(indexes={_BY_DEPLOYMENT: lambda pod: (pod.metadata.labels.get(_POD_LABEL, ""),)})
        ours = Selection(namespace=namespace, labels=f"app.kubernetes.io/name={permissions.SYNCER}")
        self._pods: Informer[Pod] = Informer(client, objects.PODS, where=ours, store=pods, clock=clock, metrics=metrics)
        self._namespace = namespace
        for informer in self._informers.values():
            informer.on_change(self._changed)
        self._pods.on_change(self._pod_changed)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Registers `listener(name of the binding)` for each change of an object or pod of a binding."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Runs the watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run(), name="pods of bindings")
            for plural, informer in self._informers.items():
                group.create_task(informer.run(), name=f"{plural} of bindings")

    @property
    def ever_synced(self) -> bool:
        """Whether each kind was listed completely once."""
        return self._pods.ever_synced and all(informer.ever_synced for informer in self._informers.values())

    async def wait_synced(self) -> None:
        """Waits until each kind was listed completely once."""
        await self._pods.wait_synced()
        for informer in self._informers.values():
            await informer.wait_synced()

    def process_health(self, binding: ClusterBinding) -> ProcessHealth:
        """Computes whether the process of the binding runs."""
        name = deployment_name(binding.cluster_id)
        found = self._informers[objects.DEPLOYMENTS.plural].store.get(Key(self._namespace, name))
        mine = found if found is not None and _owner(found.metadata) in ("", binding.uid) else None
        return process_health(name, mine, self._pods.store.by_index(_BY_DEPLOYMENT, name))

    async def apply(self, wanted: Sequence[DesiredObject]) -> bool:
        """Applies the desired objects; returns whether a write was necessary. Raises ApiError, ForeignObject."""
        wrote = False
        for each in wanted:
            try:
                wrote = await self._apply(each) or wrote
            except Forbidden as error:
                if not each.optional:
                    raise
                log.debug("an optional object is left out: %s", error)
        return wrote

    async def prune(self, binding: ClusterBinding, wanted: Collection[DesiredObject]) -> None:
        """Deletes the objects that were created for the binding and are not desired any more. Raises ApiError."""
        kept = {(each.resource.plural, each.key) for each in wanted}
        for resource, obj in self._of(binding.uid):
            if (resource.plural, obj.key) not in kept and keys.APPLIED in obj.metadata.annotations:
                await self._delete(resource, obj)

    async def retire_old_proxier(self, binding: ClusterBinding) -> bool:
        """Deletes the proxier Deployment of Kubeocean (Go), which the process of the binding replaces; returns whether it existed."""
        obj = self._informers[objects.DEPLOYMENTS.plural].store.get(Key(self._namespace, old_proxier_name(binding.cluster_id)))
        if obj is None or _owner(obj.metadata) != binding.uid:
            return False
        await self._delete(objects.DEPLOYMENTS, obj)
        return True

    async def remove(self, binding: ClusterBinding) -> None:
        """Deletes everything that has this binding as its owner, Deployments first. Objects that are already deleted are no error."""
        for resource, obj in list(self._of(binding.uid)):
            await self._delete(resource, obj)

    def _of(self, uid: str) -> Iterator[tuple[Resource[Unknown], Unknown]]:
        for plural, informer in self._informers.items():
            for obj in informer.store.by_index(_BY_OWNER, uid):
                yield self._resources[plural], obj

    # --- One object ----------------------------------------------------------------------------------------------------------------

    async def _apply(self, wanted: DesiredObject) -> bool:
        informer = self._informers[wanted.resource.plural]
        live = informer.store.get(wanted.key) or await self._unlabelled(wanted)
        mark = (wanted.resource.plural, wanted.key)
        if live is not None and self._applied.get(mark) == (wanted.digest, live.metadata.uid, _state(live)):
            return False
        if live is not None:
            await self._clear_way(wanted, live)
        made = await self._client.apply(wanted.resource, wanted.body)
        self._applied[mark] = (wanted.digest, made.metadata.uid, _state(made))
        informer.adopt(made)
        return live is None or made.metadata.resource_version != live.metadata.resource_version

    async def _unlabelled(self, wanted: DesiredObject) -> Unknown | None:
        """Reads the object live: one of another owner has no label of ours, so it is not watched."""
        try:
            return await self._client.get(wanted.resource, wanted.key)
        except NotFound:
            return None

    async def _clear_way(self, wanted: DesiredObject, live: Unknown) -> None:
        """Deletes a Deployment of Kubeocean (Go), whose extra fields or immutable selector an apply would keep. Raises ForeignObject."""
        owner = _owner(live.metadata)
        ours = wanted.body["metadata"]["ownerReferences"][0]["uid"]
        if owner not in ("", ours):
            what = f"{wanted.resource.kind} {wanted.key}"
            raise ForeignObject(f"{what} belongs to another owner; delete it, or choose another clusterID for a new binding")
        if wanted.resource != objects.DEPLOYMENTS:
            return
        selector = ((live.body.get("spec") or {}).get("selector") or {}).get("matchLabels")
        if keys.APPLIED not in live.metadata.annotations or selector != wanted.body["spec"]["selector"]["matchLabels"]:
            with bind(deployment=wanted.key):
                log.info("replacing a Deployment that cannot be updated in place")
            await self._delete(objects.DEPLOYMENTS, live)

    async def _delete(self, resource: Resource[Unknown], obj: Unknown) -> None:
        self._applied.pop((resource.plural, obj.key), None)
        try:
            await self._client.delete(resource, obj.key, uid=obj.metadata.uid, propagation="Background")
        except NotFound:
            log.debug("deleted already")
        except Conflict:
            # Another object has the name by now.
            log.debug("replaced already")

    # --- Notifications -------------------------------------------------------------------------------------------------------------

    def _changed(self, change: Change[Unknown]) -> None:
        for obj in (change.old, change.new):
            self._notify(_owner_names(obj))

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        name = pod.metadata.labels.get(_POD_LABEL, "")
        self._notify(_owner_names(self._informers[objects.DEPLOYMENTS.plural].store.get(Key(self._namespace, name))))

    def _notify(self, bindings: Iterable[str]) -> None:
        for name in bindings:
            for listener in self._listeners:
                listener(name)


def _owner(meta: ObjectMeta) -> str:
    """Returns the UID of the controlling owner, or of a binding that owns the object."""
    references = meta.owner_references
    return next((each.uid for each in references if each.controller or each.kind == CLUSTERBINDINGS.kind), "")


def _owner_names(obj: KubeObject | None) -> Sequence[str]:
    references = obj.metadata.owner_references if obj is not None else ()
    return [each.name for each in references if each.kind == CLUSTERBINDINGS.kind]


def _state(obj: Unknown) -> str:
    """Returns what changes with the spec of an object: the generation where it has one, else the resourceVersion."""
    return str(obj.metadata.generation or obj.metadata.resource_version)
