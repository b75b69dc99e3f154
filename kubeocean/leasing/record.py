"""The lease record on the Node of the hub, by which processes distinguish a policy that stopped applying from growing local use. Pure.

Invariant: equal records have equal text, and the only time in it is that at which a policy stopped applying.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from attrs import evolve, frozen

from kubeocean.leasing.reclaim import ReclaimRules
from kubeocean.model.crds import LONGEST_GRACE, ResourceLeasingPolicy, ResourceLimit
from vkubelet.api.objects import Json
from vkubelet.api.quantity import Quantity


@frozen
class PolicyVersion:
    """One generation of one policy object."""

    name: str
    uid: str
    generation: int

    @classmethod
    def of(cls, policy: ResourceLeasingPolicy) -> Self:
        return cls(policy.name, policy.uid, policy.generation)


@frozen
class PolicyEnd:
    """The policy by whose rules an excess is reclaimed, and when it stopped applying or shrank."""

    policy: str
    rules: ReclaimRules
    at: datetime


@frozen(kw_only=True)
class LeaseRecord:
    """The last decision about a node: by `decided_by`, with its `rules`; `fitted` decided when all pods of the node fitted last, or leases
    no less than the one that did.

    `limits` are those of `fitted`; None in a record of an earlier version.
    `ended` is the policy that stopped applying and left the excess under `decided_by`; None without an excess, or when local use caused it.
    """

    decided_by: PolicyVersion
    rules: ReclaimRules
    fitted: PolicyVersion
    limits: Sequence[ResourceLimit] | None = None
    ended: PolicyEnd | None = None

    @classmethod
    def fitting(cls, policy: ResourceLeasingPolicy) -> Self:
        """Returns the record when all pods fit under this policy, when it leases no less than one under which they fitted, or when nothing
        else is known of them."""
        version = PolicyVersion.of(policy)
        return cls(decided_by=version, rules=ReclaimRules.of(policy), fitted=version, limits=tuple(policy.limits))

    def decided(self, policy: ResourceLeasingPolicy, *, ended: PolicyEnd | None = None) -> Self:
        """Returns the record after this policy has decided."""
        return evolve(self, decided_by=PolicyVersion.of(policy), rules=ReclaimRules.of(policy), ended=ended)

    def encode(self) -> str:
        """Encodes the record as JSON, for an annotation."""
        body: Json = {"decidedBy": _version(self.decided_by), **_rules(self.rules)}
        if self.fitted != self.decided_by:
            body["fitted"] = _version(self.fitted)
        if self.limits is not None:
            body["limits"] = [_limit(each) for each in self.limits]
        if self.ended is not None:
            body["ended"] = {"policy": self.ended.policy, "at": self.ended.at.isoformat(), **_rules(self.ended.rules)}
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Decodes the annotation; None when it is empty or damaged: then the node's earlier policies are unknown."""
        try:
            body = json.loads(text) if text else None
            return cls._of(body) if isinstance(body, dict) else None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return None

    @classmethod
    def _of(cls, body: Mapping[str, Any]) -> Self:
        decided_by, ended = _read_version(body["decidedBy"]), body.get("ended")
        return cls(
            decided_by=decided_by,
            rules=_read_rules(body),
            fitted=_read_version(body["fitted"]) if "fitted" in body else decided_by,
            limits=tuple(map(_read_limit, body["limits"])) if "limits" in body else None,
            ended=_read_end(ended) if ended else None,
        )


def _version(version: PolicyVersion) -> Json:
    return {"policy": version.name, "uid": version.uid, "generation": version.generation}


def _read_version(body: Mapping[str, Any]) -> PolicyVersion:
    return PolicyVersion(str(body["policy"]), str(body["uid"]), int(body["generation"]))


def _limit(limit: ResourceLimit) -> Json:
    """Encodes a limit by the field names of a policy's spec."""
    body: Json = {"resource": limit.resource, "quantity": None if limit.quantity is None else str(limit.quantity), "percent": limit.percent}
    return {name: value for name, value in body.items() if value is not None}


def _read_limit(body: Mapping[str, Any]) -> ResourceLimit:
    quantity, percent = body.get("quantity"), body.get("percent")
    return ResourceLimit(
        str(body["resource"]), None if quantity is None else Quantity.parse(str(quantity)), None if percent is None else int(percent)
    )


def _rules(rules: ReclaimRules) -> Json:
    """Encodes the rules by the field names of a policy's spec; unset fields are omitted."""
    body: Json = {
        "forceReclaim": rules.force,
        "gracefulReclaimPeriodSeconds": int(rules.grace.total_seconds()),
        "allowOutOfWindowPods": rules.allow_out_of_window_pods,
    }
    return {name: value for name, value in body.items() if value}


def _read_end(body: Mapping[str, Any]) -> PolicyEnd:
    """Reads a PolicyEnd. Raises OverflowError when its grace exceeds the range of datetime."""
    end = PolicyEnd(str(body["policy"]), _read_rules(body), _read_time(body["at"]))
    _ = end.at + end.rules.grace
    return end


def _read_rules(body: Mapping[str, Any]) -> ReclaimRules:
    """Reads the reclaim rules. Raises ValueError for a grace above the int32 of the policy's field."""
    grace = int(body.get("gracefulReclaimPeriodSeconds", 0))
    if grace > LONGEST_GRACE:
        raise ValueError(f"gracefulReclaimPeriodSeconds: {grace} is more than {LONGEST_GRACE}")
    return ReclaimRules(
        force=body.get("forceReclaim") is True,
        grace=timedelta(seconds=max(0, grace)),
        allow_out_of_window_pods=body.get("allowOutOfWindowPods") is True,
    )


def _read_time(text: str) -> datetime:
    """Parses a time to UTC. Raises ValueError when it has no zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"time without a zone: {text}")
    return time.astimezone(UTC)
