"""The objects that the manager creates for bindings, and the pods of their processes.

Invariant: a Deployment of Kubeocean (Go) is replaced, never left beside ours.
"""

import asyncio

from kubeocean.manager.binding_status import ProcessHealth, process_health
from kubeocean.manager.workloads import OURS, deployment_name, old_proxier_name
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.rbac import permissions
from vkubelet.api import objects
from vkubelet.api.objects import Key, Pod, Unknown
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Change, Informer
from vkubelet.control.owned import DesiredObject, OwnedObjects, OwnerKind
from vkubelet.control.store import Store
from vkubelet.metrics import Metrics

_IN_ONE_NAMESPACE = (objects.CONFIGMAPS, objects.SERVICEACCOUNTS, objects.SERVICES, objects.PDBS)
_ANYWHERE = (objects.ROLES, objects.ROLEBINDINGS, objects.CLUSTERROLES, objects.CLUSTERROLEBINDINGS)
_OWNER = OwnerKind(name=CLUSTERBINDINGS.kind, applied=keys.APPLIED, remedy="delete it, or choose another clusterID for a new binding")
_BY_DEPLOYMENT = "deployment"
_POD_LABEL = "k8s-app"


class BindingObjects(OwnedObjects):
    """Caches and writes these objects, Deployments first."""

    def __init__(self, client: Client, *, namespace: str, clock: Clock, metrics: Metrics) -> None:
        followed = {
            # Deployments without a selector: those of Kubeocean (Go) are adopted.
            objects.DEPLOYMENTS: Selection(namespace=namespace),
            **dict.fromkeys(_IN_ONE_NAMESPACE, Selection(namespace=namespace, labels=OURS)),
            **dict.fromkeys(_ANYWHERE, Selection(labels=OURS)),
        }
        super().__init__(client, _OWNER, followed=followed, clock=clock, metrics=metrics)
        pods: Store[Pod] = Store(indexes={_BY_DEPLOYMENT: lambda pod: (pod.metadata.labels.get(_POD_LABEL, ""),)})
        ours = Selection(namespace=namespace, labels=f"app.kubernetes.io/name={permissions.SYNCER}")
        self._pods: Informer[Pod] = Informer(client, objects.PODS, where=ours, store=pods, clock=clock, metrics=metrics)
        self._pods.on_change(self._pod_changed)
        self._namespace = namespace

    async def run(self) -> None:
        """Runs the watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run(), name="pods of bindings")
            group.create_task(super().run(), name="objects of bindings")

    @property
    def ever_synced(self) -> bool:
        """Whether each kind was listed completely once."""
        return self._pods.ever_synced and super().ever_synced

    async def wait_synced(self) -> None:
        """Waits until each kind was listed completely once."""
        await self._pods.wait_synced()
        await super().wait_synced()

    def process_health(self, binding: ClusterBinding) -> ProcessHealth:
        """Computes whether the process of the binding runs."""
        name = deployment_name(binding.cluster_id)
        found = self._deployment(name)
        mine = found if found is not None and _OWNER.uid_of(found.metadata) in ("", binding.uid) else None
        return process_health(name, mine, self._pods.store.by_index(_BY_DEPLOYMENT, name))

    async def retire_old_proxier(self, binding: ClusterBinding) -> bool:
        """Deletes the proxier Deployment of Kubeocean (Go), which the process of the binding replaces; returns whether it existed."""
        obj = self._deployment(old_proxier_name(binding.cluster_id))
        if obj is None or _OWNER.uid_of(obj.metadata) != binding.uid:
            return False
        await self.delete(objects.DEPLOYMENTS, obj)
        return True

    def must_replace(self, wanted: DesiredObject, live: Unknown) -> bool:
        """Whether it is a Deployment of Kubeocean (Go), whose extra fields or immutable selector an apply would keep."""
        if wanted.resource != objects.DEPLOYMENTS:
            return False
        selector = ((live.body.get("spec") or {}).get("selector") or {}).get("matchLabels")
        return keys.APPLIED not in live.metadata.annotations or selector != wanted.body["spec"]["selector"]["matchLabels"]

    def _deployment(self, name: str) -> Unknown | None:
        return self.get(objects.DEPLOYMENTS, Key(self._namespace, name))

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        if pod is not None:
            self.notify(self._deployment(pod.metadata.labels.get(_POD_LABEL, "")))
