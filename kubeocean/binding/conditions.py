"""Computes phase and conditions of a ClusterBinding's status from its health. Pure.

Invariant: equal health renders no patch; a message names the invalid field and the remedy.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from attrs import evolve, frozen

from vkubelet.api.objects import Json, JsonView, get_condition, set_condition
from vkubelet.clock import rfc3339
from vkubelet.control.contact import Outcome

VALIDATION_FAILED = "ValidationFailed"
CONNECTIVITY_FAILED = "ConnectivityFailed"
SYNCER_FAILED = "SyncerFailed"

READY = "Ready"
CONNECTED = "Connected"
SYNCER_READY = "SyncerReady"
PROXIER_READY = "ProxierReady"
RETIREMENT_HELD = "RetirementHeld"
POLICIES_SHARED = "PoliciesShared"
SERVICES_MIRRORED = "ServicesMirrored"
NETWORK_POLICIES_MIRRORED = "NetworkPoliciesMirrored"
EXTRA_KINDS_MIRRORED = "ExtraKindsMirrored"
POD_NETWORK_ROUTED = "PodNetworkRouted"
REQUESTS_PERMITTED = "RequestsPermitted"
RIGHTS_MISSING = "RightsMissing"
RIGHTS_REVOKED = "RightsRevoked"
"""Reason when rights are missing that were once granted: mirrors may exist."""
NOT_LISTED = "NotListed"
NOT_FOLLOWED = "NotFollowed"
"""Reason when lists fail that did not once: mirrors may exist."""
_WITH_MIRRORS = {RIGHTS_MISSING: RIGHTS_REVOKED, NOT_LISTED: NOT_FOLLOWED}
"""Reasons that prove no mirrors, and those that replace them where there may be some."""
TERMINATING = "Terminating"

_LONGEST = 32_768
"""Characters of a message that the CustomResourceDefinition permits; with more of them no status at all would be accepted."""
LISTED_REMEDY = "requests are repeated; check the API server that fails, and its etcd and webhooks"
NO_ANSWER = "the worker cluster does not respond; check its API server and the network to it"


@frozen
class Failure:
    """The cause for which a binding is not served; the reason is one of the three above, the message a sentence with the remedy."""

    reason: str
    message: str
    outcome: Outcome = Outcome.SERVED
    """State of the worker cluster that the failure proves."""


@frozen
class Observation:
    """What was observed about one condition, and whether it holds."""

    holds: bool
    reason: str
    message: str


@frozen
class Lists:
    """Errors of lists that mirrors need, which a cluster refuses or which fail; `has_mirrors`: there may be mirrors nevertheless."""

    refused: str = ""
    failing: str = ""
    has_mirrors: bool = False


@frozen(kw_only=True)
class Health:
    """Observed health of a binding; `reachable` None means that the worker was not contacted yet, `unreachable` why it is not."""

    problem: Failure | None = None
    reachable: bool | None = None
    unreachable: str = NO_ANSWER
    syncer: Failure | None = None
    held: str = ""
    shared: str = ""
    """Policies that another hub serves too, as a message."""
    services: Observation | None = None
    """State of the mirrors of Services; None when there are none."""
    network_policies: Observation | None = None
    """State of the mirrors of NetworkPolicies; None when there are none."""
    kinds: Observation | None = None
    """State of the mirrors of extra kinds; None where the setting names none, or they are not known yet."""
    refused: Mapping[str, Sequence[str]] = {}
    """By cluster: the rights that its API server has refused to the process."""
    network: Observation | None = None
    """Whether pods of the worker are reached from the hub; None: no pod was probed."""
    ending: str = ""
    """What remains of a binding that is being deleted, and what that waits for."""


def status_patch(status: JsonView, health: Health, *, generation: int, now: datetime) -> Json | None:
    """Returns the merge patch of the binding's status, or None when nothing differs."""
    before: Sequence[JsonView] = status.get("conditions") or ()
    after: list[Json] = [dict(condition) for condition in before]
    for condition in _conditions(health, before):
        after = set_condition(after, {**condition, "observedGeneration": generation}, now=now)
    phase = _phase(health)
    if phase == status.get("phase") and after == [dict(condition) for condition in before]:
        return None
    change: Json = {"phase": phase, "conditions": after}
    if phase == "Ready" and status.get("phase") != "Ready":
        change["lastSyncTime"] = rfc3339(now)
    return {"status": change}


def _phase(health: Health) -> str:
    if health.problem is not None or health.reachable is False:
        return "Failed"
    if health.ending:
        return "Pending"
    return "Ready" if health.reachable and health.syncer is None else "Pending"


def _conditions(health: Health, before: Sequence[JsonView]) -> list[Json]:
    conditions = [_ready(health), *_connected(health), _syncer(health)]
    conditions.append(_condition(PROXIER_READY, "True", "ProxierCreated", "the kubelet server of the virtual nodes runs in this process"))
    if health.held:
        conditions.append(_condition(RETIREMENT_HELD, "True", "TooManyNodes", health.held))
    elif get_condition(before, RETIREMENT_HELD) is not None:
        conditions.append(_condition(RETIREMENT_HELD, "False", "NothingHeld", "no virtual node waits for a confirmation to be withdrawn"))
    if health.shared:
        conditions.append(_condition(POLICIES_SHARED, "True", "ServedByAnotherHub", health.shared))
    elif get_condition(before, POLICIES_SHARED) is not None:
        conditions.append(_condition(POLICIES_SHARED, "False", "NotShared", "no other hub serves the policies of this ClusterBinding"))
    conditions += _requests_permitted(health, before)
    nothing = "spec.serviceNamespaces names no namespace, and no pod runs in the worker"
    conditions += _mirrored(SERVICES_MIRRORED, health.services, health, before, nothing=nothing)
    nothing = "no NetworkPolicy is in a namespace that has one in the worker"
    conditions += _mirrored(NETWORK_POLICIES_MIRRORED, health.network_policies, health, before, nothing=nothing)
    found = ((EXTRA_KINDS_MIRRORED, health.kinds), (POD_NETWORK_ROUTED, health.network))
    conditions += [_observed(name, state) for name, state in found if state is not None]
    return conditions


def _requests_permitted(health: Health, before: Sequence[JsonView]) -> list[Json]:
    """Returns the condition of refused requests; none before the first one."""
    refused = "; ".join(f"{cluster}: {', '.join(rights)}" for cluster, rights in health.refused.items() if rights)
    if refused:
        text = (
            f"the process of this ClusterBinding lacks rights, and retries what needs them ({refused});"
            " grant those that are not refused on purpose"
        )
        return [_condition(REQUESTS_PERMITTED, "False", RIGHTS_MISSING, text)]
    if get_condition(before, REQUESTS_PERMITTED) is None:
        return []
    return [_condition(REQUESTS_PERMITTED, "True", "RightsGranted", "no request of the process of this ClusterBinding is refused")]


def _mirrored(kind: str, state: Observation | None, health: Health, before: Sequence[JsonView], *, nothing: str) -> list[Json]:
    """Returns the condition of mirrors; `nothing` is its message when there are none any more."""
    if state is None:
        known = get_condition(before, kind) is not None and health.reachable
        return [_condition(kind, "True", "NothingToMirror", nothing)] if known else []
    if may_have_mirrors(before, kind):
        state = evolve(state, reason=_WITH_MIRRORS.get(state.reason, state.reason))
    return [_observed(kind, state)]


def may_have_mirrors(conditions: Sequence[JsonView], kind: str = SERVICES_MIRRORED) -> bool:
    """Checks that objects were mirrored once: the condition `kind` has had another reason than lists that are refused or fail."""
    condition = get_condition(conditions, kind)
    return condition is not None and condition.get("reason") not in _WITH_MIRRORS


def not_mirrored(what: str, effect: str, lists: Lists, *, remedy: str) -> Observation | None:
    """Returns the state of mirrors whose lists are not answered; None where all are. `remedy` is that of missing rights.

    `effect` states what that means for `what`; where there may be mirrors it means that for changes alone.
    """
    text = f"changes of {what} {effect}, and existing mirrors stay as they are" if lists.has_mirrors else f"{what} {effect}"
    if lists.refused:
        return Observation(False, RIGHTS_MISSING, f"{text}: {lists.refused}; {remedy}")
    if lists.failing:
        return Observation(False, NOT_LISTED, f"{text}: {lists.failing}; {LISTED_REMEDY}")
    return None


def _observed(kind: str, state: Observation) -> Json:
    return _condition(kind, "True" if state.holds else "False", state.reason, state.message)


def _ready(health: Health) -> Json:
    problem = health.problem or health.syncer
    if health.ending:
        return _condition(READY, "False", TERMINATING, health.ending)
    if problem is not None:
        return _condition(READY, "False", problem.reason, problem.message)
    if health.reachable is False:
        return _condition(READY, "False", CONNECTIVITY_FAILED, health.unreachable)
    if health.reachable is None:
        return _condition(READY, "False", "Initializing", "the worker cluster has not responded yet")
    return _condition(READY, "True", "ValidationPassed", "the worker cluster is connected, and its nodes are leased by policies")


def _connected(health: Health) -> list[Json]:
    if health.reachable:
        return [_condition(CONNECTED, "True", "ConnectivityPassed", "the worker cluster responds")]
    problem = health.problem
    if problem is not None and problem.reason == CONNECTIVITY_FAILED:
        return [_condition(CONNECTED, "False", problem.reason, problem.message)]
    if health.reachable is None:
        return [_condition(CONNECTED, "Unknown", "Initializing", "no request was sent to the worker cluster yet")]
    return [_condition(CONNECTED, "False", CONNECTIVITY_FAILED, health.unreachable)]


def _syncer(health: Health) -> Json:
    problem = health.syncer
    if problem is not None:
        return _condition(SYNCER_READY, "False", problem.reason, problem.message)
    return _condition(SYNCER_READY, "True", "SyncerCreated", "the process of this ClusterBinding runs")


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": permitted(message)}


def permitted(message: str) -> str:
    """Returns a message with no more characters than the CustomResourceDefinitions permit for that of a condition."""
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…"
