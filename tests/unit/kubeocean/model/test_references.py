"""Tests of kubeocean.model.references, among them a walk over every field of a Pod's spec.

`pod_fields.txt` lists the text fields of PodSpec of Kubernetes 1.34, from a kube-apiserver's /openapi/v3/api/v1: "[]" is a list's item,
"{}" any key of a map.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kubeocean.model.keys import physical_name
from kubeocean.model.references import References, TokenSource, references, untranslatable
from kubeocean.pods.changes import changes
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import TARGET, physical, pod
from vkubelet.api.objects import Json, Pod
from vkubelet.api.podspec import Kind, Reference
from vkubelet.errors import PodRejected

FIELDS = Path(__file__).with_name("pod_fields.txt").read_text().split()
NAMES_AN_OBJECT = re.compile(r"secret|configmap|claim|serviceaccount", re.IGNORECASE)
VICTIM = "victim"

# What the API server demands beside the one field that is tried.
BESIDE: dict[str, Json] = {
    "fieldRef": {"fieldPath": "status.podIP"},
    "serviceAccountToken": {"path": "token"},
    "persistentVolumeClaim": {"claimName": "data"},
    "env": {"name": "VARIABLE"},
    "volumes": {"name": "volume"},
    "containers": {"name": "main", "image": "app:1"},
    "initContainers": {"name": "init", "image": "app:1"},
    "ephemeralContainers": {"name": "debug", "image": "app:1"},
}

# Not references, although they sound like one: paths, keys and modes inside what has been translated, and what is left at home.
HARMLESS = re.compile(
    r"\.items\[\]\.|(Key)Ref\.key$|serviceAccountToken\.(audience|path)$|persistentVolumeClaim\.readOnly|^spec\.volumes\[\]\.ephemeral\."
    r"|^spec\.serviceAccount(Name)?$|azureFile\.shareName"
)


def pod_with(path: str, value: str) -> Pod:
    """A pod whose one field beside the necessary ones is `path`."""
    steps = re.findall(r"[^.\[\]{}]+|\[\]|\{\}", path.removeprefix("spec."))
    tree: object = value
    for at in range(len(steps) - 1, -1, -1):
        if steps[at] == "[]":
            beside = BESIDE.get(steps[at - 1], {})
            tree = [{**beside, **tree} if isinstance(tree, dict) else tree]
        elif steps[at] == "{}":
            tree = {"key": tree}
        else:
            inner = {**BESIDE.get(steps[at], {}), **tree} if isinstance(tree, dict) else tree
            tree = {steps[at]: inner}
    assert isinstance(tree, dict)
    return pod({"nodeName": "vnode", **tree})


def test_the_list_of_fields_is_the_one_we_think_it_is() -> None:
    assert len(FIELDS) > 600
    assert "spec.volumes[].projected.sources[].podCertificate.signerName" in FIELDS


@pytest.mark.parametrize("path", [path for path in FIELDS if NAMES_AN_OBJECT.search(path)])
def test_every_field_that_names_an_object_is_translated_or_rejected(path: str) -> None:
    tried = pod_with(path, VICTIM)
    try:
        found = references(tried)
        body = physical_pod(tried, TARGET)
    except PodRejected as rejected:
        assert rejected.reason == "UnsupportedReference"
        assert path.split(".")[1].removesuffix("[]") in rejected.message
        return
    if HARMLESS.search(path):
        return
    translated = physical_name("default", VICTIM)
    assert VICTIM not in json.dumps(body).replace(translated, ""), "the name arrives as the user wrote it"
    sent = json.dumps([body, _ephemeral_sent(tried)])
    assert VICTIM not in sent.replace(translated, "")
    if untranslatable(tried.spec):
        assert "ephemeralContainers" in path and "debug" not in sent and not found.objects
        return
    assert translated in sent
    assert VICTIM in {reference.name for reference in found.objects}


def _ephemeral_sent(tried: Pod) -> Json:
    """What is sent after a pod that was there before it got its ephemeral containers."""
    before = physical(physical_pod(pod(generation=0), TARGET))
    return dict(changes(tried, before, TARGET).ephemeral)


def test_ephemeral_containers_with_unknown_references_are_left_out_by_name() -> None:
    spy = {"name": "spy", "env": [{"name": "A", "valueFrom": {"vaultRef": {"name": "x"}}}]}
    good = {"name": "good", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    tried = pod({"ephemeralContainers": [good, spy]})
    [(name, why)] = untranslatable(tried.spec).items()
    assert name == "spy"
    assert why.startswith("spec.ephemeralContainers[1].env[0].valueFrom.vaultRef: this source is not supported on virtual nodes; remove it")
    assert references(tried).objects == (Reference(Kind.CONFIGMAP, "settings"),)


@pytest.mark.parametrize("path", FIELDS)
def test_no_field_crashes_the_translation(path: str) -> None:
    tried = pod_with(path, "1")
    try:
        assert physical_pod(tried, TARGET)["spec"]["automountServiceAccountToken"] is False
    except PodRejected as rejected:
        assert rejected.message


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "v", "teleport": {"to": "mars"}}]},
        {"volumes": [{"name": "v", "glusterfs": {"endpoints": "e", "path": "p"}}]},
        {"volumes": [{"name": "v", "csi": {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "x"}}}]},
        {"volumes": [{"name": "v", "configMap": {"name": "own", "otherSecretRef": {"name": "x"}}}]},
        {"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"name": "x", "path": "p"}}]}}]},
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]},
        {"futureConfigMapRef": {"name": "x"}},
        {"future": {"deep": [{"secretName": "x"}]}},
        {"containers": [{"name": "main", "env": [{"name": "A", "valueFrom": {"vaultRef": {"name": "x"}}}]}]},
        {"containers": [{"name": "main", "envFrom": [{"vaultRef": {"name": "x"}}]}]},
        {"containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]},
    ],
)
def test_unknown_references_are_rejected(spec: Json) -> None:
    with pytest.raises(PodRejected, match="UnsupportedReference") as rejected:
        references(pod(spec))
    assert "not supported on virtual nodes" in rejected.value.message


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"example.com/secret-node": "true"}},
        {"containers": [{"name": "main", "resources": {"requests": {"example.com/secret-accelerator": "1"}}}]},
        {"volumes": [{"name": "v", "image": {"reference": "registry.example/data:1", "pullPolicy": "Always"}}]},
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {"path": "/data"}}, {"name": "x", "nfs": {"server": "s"}}]},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "labelSelector": {"matchLabels": {"secret": "no"}}}]},
        {"serviceAccountName": "builder", "automountServiceAccountToken": True},
        {"futureSwitch": True},
        {"resourceClaims": []},
    ],
)
def test_what_is_no_reference_is_let_through(spec: Json) -> None:
    assert references(pod(spec)) == References((), ())


def test_all_references_of_a_pod() -> None:
    spec: Json = {
        "initContainers": [{"name": "init", "envFrom": [{"secretRef": {"name": "init-secret"}}]}],
        "containers": [
            {
                "name": "main",
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "shared", "key": "k", "optional": True}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k", "optional": True}}},
                    {"name": "C", "value": "plain"},
                ],
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "from", "optional": True}}],
            }
        ],
        "ephemeralContainers": [{"name": "debug", "envFrom": [{"configMapRef": {"name": "debug"}}]}],
        "volumes": [
            {"name": "a", "configMap": {"name": "shared"}},
            {"name": "b", "secret": {"secretName": "files", "optional": True}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSourceRef": {"name": "x"}}}}},
            {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
            {"name": "e", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "projected"}}]}},
        ],
        "imagePullSecrets": [{"name": "pull"}],
    }
    assert set(references(pod(spec)).objects) == {
        Reference(Kind.CONFIGMAP, "shared"),
        Reference(Kind.SECRET, "key", True),
        Reference(Kind.CONFIGMAP, "from", True),
        Reference(Kind.SECRET, "init-secret"),
        Reference(Kind.CONFIGMAP, "debug"),
        Reference(Kind.SECRET, "files", True),
        Reference(Kind.CLAIM, "data"),
        Reference(Kind.CLAIM, "web-scratch"),
        Reference(Kind.SECRET, "csi"),
        Reference(Kind.CONFIGMAP, "kube-root-ca.crt"),
        Reference(Kind.SECRET, "projected"),
        Reference(Kind.SECRET, "pull", True),
    }


def test_every_token_has_its_own_key_and_the_only_one_is_called_token() -> None:
    def volume(name: str, *tokens: Json) -> Json:
        return {"name": name, "projected": {"sources": [{"serviceAccountToken": token} for token in tokens]}}

    one = pod({"volumes": [volume("kube-api-access", {"path": "token", "expirationSeconds": 3607})]})
    assert references(one).tokens == (TokenSource("token", "", 3607),)
    three = pod(
        {"volumes": [volume("a", {"path": "x"}, {"path": "y", "audience": "vault"}), volume("b", {"path": "z", "expirationSeconds": 600})]}
    )
    assert references(three).tokens == (TokenSource("token"), TokenSource("token-1", "vault"), TokenSource("token-2", "", 600))
