"""Tests of kubeocean.services.mirror: what the mirror of a Service is, and that an equal one is not written again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model import keys
from kubeocean.services.mirror import (
    desired,
    is_immutable_change,
    must_replace,
    original_of,
    service_change,
    service_of,
    slice_differs,
)
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Json, Key, Unknown

MOUNT = Mount(OWNER, "mnt")
WEB = Key("shop", "web")
UDP = {"port": 53, "protocol": "UDP", "targetPort": 5353}


def service(name: str = "web", namespace: str = "shop", *, meta: Json | None = None, **spec: Any) -> Unknown:
    """A Service as an API server returns it."""
    full = {
        "type": "ClusterIP",
        "clusterIP": "10.96.0.7",
        "clusterIPs": ["10.96.0.7"],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
        "selector": {"app": "web"},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "http", "nodePort": 30080}],
        **spec,
    }
    return unknown({"metadata": {"name": name, "namespace": namespace, **(meta or {})}, "spec": full})


def endpointslice(name: str = "web-abc", of: str = "web", namespace: str = "shop", **content: Any) -> Unknown:
    endpoint = {
        "addresses": ["10.1.0.5"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": "node-1",
        "zone": "a",
        "hints": {"forZones": [{"name": "a"}]},
        "targetRef": {"kind": "Pod", "name": "web-1"},
        "hostname": "web-1",
    }
    body = {"addressType": "IPv4", "endpoints": [endpoint], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], **content}
    labels = {"kubernetes.io/service-name": of, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
    return unknown({"metadata": {"name": name, "namespace": namespace, "labels": labels}, **body})


def stored(body: Json, **spec: Any) -> Unknown:
    """A mirror as the worker's API server stores it."""
    made = json.loads(json.dumps(body))
    made["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    if "spec" in made:
        made["spec"] = {"clusterIP": "10.97.0.1", "ipFamilies": ["IPv4"], "sessionAffinity": "None", **made["spec"], **spec}
    return unknown(made)


def test_mirror_selects_nothing_and_keeps_ports_by_name() -> None:
    meta = {"labels": {"app": "web"}, "annotations": {"service.beta.kubernetes.io/load-balancer": "x"}}
    exposed = service(meta=meta, type="LoadBalancer", externalIPs=["192.0.2.1"], loadBalancerIP="192.0.2.2")
    made = desired(exposed, [endpointslice()], MOUNT)
    assert made is not None
    assert made.service["metadata"] == {
        "name": "web--shop",
        "namespace": "mnt",
        "labels": OWNER.labels,
        "annotations": {**OWNER.annotations, keys.VIRTUAL_NAME: "web", keys.VIRTUAL_NAMESPACE: "shop"},
    }
    assert made.service["spec"] == {
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "ipFamilyPolicy": "SingleStack",
        "ipFamilies": ["IPv4"],
        "internalTrafficPolicy": "Cluster",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}],
    }


def test_endpoints_keep_addresses_conditions_and_hostname_alone() -> None:
    made = desired(service(), [endpointslice()], MOUNT)
    assert made is not None
    (copy,) = made.slices
    conditions = {"ready": True, "serving": True, "terminating": False}
    assert copy["endpoints"] == [{"addresses": ["10.1.0.5"], "conditions": conditions, "hostname": "web-1"}]
    assert copy["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}] and copy["addressType"] == "IPv4"
    assert copy["metadata"]["name"] == keys.physical_name("shop", "web-abc") and copy["metadata"]["namespace"] == "mnt"
    assert copy["metadata"]["labels"] == {
        **OWNER.labels,
        "kubernetes.io/service-name": "web--shop",
        "endpointslice.kubernetes.io/managed-by": "kubeocean",
    }
    assert original_of(unknown(copy)) == WEB == service_of(endpointslice())


def test_slices_stay_as_they_are_divided_in_the_hub() -> None:
    pairs = [endpointslice(f"web-{number}", endpoints=[{"addresses": [f"10.1.0.{number}"]}] * 100) for number in range(3)]
    made = desired(service(), pairs, MOUNT)
    assert made is not None and [len(each["endpoints"]) for each in made.slices] == [100, 100, 100]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"clusterIP": "None", "clusterIPs": ["None"]}, {"clusterIP": "None", "type": "ClusterIP"}),
        ({"publishNotReadyAddresses": True}, {"publishNotReadyAddresses": True}),
        (
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}},
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}},
        ),
        ({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}, {"ipFamilyPolicy": "PreferDualStack"}),
        ({"ipFamilies": ["IPv6"]}, {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}),
        ({"internalTrafficPolicy": "Local"}, {"internalTrafficPolicy": "Cluster"}),
        (
            {"ports": [{"port": 53, "protocol": "UDP", "targetPort": 5353}]},
            {"ports": [{"port": 53, "protocol": "UDP", "targetPort": 5353}]},
        ),
    ],
)
def test_fields_by_which_clients_reach_a_service_are_kept(spec: Json, wanted: Json) -> None:
    made = desired(service(**spec), (), MOUNT)
    assert made is not None and wanted.items() <= made.service["spec"].items()


def test_alias_is_mirrored_without_endpoints() -> None:
    alias = unknown({"metadata": {"name": "db", "namespace": "shop"}, "spec": {"type": "ExternalName", "externalName": "db.example.com"}})
    made = desired(alias, [endpointslice(of="db")], MOUNT)
    assert made is not None and made.slices == ()
    assert made.service["spec"] == {"type": "ExternalName", "externalName": "db.example.com"}


def test_service_of_the_api_server_and_deleted_ones_have_no_mirror() -> None:
    assert desired(service("kubernetes", "default"), (), MOUNT) is None
    assert desired(service(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}), (), MOUNT) is None


@pytest.mark.parametrize("spec", [{}, {"clusterIP": "None"}, {"ipFamilies": ["IPv4", "IPv6"]}, {"publishNotReadyAddresses": True}])
def test_equal_mirror_is_not_written(spec: Json) -> None:
    made = desired(service(**spec), [endpointslice()], MOUNT)
    assert made is not None
    live = stored(made.service)
    assert service_change(live, made.service) is None and not must_replace(live, made.service)
    assert not slice_differs(stored(made.slices[0]), made.slices[0])


def test_change_names_the_changed_fields_and_the_version() -> None:
    before, after = desired(service(), (), MOUNT), desired(service(ports=[{"port": 81}], sessionAffinity="ClientIP"), (), MOUNT)
    assert before is not None and after is not None
    assert service_change(stored(before.service), after.service) == {
        "metadata": {"uid": "u", "resourceVersion": "5"},
        "spec": {"ports": [{"protocol": "TCP", "port": 81, "targetPort": 81}], "sessionAffinity": "ClientIP"},
    }


def test_field_that_is_removed_from_the_service_is_removed_from_its_mirror() -> None:
    timeout = {"clientIP": {"timeoutSeconds": 60}}
    before = desired(service(sessionAffinity="ClientIP", sessionAffinityConfig=timeout), (), MOUNT)
    after = desired(service(), (), MOUNT)
    assert before is not None and after is not None
    change = service_change(stored(before.service), after.service)
    assert change is not None and change["spec"] == {"sessionAffinity": "None", "sessionAffinityConfig": None}


def test_mark_that_another_client_removed_is_restored() -> None:
    made = desired(service(), (), MOUNT)
    assert made is not None
    live = stored({**made.service, "metadata": {**made.service["metadata"], "labels": {keys.MANAGED_BY: keys.MANAGED, "theirs": "x"}}})
    change = service_change(live, made.service)
    assert change == {"metadata": {"uid": "u", "resourceVersion": "5", "labels": {keys.OWNER: OWNER.mark}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"clusterIP": "None"}), ({"clusterIP": "None"}, {}), ({}, {"type": "ExternalName", "externalName": "a.example.com"})],
)
def test_service_with_another_kind_of_address_is_replaced(before: Json, after: Json) -> None:
    first, second = desired(service(**before), (), MOUNT), desired(service(**after), (), MOUNT)
    assert first is not None and second is not None and must_replace(stored(first.service), second.service)


@pytest.mark.parametrize("content", [{"endpoints": []}, {"ports": [{"port": 1}]}, {"endpoints": [{"addresses": ["10.1.0.6"]}]}])
def test_changed_endpoints_are_written(content: Json) -> None:
    before, after = desired(service(), [endpointslice()], MOUNT), desired(service(), [endpointslice(**content)], MOUNT)
    assert before is not None and after is not None and slice_differs(stored(before.slices[0]), after.slices[0])


def test_slice_of_another_address_type_is_replaced() -> None:
    before, after = desired(service(), [endpointslice()], MOUNT), desired(service(), [endpointslice(addressType="IPv6")], MOUNT)
    assert before is not None and after is not None and is_immutable_change(stored(before.slices[0]), after.slices[0])


LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.tuples(LABEL, LABEL), st.tuples(LABEL, LABEL))
def test_two_services_never_share_a_mirror(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (keys.service_name(*one) == keys.service_name(*other)) is (one == other)
    assert len(keys.service_name(*one)) <= 63


@given(LABEL, LABEL)
def test_plain_name_of_a_mirror_leads_back_to_its_service(namespace: str, name: str) -> None:
    if keys.has_plain_name(namespace, name):
        assert keys.service_name(namespace, name).split("--") == [name, namespace]
