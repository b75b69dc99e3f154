"""The records of clusters as values: ManagedCluster, MemberCluster, InternalMemberCluster, sets, their bindings and claims.

Invariant: parsing never fails. A field of the wrong type is absent in the value, and `problems` names it; `validate()` returns these and
the violated rules of the kind, each with its remedy. Callers validate a value before they act on it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Self

from attrs import field, frozen

from fleet.api import keys
from vkubelet.api.fields import Fields, Problem
from vkubelet.api.objects import Json, JsonView, ObjectMeta, Unknown
from vkubelet.api.quantity import Quantity

Amounts = Mapping[str, Quantity]

NO_SELECT: Final = "NoSelect"
PREFER_NO_SELECT: Final = "PreferNoSelect"
NO_SELECT_IF_NEW: Final = "NoSelectIfNew"
NO_SCHEDULE: Final = "NoSchedule"
_MANAGED_EFFECTS: Final = (NO_SELECT, PREFER_NO_SELECT, NO_SELECT_IF_NEW)
_MEMBER_EFFECTS: Final = (NO_SCHEDULE,)

AVAILABLE: Final = "ManagedClusterConditionAvailable"
HUB_ACCEPTED: Final = "HubAcceptedManagedCluster"
CLUSTER_JOINED: Final = "ManagedClusterJoined"
CLOCK_SYNCED: Final = "ManagedClusterConditionClockSynced"
MEMBER_JOINED: Final = "Joined"
MEMBER_READY: Final = "ReadyToJoin"
AGENT_HEALTHY: Final = "Healthy"

EXCLUSIVE: Final = "ExclusiveClusterSetLabel"
BY_LABELS: Final = "LabelSelector"
STRICT: Final = "Strict"
JOIN: Final = "Join"
LEAVE: Final = "Leave"

DEFAULT_PERIOD: Final = 60
_LONGEST_PERIOD: Final = 600
_MEMBER_NAME_LIMIT: Final = 63
_SUBJECTS: Final = ("User", "Group", "ServiceAccount")
_NOTHING: Final = ObjectMeta()


@frozen
class Condition:
    """One condition; `since` is its last transition."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    since: datetime | None = None
    generation: int = 0

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        return cls(
            fields.text("type"),
            fields.text("status"),
            fields.text("reason"),
            fields.text("message"),
            fields.time("lastTransitionTime"),
            fields.number("observedGeneration"),
        )


@frozen
class Taint:
    """A taint of either API, with the effect as written."""

    key: str
    effect: str
    value: str = ""
    added: datetime | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        return cls(fields.text("key"), fields.text("effect"), fields.text("value"), fields.time("timeAdded"))


@frozen
class Usage:
    """Resources of a cluster, added up over its nodes."""

    capacity: Amounts = field(factory=dict)
    allocatable: Amounts = field(factory=dict)
    available: Amounts = field(factory=dict)
    observed: datetime | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        capacity, allocatable, available = (fields.amounts(name) for name in ("capacity", "allocatable", "available"))
        return cls(capacity, allocatable, available, fields.time("observationTime"))


@frozen
class Property:
    """The value of a property, and when it was observed."""

    value: str
    observed: datetime | None = None


@frozen
class AgentStatus:
    """What one agent of a member reported last."""

    type: str
    conditions: Sequence[Condition] = ()
    heartbeat: datetime | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        return cls(fields.text("type"), _conditions(fields), fields.time("lastReceivedHeartbeat"))


def condition_of(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """Returns the condition of this type."""
    return next((each for each in conditions if each.type == type_), None)


def holds(conditions: Sequence[Condition], type_: str) -> bool:
    """Checks that the condition of this type is True."""
    found = condition_of(conditions, type_)
    return found is not None and found.status == "True"


@frozen(kw_only=True)
class _Record:
    """What both records of a cluster have in common."""

    meta: ObjectMeta = _NOTHING

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def deleting(self) -> bool:
        return self.meta.deletion_timestamp is not None

    @property
    def forced_after(self) -> timedelta | None:
        """How long after its deletion the record is removed by force, as its annotation sets; None for never."""
        text = self.meta.annotations.get(keys.FORCE_CLEANUP, "")
        return timedelta(seconds=int(text)) if text.isascii() and text.isdigit() else None


@frozen(kw_only=True)
class ManagedCluster(_Record):
    """The record of a cluster in the API of Open Cluster Management."""

    accepted: bool = False
    lease_seconds: int = DEFAULT_PERIOD
    urls: Sequence[str] = ()
    taints: Sequence[Taint] = ()
    conditions: Sequence[Condition] = ()
    capacity: Amounts = field(factory=dict)
    allocatable: Amounts = field(factory=dict)
    claims: Mapping[str, str] = field(factory=dict)
    version: str = ""
    problems: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        problems: list[Problem] = []
        spec, status = _halves(obj, problems)
        claims = status.items("clusterClaims")
        return cls(
            meta=obj.metadata,
            accepted=spec.flag("hubAcceptsClient"),
            lease_seconds=spec.number("leaseDurationSeconds") or DEFAULT_PERIOD,
            urls=tuple(each.text("url") for each in spec.items("managedClusterClientConfigs")),
            taints=_taints(spec, _MANAGED_EFFECTS),
            conditions=_conditions(status),
            capacity=status.amounts("capacity"),
            allocatable=status.amounts("allocatable"),
            claims={each.text("name"): each.text("value") for each in claims if each.text("name")},
            version=status.inner("version").text("kubernetes"),
            problems=problems,
        )

    def validate(self) -> list[Problem]:
        """Returns everything that is wrong with the record."""
        found = [*self.problems]
        problem = keys.name_problem(self.name)
        if problem:
            found.append(Problem("metadata.name", problem))
        for at, url in enumerate(self.urls):
            if not url.startswith("https://"):
                found.append(Problem(f"spec.managedClusterClientConfigs[{at}].url", "must begin with https://"))
        if self.lease_seconds < 1:
            found.append(Problem("spec.leaseDurationSeconds", "must be 1 or more seconds"))
        return found

    @property
    def is_unknown(self) -> bool:
        """Whether its health has become unknown; a cluster that has reported nothing has no health yet."""
        found = condition_of(self.conditions, AVAILABLE)
        return found is not None and found.status == "Unknown"


@frozen
class Identity:
    """The subject of RBAC that a member's agent is on the hub."""

    kind: str = ""
    name: str = ""
    namespace: str = ""

    @property
    def subject(self) -> Json:
        """The subject of a RoleBinding."""
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"apiGroup": "rbac.authorization.k8s.io", "kind": self.kind, "name": self.name}


@frozen(kw_only=True)
class MemberState:
    """What agents report of a member; MemberCluster and InternalMemberCluster contain the same."""

    agents: Sequence[AgentStatus] = ()
    conditions: Sequence[Condition] = ()
    properties: Mapping[str, Property] = field(factory=dict)
    usage: Usage = Usage()
    namespaces: Mapping[str, str] = field(factory=dict)

    @classmethod
    def parse(cls, status: Fields) -> Self:
        return cls(
            agents=tuple(AgentStatus.parse(each) for each in status.items("agentStatus")),
            conditions=_conditions(status),
            properties={name: Property(each.text("value"), each.time("observationTime")) for name, each in status.entries("properties")},
            usage=Usage.parse(status.inner("resourceUsage")),
            namespaces=status.strings("namespaces"),
        )

    @property
    def without_times(self) -> tuple[object, ...]:
        """What is reported, without the times of heartbeats and observations."""
        agents = [(each.type, each.conditions) for each in self.agents]
        values = {name: each.value for name, each in self.properties.items()}
        amounts = (self.usage.capacity, self.usage.allocatable, self.usage.available)
        return agents, self.conditions, values, amounts, self.namespaces

    def agent(self, type_: str = keys.MEMBER_AGENT) -> AgentStatus | None:
        """Returns what the agent of this type reported."""
        return next((each for each in self.agents if each.type == type_), None)


@frozen(kw_only=True)
class MemberCluster(_Record):
    """The record of a cluster in the API of KubeFleet; creating it is the hub's consent."""

    identity: Identity = Identity()
    period: int = DEFAULT_PERIOD
    taints: Sequence[Taint] = ()
    validation_mode: str = STRICT
    state: MemberState = MemberState()
    problems: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        problems: list[Problem] = []
        spec, status = _halves(obj, problems)
        identity = spec.inner("identity")
        return cls(
            meta=obj.metadata,
            identity=Identity(identity.text("kind"), identity.text("name"), identity.text("namespace")),
            period=spec.number("heartbeatPeriodSeconds") or DEFAULT_PERIOD,
            taints=_taints(spec, _MEMBER_EFFECTS),
            validation_mode=spec.inner("deleteOptions").text("validationMode") or STRICT,
            state=MemberState.parse(status),
            problems=problems,
        )

    def validate(self) -> list[Problem]:
        """Returns everything that is wrong with the record."""
        found = [*self.problems]
        if len(self.name) > _MEMBER_NAME_LIMIT:
            found.append(Problem("metadata.name", f"must have at most {_MEMBER_NAME_LIMIT} characters; create it with a shorter name"))
        elif keys.name_problem(self.name):
            found.append(Problem("metadata.name", keys.name_problem(self.name)))
        if self.identity.kind not in _SUBJECTS:
            found.append(Problem("spec.identity.kind", f"must be one of {', '.join(_SUBJECTS)}"))
        if not self.identity.name:
            found.append(Problem("spec.identity.name", "must name the user, group or ServiceAccount of the agent"))
        if self.identity.kind == "ServiceAccount" and not self.identity.namespace:
            found.append(Problem("spec.identity.namespace", "must name the namespace of the ServiceAccount"))
        if not 1 <= self.period <= _LONGEST_PERIOD:
            found.append(Problem("spec.heartbeatPeriodSeconds", f"must be from 1 to {_LONGEST_PERIOD}"))
        return found


@frozen(kw_only=True)
class InternalMemberCluster:
    """The desired membership of a cluster, and what its agents report; in the namespace of the member."""

    meta: ObjectMeta = _NOTHING
    desired: str = ""
    period: int = DEFAULT_PERIOD
    state: MemberState = MemberState()
    problems: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        problems: list[Problem] = []
        spec, status = _halves(obj, problems)
        return cls(
            meta=obj.metadata,
            desired=spec.text("state"),
            period=spec.number("heartbeatPeriodSeconds") or DEFAULT_PERIOD,
            state=MemberState.parse(status),
            problems=problems,
        )

    def validate(self) -> list[Problem]:
        """Returns everything that is wrong with the object."""
        wrong = [] if self.desired in (JOIN, LEAVE) else [Problem("spec.state", f"must be {JOIN} or {LEAVE}")]
        return [*self.problems, *wrong]


@frozen(kw_only=True)
class ManagedClusterSet:
    """A group of clusters; `selector` is a LabelSelector, and counts for the type LabelSelector alone."""

    meta: ObjectMeta = _NOTHING
    selector_type: str = EXCLUSIVE
    selector: JsonView = field(factory=dict)
    namespaces: Sequence[str] = ()
    conditions: Sequence[Condition] = ()
    problems: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        problems: list[Problem] = []
        spec, status = _halves(obj, problems)
        selector = spec.inner("clusterSelector")
        return cls(
            meta=obj.metadata,
            selector_type=selector.text("selectorType") or EXCLUSIVE,
            selector=selector.inner("labelSelector").value,
            namespaces=tuple(each.text("name") for each in spec.items("managedNamespaces")),
            conditions=_conditions(status),
            problems=problems,
        )

    def validate(self) -> list[Problem]:
        """Returns everything that is wrong with the set."""
        wrong = [] if self.selector_type in (EXCLUSIVE, BY_LABELS) else [f"must be {EXCLUSIVE} or {BY_LABELS}"]
        return [*self.problems, *(Problem("spec.clusterSelector.selectorType", each) for each in wrong)]


@frozen(kw_only=True)
class ManagedClusterSetBinding:
    """The permission of a namespace to choose among the clusters of a set."""

    meta: ObjectMeta = _NOTHING
    cluster_set: str = ""
    conditions: Sequence[Condition] = ()
    problems: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        problems: list[Problem] = []
        spec, status = _halves(obj, problems)
        return cls(meta=obj.metadata, cluster_set=spec.text("clusterSet"), conditions=_conditions(status), problems=problems)

    def validate(self) -> list[Problem]:
        """Returns everything that is wrong with the binding."""
        right = self.cluster_set == self.meta.name
        return [*self.problems, *([] if right else [Problem("spec.clusterSet", f"must be {self.meta.name}, the name of the binding")])]


@frozen(kw_only=True)
class ClusterClaim:
    """One property that the owner of a worker publishes; the name of the property is that of the object."""

    meta: ObjectMeta = _NOTHING
    value: str = ""
    problems: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        problems: list[Problem] = []
        return cls(meta=obj.metadata, value=_halves(obj, problems)[0].text("value"), problems=problems)

    @property
    def stays_local(self) -> bool:
        """Whether it is not reported to the hub."""
        return keys.SPOKE_ONLY in self.meta.labels


def _halves(obj: Unknown, problems: list[Problem]) -> tuple[Fields, Fields]:
    body = obj.body
    return Fields(body.get("spec"), "spec", problems), Fields(body.get("status"), "status", problems)


def _conditions(fields: Fields) -> tuple[Condition, ...]:
    return tuple(Condition.parse(each) for each in fields.items("conditions"))


def _taints(fields: Fields, effects: Sequence[str]) -> tuple[Taint, ...]:
    """Returns the taints with a known effect; each other one is recorded as a problem."""
    found = []
    for each in fields.items("taints"):
        taint = Taint.parse(each)
        if taint.effect in effects and taint.key:
            found.append(taint)
        else:
            each.problem("effect" if taint.key else "key", f"must be one of {', '.join(effects)}" if taint.key else "must not be empty")
    return tuple(found)
