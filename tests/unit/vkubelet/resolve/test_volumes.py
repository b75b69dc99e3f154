"""What is in a volume, source by source."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.downward import Facts
from vkubelet.resolve.references import Content
from vkubelet.resolve.volumes import Files, TokenSource, common_user, token_sources, volume_files
from vkubelet.testing.host import make_pod

OBJECTS = {
    Reference(Kind.CONFIGMAP, "cfg"): Content(text={"a": "one", "b": "two"}, binary={"bin": b"\xff"}),
    Reference(Kind.CONFIGMAP, "other"): Content(text={"a": "other"}),
    Reference(Kind.SECRET, "hidden"): Content(binary={"a": b"hush", "k": b"key"}, secret=True),
    Reference(Kind.SECRET, "gone"): None,
}
TOKENS = {TokenSource(): "t-default", TokenSource("vault", 600): "t-vault"}


def files(volume: dict[str, Any], **spec: Any) -> Files:
    pod = make_pod("web", metadata={"labels": {"app": "web"}, "annotations": {"note": "x"}}, spec=spec)
    facts = Facts.of(pod, pod_ips=["10.1.0.5"], host_ips=[], allocatable={"cpu": "4", "memory": "8Gi"})
    return volume_files({"name": "v", **volume}, facts, objects=OBJECTS, tokens=TOKENS)


def shown(volume: dict[str, Any], **spec: Any) -> dict[str, tuple[bytes, int]]:
    return {path: (file.data, file.mode) for path, file in files(volume, **spec).items()}


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        pytest.param(
            {"configMap": {"name": "cfg"}}, {"a": (b"one", 0o644), "b": (b"two", 0o644), "bin": (b"\xff", 0o644)}, id="all keys, binary too"
        ),
        pytest.param({"configMap": {"name": "other", "defaultMode": 0o400}}, {"a": (b"other", 0o400)}, id="defaultMode"),
        pytest.param({"configMap": {"name": "other", "defaultMode": 0}}, {"a": (b"other", 0)}, id="a mode of zero is one"),
        pytest.param(
            {"configMap": {"name": "cfg", "items": [{"key": "b", "path": "d/e"}, {"key": "bin", "path": "x", "mode": 0o600}]}},
            {"d/e": (b"two", 0o644), "x": (b"\xff", 0o600)},
            id="items with paths and modes",
        ),
        pytest.param(
            {"configMap": {"name": "cfg", "optional": True, "items": [{"key": "b", "path": "b"}, {"key": "no", "path": "no"}]}},
            {"b": (b"two", 0o644)},
            id="missing optional key",
        ),
        pytest.param({"secret": {"secretName": "gone", "optional": True}}, {}, id="missing optional object"),
        pytest.param(
            {"secret": {"secretName": "gone", "optional": True, "items": [{"key": "k", "path": "k"}]}},
            {},
            id="missing optional object, items",
        ),
        pytest.param({"secret": {"secretName": "hidden"}}, {"a": (b"hush", 0o644), "k": (b"key", 0o644)}, id="Secret"),
        pytest.param(
            {
                "downwardAPI": {
                    "defaultMode": 0o444,
                    "items": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o600},
                        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"}},
                    ],
                }
            },
            {"labels": (b'app="web"', 0o444), "name": (b"web", 0o600), "cpu": (b"4000", 0o444)},
            id="downward API",
        ),
        pytest.param(
            {
                "projected": {
                    "defaultMode": 0o440,
                    "sources": [
                        {"configMap": {"name": "other"}},
                        {"secret": {"name": "hidden", "items": [{"key": "a", "path": "a"}]}},
                        {"downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                        {"serviceAccountToken": {"path": "vault/token", "audience": "vault", "expirationSeconds": 600}},
                    ],
                }
            },
            {"a": (b"hush", 0o440), "uid": (b"uid-web", 0o440), "token": (b"t-default", 0o440), "vault/token": (b"t-vault", 0o440)},
            id="projected: later source wins",
        ),
    ],
)
def test_each_source_of_files(volume: dict[str, Any], expected: dict[str, tuple[bytes, int]]) -> None:
    assert shown(volume) == expected


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "gone"}}, 'secret "gone" not found'),
        ({"configMap": {"name": "cfg", "items": [{"key": "no", "path": "no"}]}}, "configmap references non-existent config key: no"),
        ({"secret": {"secretName": "hidden", "items": [{"key": "no", "path": "no"}]}}, "references non-existent secret key: no"),
        ({"projected": {"sources": [{"configMap": {"name": "cfg"}}, {"secret": {"name": "gone"}}]}}, 'secret "gone" not found'),
        (
            {"projected": {"sources": [{"configMap": {"name": "none"}}, {"secret": {"name": "gone"}}, {"secret": {"name": "gone"}}]}},
            '[configmap "none" not found, secret "gone" not found]',
        ),
    ],
)
def test_what_is_mandatory_and_missing_is_named(volume: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        files(volume)
    assert str(caught.value) == sentence


def test_sources_and_fields_that_are_not_known_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="clusterTrustBundle"):
        files({"projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}})
    with pytest.raises(ValueError, match="status.podIP"):
        files({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}})


TOKEN = {"projected": {"defaultMode": 0o644, "sources": [{"serviceAccountToken": {"path": "token"}}]}}


@pytest.mark.parametrize(
    ("spec", "mode", "user"),
    [
        ({}, 0o644, None),
        ({"securityContext": {"runAsUser": 1000}}, 0o600, 1000),
        ({"securityContext": {"fsGroup": 2000}}, 0o600, None),
        (
            {"containers": [{"name": "a", "securityContext": {"runAsUser": 7}}, {"name": "b", "securityContext": {"runAsUser": 8}}]},
            0o644,
            None,
        ),
        ({"containers": [{"name": "a", "securityContext": {"runAsUser": 7}}, {"name": "b"}]}, 0o644, None),
        ({"securityContext": {"runAsUser": 0}}, 0o600, 0),
    ],
)
def test_a_token_is_private_as_soon_as_it_is_known_whose_it_is(spec: dict[str, Any], mode: int, user: int | None) -> None:
    token = files(TOKEN, **spec)["token"]
    assert (token.mode, token.user) == (mode, user)


def test_common_user_counts_init_containers() -> None:
    spec = {"initContainers": [{"name": "i", "securityContext": {"runAsUser": 1}}], "containers": [{"name": "a"}]}
    assert common_user(spec) is None
    assert common_user({**spec, "securityContext": {"runAsUser": 1}}) == 1


def test_a_container_that_is_added_to_look_inside_opens_no_token() -> None:
    main = {"name": "a", "securityContext": {"runAsUser": 7}}
    token = files(TOKEN, containers=[main], ephemeralContainers=[{"name": "debug"}])["token"]
    assert (token.mode, token.user) == (0o600, 7)


def test_tokens_are_those_of_projected_volumes_for_an_hour_unless_told() -> None:
    assert list(token_sources(TOKEN)) == [TokenSource("", 3600)]
    assert list(token_sources({"configMap": {"name": "cfg"}})) == []
