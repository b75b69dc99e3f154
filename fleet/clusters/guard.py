"""Guard rails: keeps the admission policy by which only administrators write namespaces and definitions of the fleet.

Invariant: without administrators in the settings no policy of this process exists; one that another client installed is left as it is. The
policy is deleted with the role of this process, so that it does not outlive the fleet.
"""

import logging
from collections.abc import Sequence
from typing import Final

from fleet.api import keys
from fleet.api.resources import guard_rails
from fleet.clusters.hub import Hub
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.objects import ADMISSIONPOLICIES, ADMISSIONPOLICYBINDINGS, CLUSTERROLES, Json, Key, Resource, Unknown
from vkubelet.api.rbac import labelled
from vkubelet.client.rest import Selection
from vkubelet.control.informer import Informer
from vkubelet.errors import NotFound

log = logging.getLogger(__name__)

_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, Unknown)
_RESOURCES: Final = {each.kind: each for each in (ADMISSIONPOLICYBINDINGS, ADMISSIONPOLICIES)}
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class GuardRails:
    """Writes the policy once at the start of a leader; `administrators` are the users and groups of the setting."""

    def __init__(self, hub: Hub, administrators: Sequence[str]) -> None:
        self._hub = hub
        self._administrators = administrators
        self.informers: list[Informer[Unknown]] = []
        self.controller = hub.controller("guard rails", self.reconcile)
        self.controller.add(keys.GUARD_RAILS)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> None:
        """Applies or removes the policy of this name. Raises ApiError."""
        if not self._administrators:
            await self._remove(name)
            return
        review = await self._hub.client.create(_REVIEWS, {})
        # The process itself creates and deletes namespaces of members.
        own, owners = str(review.body["status"]["userInfo"]["username"]), await self._owners()
        for body in decode_yaml_documents(guard_rails([*self._administrators, own])):
            body["metadata"]["ownerReferences"] = owners
            await self._hub.client.apply(_RESOURCES[body["kind"]], labelled(body, {_MANAGED_BY: keys.HUB}))
        log.info("namespaces and definitions of the fleet are written by administrators alone")

    async def _owners(self) -> list[Json]:
        """Returns the reference to the role of this process; none where it has its rights by another one. Raises ApiError."""
        found = (await self._hub.client.list(CLUSTERROLES, Selection(fields=f"metadata.name={keys.HUB}"))).items
        head = {"apiVersion": CLUSTERROLES.api_version, "kind": CLUSTERROLES.kind}
        return [{**head, "name": each.metadata.name, "uid": each.metadata.uid} for each in found]

    async def _remove(self, name: str) -> None:
        for resource in _RESOURCES.values():
            try:
                found = await self._hub.client.get(resource, Key("", name))
                if found.metadata.labels.get(_MANAGED_BY) == keys.HUB:
                    await self._hub.client.delete(resource, found.key, uid=found.metadata.uid)
            except NotFound:
                continue
