"""What the hub creates for a member, and how the state of its agents reads as conditions of its MemberCluster (pure).

Invariant: a member gets rights in its own namespace and nowhere else; it has joined only when each of its agents reports that.
"""

import enum
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from fleet.api import keys
from fleet.api.clusters import JOIN, LEAVE, MEMBER_JOINED, MEMBER_READY, InternalMemberCluster, MemberCluster, condition_of
from fleet.api.resources import FLEET_GROUP, INTERNALMEMBERCLUSTERS, MEMBERCLUSTERS, PLACEMENT_GROUP
from vkubelet.api.objects import Json, ObjectMeta
from vkubelet.api.rbac import Rule, granted, labelled, namespace_body

READY: Final = "MemberClusterReadyToJoin"
NOT_READY: Final = "MemberClusterNotReadyToJoin"
JOINED: Final = "MemberClusterJoined"
LEFT: Final = "MemberClusterLeft"
JOIN_UNKNOWN: Final = "MemberClusterJoinStateUnknown"
EXPECTED_AGENTS: Final = (keys.MEMBER_AGENT,)
COPIED: Final = ("ClusterPropertyProviderStarted", "ClusterPropertyCollectionSucceeded", "NamespaceCollectionSucceeded")
"""Conditions of the agents that the MemberCluster repeats."""
COPIED_FIELDS: Final = ("agentStatus", "properties", "resourceUsage", "namespaces")


def member_rules(namespace: str) -> tuple[Rule, ...]:
    """Returns the rights of a member in its namespace."""
    events = "Records Events about its membership and its works."
    return (
        Rule("*", "*", group=FLEET_GROUP, namespace=namespace, why="Reports its state."),
        Rule("*", "*", group=PLACEMENT_GROUP, namespace=namespace, why="Carries out its works."),
        Rule("events", "get list watch create patch update", namespace=namespace, why=events),
        Rule("events", "get list watch create patch update", group="events.k8s.io", namespace=namespace, why=events),
    )


def member_objects(member: MemberCluster, *, state: str, revoked: bool = False) -> list[Json]:
    """Builds everything of a member in the order of creation; `revoked` leaves its rights out."""
    name, namespace = member.name, keys.member_namespace(member.name)
    role, binding = granted(member_rules(namespace), keys.member_role(name), cluster_name="", subject={})
    binding["metadata"]["name"] = keys.member_binding(name)
    owner = {"apiVersion": MEMBERCLUSTERS.api_version, "kind": MEMBERCLUSTERS.kind, "name": name, "uid": member.meta.uid}
    made_namespace = namespace_body(namespace)
    made_namespace["metadata"]["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    membership = {
        "apiVersion": INTERNALMEMBERCLUSTERS.api_version,
        "kind": INTERNALMEMBERCLUSTERS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"state": state, "heartbeatPeriodSeconds": member.period},
    }
    rights = [] if revoked else [role, {**binding, "subjects": [member.identity.subject]}]
    labels = {keys.FLEET_RESOURCE: "true", keys.MEMBER_NAME: name}
    return [labelled(each, labels) for each in (made_namespace, *rights, membership)]


def namespace_obstacle(member: MemberCluster, namespace: ObjectMeta | None) -> str:
    """Returns why the namespace cannot be that of the member, with the remedy; "" when it can, or does not exist."""
    if namespace is None:
        return ""
    if namespace.deletion_timestamp is not None:
        return f"Namespace {namespace.name} is being deleted; the member joins once it is"
    if not any(each.uid == member.meta.uid for each in namespace.owner_references):
        return f"Namespace {namespace.name} belongs to another owner; delete it, or give the member another name"
    return ""


class Agents(enum.Enum):
    """What the agents of a member report together."""

    JOINED = "joined"
    LEFT = "left"
    UNKNOWN = "unknown"


def agents_of(internal: InternalMemberCluster | None, expected: Sequence[str] = EXPECTED_AGENTS) -> Agents:
    """Returns Joined or Left when every expected agent reports that, else Unknown."""
    found = [] if internal is None else [internal.state.agent(each) for each in expected]
    reported = [condition_of(each.conditions, MEMBER_JOINED) if each is not None else None for each in found]
    statuses = {each.status if each is not None else "" for each in reported} or {""}
    if statuses == {"True"}:
        return Agents.JOINED
    return Agents.LEFT if statuses == {"False"} else Agents.UNKNOWN


def has_left(member: MemberCluster, internal: InternalMemberCluster | None) -> bool:
    """Checks that no agent of a deleted member has to acknowledge that it leaves: all have, or none has ever reported."""
    never = not member.state.agents and (internal is None or not internal.state.agents)
    return never or agents_of(internal) is Agents.LEFT


def joined_condition(agents: Agents) -> Json:
    """Returns the condition Joined."""
    status, reason, message = {
        Agents.JOINED: ("True", JOINED, "every agent has joined"),
        Agents.LEFT: ("False", LEFT, "every agent has left"),
        Agents.UNKNOWN: ("Unknown", JOIN_UNKNOWN, "not every agent has reported whether it has joined; check the agent in the worker"),
    }[agents]
    return {"type": MEMBER_JOINED, "status": status, "reason": reason, "message": message}


def ready_condition(obstacle: str) -> Json:
    """Returns the condition ReadyToJoin; `obstacle` is why it is not."""
    if obstacle:
        return {"type": MEMBER_READY, "status": "False", "reason": NOT_READY, "message": obstacle}
    return {"type": MEMBER_READY, "status": "True", "reason": READY, "message": "namespace, rights and InternalMemberCluster exist"}


def time_to_leave(member: MemberCluster, force_after: float) -> timedelta:
    """Returns the time that the agent of a member gets to acknowledge that it leaves; its annotation may set less than `force_after`."""
    limit = timedelta(seconds=force_after)
    return limit if member.forced_after is None else min(limit, member.forced_after)


def leave_due(requested: datetime, *, now: datetime, allowed: timedelta) -> float:
    """Returns the seconds until a member is removed without an answer of its agent; 0 or less when that is due."""
    return (requested + allowed - now).total_seconds()


def desired_state(member: MemberCluster) -> str:
    """Returns the state that the agent is to reach."""
    return LEAVE if member.deleting else JOIN
