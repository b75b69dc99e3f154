"""Which objects a pod names, and what is in them."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Unknown
from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.references import Content, all_references, used_volumes

SPEC: dict[str, Any] = {
    "imagePullSecrets": [{"name": "pull"}, {}],
    "initContainers": [{"name": "first", "envFrom": [{"secretRef": {"name": "from-init"}}]}],
    "containers": [
        {
            "name": "main",
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "from-env", "key": "k"}}},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "C", "value": "x"},
            ],
            "volumeMounts": [{"name": "used", "mountPath": "/a"}, {"name": "many", "mountPath": "/b"}],
        }
    ],
    "ephemeralContainers": [{"name": "debug", "envFrom": [{"configMapRef": {"name": "from-debug"}}]}],
    "volumes": [
        {"name": "used", "secret": {"secretName": "in-volume"}},
        {"name": "unused", "configMap": {"name": "never-mounted"}},
        {
            "name": "many",
            "projected": {"sources": [{"configMap": {"name": "in-many"}}, {"secret": {"name": "in-many"}}, {"downwardAPI": {"items": []}}]},
        },
    ],
}


def test_everything_that_is_named_is_found_but_for_volumes_that_nobody_mounts() -> None:
    env = {
        Reference(Kind.SECRET, "pull"),
        Reference(Kind.SECRET, "from-init"),
        Reference(Kind.CONFIGMAP, "from-env"),
        Reference(Kind.CONFIGMAP, "from-debug"),
    }
    files = {Reference(Kind.SECRET, "in-volume"), Reference(Kind.CONFIGMAP, "in-many"), Reference(Kind.SECRET, "in-many")}
    assert all_references(SPEC, volumes=False) == env
    assert all_references(SPEC, volumes=True) == env | files
    assert [volume["name"] for volume in used_volumes(SPEC)] == ["used", "many"]


def made(**body: Any) -> Unknown:
    return Unknown.decode(encode_json({"metadata": {"name": "x"}, **body}))


def test_a_config_map_has_text_and_binary_data() -> None:
    content = Content.of(Kind.CONFIGMAP, made(data={"a": "ä"}, binaryData={"b": "/w=="}))
    assert content.variables() == {"a": "ä"}
    assert (content.file("a"), content.file("b"), content.file("c")) == ("ä".encode(), b"\xff", None)
    assert content.file_names == ["a", "b"]


def test_a_secret_is_bytes_that_survive_as_text() -> None:
    content = Content.of(Kind.SECRET, made(data={"a": "/2E="}))
    assert content.file("a") == content.variables()["a"].encode(errors="surrogateescape") == b"\xffa"


@pytest.mark.parametrize("kind", list(Kind))
def test_an_object_without_data_is_empty(kind: Kind) -> None:
    assert Content.of(kind, made(data=None)).file_names == []


def test_contents_are_not_shown() -> None:
    assert "hush" not in repr(Content(text={"a": "hush"}, binary={"b": b"hush"}))
