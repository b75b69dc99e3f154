"""Responses that are something else than what was requested are errors that name the server and the difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubeocean.model.crds import POLICIES
from vkubelet.api.codec import EventType
from vkubelet.api.objects import CONFIGMAPS, NODES, PODS, PVS
from vkubelet.client.responses import Requested, by_name, kind_of, to_event, to_list, to_object
from vkubelet.errors import Expired, ServerError

URL = "https://192.0.2.1:6443"
ONE = Requested(URL, "get pods default/web", "default", "web")
ALL = Requested(URL, "list pods", "default")
META = {"name": "web", "namespace": "default"}


def data(value: object) -> bytes:
    return json.dumps(value).encode()


def listed(*items: object, **head: Any) -> bytes:
    return data({"metadata": {"resourceVersion": "5"}, "items": list(items), **head})


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ([], "Expected `object`, got `array`"),
        ({}, "responded with a Pod without a name"),
        ({"kind": "Secret", "metadata": META}, "responded with a Secret instead of a Pod"),
        ({"kind": "Status", "code": 404}, "responded with a Status instead of a Pod"),
        ({"metadata": {**META, "name": "other"}}, "responded with Pod default/other instead of default/web"),
        ({"metadata": {**META, "namespace": "other"}}, "responded with Pod other/web instead of default/web"),
        ({"metadata": {"name": "web"}}, "responded with Pod web without a namespace"),
    ],
)
def test_an_object_of_another_kind_or_name_is_an_error(body: object, reported: str) -> None:
    with pytest.raises(ServerError) as error:
        to_object(PODS, data(body), ONE)
    assert URL in str(error.value) and reported in str(error.value) and error.value.attempt == ONE.attempt


def test_a_cluster_scoped_object_has_no_namespace() -> None:
    with pytest.raises(ServerError, match="PersistentVolume web in namespace default"):
        to_object(PVS, data({"metadata": META}), Requested(URL, "get persistentvolumes web", "", "web"))


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `items`"),
        (data({"items": {}}), "Expected `array | null`, got `object`"),
        (data({"kind": "Status", "code": 500}), "responded with a Status instead of a PodList"),
        (listed(kind="SecretList"), "responded with a SecretList instead of a PodList"),
        (listed({"spec": {}}), "responded with a Pod without a name"),
        (listed({"metadata": {**META, "namespace": "other"}}), "Pod other/web instead of one of namespace default"),
    ],
)
def test_a_list_of_something_else_is_an_error(body: bytes, reported: str) -> None:
    with pytest.raises(ServerError) as error:
        to_list(PODS, body, ALL)
    assert URL in str(error.value) and reported in str(error.value)


def test_a_list_is_read_with_and_without_a_kind() -> None:
    for kind in ("PodList", "PartialObjectMetadataList", ""):
        assert [pod.key for pod in to_list(PODS, listed({"metadata": META}, kind=kind), ALL).items] == [("default", "web")]
    # Its definition may choose any listKind.
    assert to_list(POLICIES, listed({"metadata": {"name": "p"}}, kind="Policies"), Requested(URL, "list")).items
    with pytest.raises(ServerError, match="a Status instead of a ResourceLeasingPolicyList"):
        to_list(POLICIES, listed(kind="Status"), Requested(URL, "list"))


@pytest.mark.parametrize(
    ("obj", "reported"),
    [
        ([], "Expected `object`, got `array`"),
        ({"kind": "Secret", "metadata": META}, "responded with a Secret instead of a Pod"),
        ({"spec": {}}, "responded with a Pod without a name"),
        ({"metadata": {**META, "namespace": "other"}}, "Pod other/web instead of one of namespace default"),
    ],
)
def test_an_event_of_something_else_is_an_error(obj: object, reported: str) -> None:
    with pytest.raises(ServerError) as error:
        to_event(PODS, data({"type": "ADDED", "object": obj}), ALL)
    assert URL in str(error.value) and reported in str(error.value)


@pytest.mark.parametrize(
    "head", ['"kind":"Secret",', '"apiVersion":"v1","kind":"Secret",', '"apiVersion":"v1", "kind" : "Secret",', '"a":{},"kind":"Secret",']
)
def test_the_kind_of_an_event_is_found_wherever_it_is(head: str) -> None:
    line = f'{{"type":"ADDED","object":{{{head}"metadata":{json.dumps(META)}}}}}'.encode()
    with pytest.raises(ServerError, match="a Secret instead of a Pod"):
        to_event(PODS, line, ALL)


def test_events_are_read_as_before() -> None:
    partial = data({"type": "MODIFIED", "object": {"kind": "PartialObjectMetadata", "metadata": META}})
    assert to_event(CONFIGMAPS, partial, ALL).object.key == ("default", "web")
    bookmark = data({"type": "BOOKMARK", "object": {"kind": "Node", "metadata": {"resourceVersion": "9"}}})
    assert to_event(NODES, bookmark, Requested(URL, "watch nodes")).type is EventType.BOOKMARK
    with pytest.raises(Expired):
        to_event(PODS, data({"type": "ERROR", "object": {"kind": "Status", "code": 410}}), ALL)


def test_the_name_of_a_field_selector() -> None:
    assert by_name("metadata.name=web") == by_name("spec.x=1,metadata.name=web") == "web"
    assert by_name("spec.nodeName=n") == by_name("") == ""
    assert kind_of(b"not JSON") == kind_of(b"[]") == ""
