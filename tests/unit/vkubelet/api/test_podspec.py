"""Tests of vkubelet.api.podspec."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import Json
from vkubelet.api.podspec import Kind, Reference, containers, environment_references, file_references, pull_secrets, storage_references

SOURCES: list[Json] = [
    {"configMap": {"name": "c"}},
    {"secret": {"name": "s"}},
    {"serviceAccountToken": {"path": "token"}},
    {"downwardAPI": {}},
]


@pytest.mark.parametrize(
    ("volume", "files", "storage"),
    [
        ({"configMap": {"name": "c"}}, [(Kind.CONFIGMAP, "c")], []),
        ({"secret": {"secretName": "s"}}, [(Kind.SECRET, "s")], []),
        ({"projected": {"sources": SOURCES}}, [(Kind.CONFIGMAP, "c"), (Kind.SECRET, "s")], []),
        ({"persistentVolumeClaim": {"claimName": "p"}}, [], [(Kind.CLAIM, "p")]),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, [], [(Kind.CLAIM, "web-data")]),
        ({"azureFile": {"secretName": "s"}}, [], [(Kind.SECRET, "s")]),
        ({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}, [], [(Kind.SECRET, "s")]),
        ({"rbd": {"image": "i"}}, [], []),
        ({"emptyDir": {}}, [], []),
    ],
)
def test_volume_refers_to_what_it_is_filled_from_or_mounted_with(
    volume: Json, files: list[tuple[Kind, str]], storage: list[tuple[Kind, str]]
) -> None:
    named = {"name": "data", **volume}
    assert [(each.kind, each.name) for each in file_references(named)] == files
    assert [(each.kind, each.name) for each in storage_references(named, "web")] == storage


def test_container_refers_to_the_sources_of_its_variables() -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}}, {"name": "B", "value": "plain"}]
    found = list(environment_references({"name": "main", "env": env, "envFrom": [{"prefix": "P", "secretRef": {"name": "s"}}]}))
    assert found == [Reference(Kind.SECRET, "s"), Reference(Kind.CONFIGMAP, "c")]
    assert [each.optional for each in found] == [False, True]


def test_containers_are_those_of_all_lists_and_a_nameless_pull_secret_is_none() -> None:
    spec = {"ephemeralContainers": [{"name": "e"}], "containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}
    assert [each["name"] for each in containers(spec)] == ["i", "a", "e"]
    assert pull_secrets({"imagePullSecrets": [{"name": "b"}, {}, {"name": ""}]}) == ["b"]
