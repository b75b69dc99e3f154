"""Members: prepares each MemberCluster, copies what its agents report, and releases it when it is deleted.

Invariant: the finalizer stands before anything is created, and what was placed in a worker remains when it leaves.
"""

import logging
from typing import Final

from fleet.api import keys
from fleet.api.clusters import InternalMemberCluster, MemberCluster
from fleet.api.resources import INTERNALMEMBERCLUSTERS, MEMBERCLUSTERS, MEMBERWORKS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.kept import KeptObjects
from fleet.clusters.records import Records, has_condition
from fleet.clusters.registry import Registry
from fleet.core.view import Door
from fleet.kubefleet import membership
from vkubelet.api.objects import NAMESPACES, ROLEBINDINGS, ROLES, Json, ObjectMeta, Unknown
from vkubelet.client.rest import Selection
from vkubelet.clock import parse_rfc3339
from vkubelet.control.informer import Informer
from vkubelet.errors import Invalid, NotFound
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_EVENTS: Final = {
    "Namespace": ("NamespaceCreated", "NamespacePatched"),
    "Role": ("RoleCreated", "RoleUpdated"),
    "RoleBinding": ("RoleBindingCreated", "RoleBindingUpdated"),
    "InternalMemberCluster": ("InternalMemberClusterCreated", "InternalMemberClusterSpecUpdated"),
}
"""Reasons of Events when an object was created, and when it was changed."""
_OURS = Selection(labels=keys.MEMBER_NAME)


class Members:
    """Controller of members, by name; `force_after` are the seconds that an agent gets to acknowledge that it leaves.

    `published`: another controller removes the finalizer of their ClusterProfiles.
    """

    def __init__(
        self,
        hub: Hub,
        registry: Registry,
        members: Records,
        *,
        namespaces: Informer[Unknown],
        force_after: float,
        published: bool = True,
    ) -> None:
        self._hub = hub
        self._registry = registry
        self._members = members
        self._namespaces = namespaces
        self._force_after = force_after
        self._published = published
        self._internal = hub.informer(INTERNALMEMBERCLUSTERS)
        self.informers = [self._internal, hub.informer(ROLES, _OURS), hub.informer(ROLEBINDINGS, _OURS)]
        """The watches that are this controller's own."""
        self._kept = KeptObjects(hub.client, [namespaces, *self.informers])
        self.controller = hub.controller("members", self.reconcile)
        registry.on_change(self.controller.add, status=False)
        self._kept.on_change(self._kept_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced([*self.informers, self._namespaces, *self._registry.informers])
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Reconciles one member; returns the seconds until it is rechecked. Raises ApiError."""
        obj, member = self._members.get(name), self._registry.member_cluster(name)
        if obj is None or member is None:
            return None
        if member.deleting:
            return await self._leave(obj, member)
        problem = next((str(each) for each in member.validate() if each.field == "metadata.name"), "")
        if problem:
            await self._members.report(obj, [membership.ready_condition(problem)])
            return None
        obj = await self._members.hold(obj, [keys.MEMBER_FINALIZER])
        obstacle = membership.namespace_obstacle(member, _meta(self._namespace_of(member)))
        if not obstacle:
            obstacle = self._identity_problem(member)
            try:
                await self._keep(obj, member)
            except Invalid as error:
                obstacle = obstacle or str(error)
        await self._report(obj, member, obstacle)
        return None

    # --- Membership ----------------------------------------------------------------------------------------------------------------

    def _namespace_of(self, member: MemberCluster) -> Unknown | None:
        return self._kept.get(NAMESPACES, keys.member_namespace(member.name))

    def _identity_problem(self, member: MemberCluster) -> str:
        """Returns why no agent can have the identity yet; it gets its rights all the same."""
        problem = next((str(each) for each in member.validate()), "")
        namespace = member.identity.namespace
        if not problem and namespace and self._kept.get(NAMESPACES, namespace) is None:
            problem = f"spec.identity.namespace: Namespace {namespace} does not exist; create it with the ServiceAccount"
        return problem

    def _internal_of(self, member: MemberCluster) -> Unknown | None:
        return self._kept.get(INTERNALMEMBERCLUSTERS, member.name, keys.member_namespace(member.name))

    async def _keep(self, obj: Unknown, member: MemberCluster, *, revoked: bool = False) -> None:
        wanted = membership.member_objects(member, state=membership.desired_state(member), revoked=revoked)
        known = {each["kind"] for each in wanted if self._exists(each)}
        for body in await self._kept.keep(wanted):
            what = f"{body['kind']} {body['metadata']['name']}"
            changed = body["kind"] in known
            message = f"{what} was corrected" if changed else f"{what} was created"
            self._hub.event(MEMBERCLUSTERS, obj, reason=_EVENTS[body["kind"]][changed], message=message)

    def _exists(self, body: Json) -> bool:
        metadata = body["metadata"]
        resource = next(each.resource for each in (self._namespaces, *self.informers) if each.resource.kind == body["kind"])
        return self._kept.get(resource, metadata["name"], metadata.get("namespace", "")) is not None

    async def _report(self, obj: Unknown, member: MemberCluster, obstacle: str) -> None:
        live, current = self._internal_of(member), self._members.unchanged(obj)
        if current is None:
            return
        status = (live.body.get("status") or {}) if live is not None else {}
        agents = membership.agents_of(InternalMemberCluster.parse(live) if live is not None else None)
        ready, joined = membership.ready_condition(obstacle), membership.joined_condition(agents)
        copied = [each for each in status.get("conditions") or () if each.get("type") in membership.COPIED]
        fields = {name: status[name] for name in membership.COPIED_FIELDS if name in status}
        news = [each for each in (ready, joined) if _is_news(obj, each)]
        await self._members.report(current, [ready, joined, *map(_plain, copied)], fields)
        for each in news:
            self._hub.event(MEMBERCLUSTERS, obj, reason=each["reason"], message=each["message"], warning=each is ready and bool(obstacle))

    # --- Leaving -------------------------------------------------------------------------------------------------------------------

    async def _leave(self, obj: Unknown, member: MemberCluster) -> float | None:
        if keys.MEMBER_FINALIZER not in obj.metadata.finalizers:
            return None
        namespace = self._namespace_of(member)
        if namespace is not None and not membership.namespace_obstacle(member, namespace.metadata):
            left = await self._until_left(obj, member)
            if left is not None:
                return left
            await self._release_works(member)
            await self._delete_namespace(member)
        await self._members.report(self._members.latest(obj), [membership.joined_condition(membership.Agents.LEFT)])
        self._hub.event(MEMBERCLUSTERS, obj, reason="MemberClusterLeft", message="the member has left the fleet")
        ours = [keys.MEMBER_FINALIZER] if self._published else [keys.MEMBER_FINALIZER, keys.PROFILE_FINALIZER]
        await self._members.release(obj, ours)
        with bind(member=member.name):
            log.info("member has left")
        return None

    async def _until_left(self, obj: Unknown, member: MemberCluster) -> float | None:
        """Returns the seconds until the agent is checked again; None when it has left, or its time is over. Raises ApiError."""
        denied = await self._revoke(member)
        await self._keep(obj, member, revoked=denied)
        live = self._internal_of(member)
        if membership.has_left(member, InternalMemberCluster.parse(live) if live is not None else None):
            return None
        requested = parse_rfc3339(obj.metadata.deletion_timestamp or obj.metadata.creation_timestamp)
        allowed = membership.time_to_leave(member, self._force_after)
        left = membership.leave_due(requested, now=self._hub.client.server_now(), allowed=allowed)
        if left > 0:
            return left
        message = f"the agent has not acknowledged within {allowed.total_seconds():g} s that it leaves; it may still run in the worker"
        self._hub.event(MEMBERCLUSTERS, obj, reason="MemberClusterForcedToLeave", message=message, warning=True)
        return None

    async def _revoke(self, member: MemberCluster) -> bool:
        """Takes the rights of a mirror whose origin is denied at once; returns whether it is. Raises ApiError."""
        managed = self._registry.managed_cluster(member.name)
        mirrors = member.meta.annotations.get(keys.ORIGIN) == Door.OCM.value
        if not mirrors or managed is None or managed.accepted:
            return False
        for resource, name in ((ROLEBINDINGS, keys.member_binding(member.name)), (ROLES, keys.member_role(member.name))):
            found = self._kept.get(resource, name, keys.member_namespace(member.name))
            if found is not None:
                await self._kept.delete(resource, found)
        return True

    async def _release_works(self, member: MemberCluster) -> None:
        """Removes the finalizers of the member's Works, so that what was placed stays. Raises ApiError."""
        try:
            works = (await self._hub.client.list(MEMBERWORKS, Selection(namespace=keys.member_namespace(member.name)))).items
        except NotFound:
            # A hub that does not serve the kind has no Works.
            return
        for work in works:
            await self._kept.release(MEMBERWORKS, work, work.metadata.finalizers)

    async def _delete_namespace(self, member: MemberCluster) -> None:
        namespace = self._namespace_of(member)
        if namespace is not None and namespace.metadata.labels.get(keys.FLEET_RESOURCE) == "true":
            await self._kept.delete(NAMESPACES, namespace)

    # --- Callbacks -----------------------------------------------------------------------------------------------------------------

    def _kept_changed(self, obj: Unknown) -> None:
        prefix, name = keys.member_namespace(""), obj.metadata.namespace or obj.metadata.name
        if name.startswith(prefix):
            self.controller.add(name.removeprefix(prefix))


def _meta(obj: Unknown | None) -> ObjectMeta | None:
    return None if obj is None else obj.metadata


def _is_news(obj: Unknown, condition: Json) -> bool:
    """Checks whether a condition is worth an Event; every member is Unknown at first."""
    known = has_condition(obj, condition["type"], status=condition["status"], reason=condition["reason"])
    return not known and condition["status"] != "Unknown"


def _plain(condition: Json) -> Json:
    """Returns a condition of the agents with the time of its transition, for a record with its own generation."""
    return {name: value for name, value in condition.items() if name != "observedGeneration"}
