"""What a Node records of its lease survives a process, and damage to it is harmless."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kubeocean.leasing.reclaim import ReclaimRules
from kubeocean.leasing.record import LeaseRecord, PolicyEnd
from tests.unit.kubeocean.builders import at, limit, policy

NIGHT = policy(
    "night", spec={"forceReclaim": True, "gracefulReclaimPeriodSeconds": 600, "allowOutOfWindowPods": True}, uid="n", generation=3
)
DAY = policy("day", uid="d", generation=1)
LIMITS = [limit("cpu", quantity="1500m", percent=80), limit("memory", percent=50), limit("example.com/gpu", quantity="2")]
LIMITED = policy("limited", spec={"resourceLimits": LIMITS}, uid="l", generation=1)


def test_a_record_reads_as_it_was_written() -> None:
    end = PolicyEnd("night", ReclaimRules.of(NIGHT), at("2026-01-05 08:00") + timedelta(microseconds=5))
    records = [LeaseRecord.fitting(NIGHT), LeaseRecord.fitting(NIGHT).decided(DAY), LeaseRecord.fitting(NIGHT).decided(DAY, ended=end)]
    records.append(LeaseRecord.fitting(LIMITED))
    for record in records:
        assert LeaseRecord.decode(record.encode()) == record
    assert len({record.encode() for record in records}) == 4


def test_a_record_of_an_earlier_version_has_no_limits() -> None:
    record = LeaseRecord.decode('{"decidedBy":{"policy":"day","uid":"d","generation":1}}')
    assert record is not None and record.limits is None
    assert LeaseRecord.decode(record.encode()) == record


def test_a_record_of_a_plain_policy_is_short() -> None:
    assert LeaseRecord.fitting(DAY).encode() == '{"decidedBy":{"policy":"day","uid":"d","generation":1},"limits":[]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "null",
        "{}",
        '{"decidedBy":"night"}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":1},"limits":["cpu"]}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":1},"limits":[{"resource":"cpu","quantity":"soon"}]}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":"many"}}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":1},"gracefulReclaimPeriodSeconds":1e400}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":1},"ended":{"policy":"night","at":"soon"}}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":1},"gracefulReclaimPeriodSeconds":99999999999}',
        '{"decidedBy":{"policy":"night","uid":"n","generation":1},'
        '"ended":{"policy":"night","at":"9999-12-31T23:59:59+00:00","gracefulReclaimPeriodSeconds":60}}',
    ],
)
def test_a_damaged_record_is_none(text: str) -> None:
    assert LeaseRecord.decode(text) is None
