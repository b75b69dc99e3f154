"""Lists the objects in a worker that a binding owns, with separate reads: for unbinding, and for kinds without a cache.

Invariant: an object that names another owner is never returned, whatever its labels, and a list that is refused is an error.
"""

from typing import TypeVar

from kubeocean.model import keys
from kubeocean.model.ownership import Ownership, classify
from kubeocean.worker.cluster import Mount
from vkubelet.api.objects import NAMESPACES, KubeObject, Resource
from vkubelet.client.rest import Client, Selection

T = TypeVar("T", bound=KubeObject)


async def owned(worker: Client, kind: Resource[T], mount: Mount) -> list[T]:
    """Returns the objects of a kind that this binding owns, found by either label and checked by the owner's mark. Raises ApiError."""
    found: dict[str, T] = {}
    spaces = await _spaces(worker, mount) if kind.namespaced else [""]
    for space in spaces:
        for label in (f"{keys.MANAGED_BY}={keys.MANAGED}", f"{keys.OWNER}={mount.owner.mark}"):
            where = Selection(namespace=space, labels=label)
            found |= {obj.metadata.uid: obj for obj in (await worker.list(kind, where)).items}
    return [obj for obj in found.values() if classify(obj.metadata, mount.owner) is Ownership.OURS]


async def _spaces(worker: Client, mount: Mount) -> list[str]:
    """Returns the namespaces of the worker with objects of this binding: that of the ledger too. Raises ApiError."""
    tenants = [] if mount.is_shared else (await worker.list(NAMESPACES, mount.tenants)).items
    return [mount.namespace, *(each.metadata.name for each in tenants)]
