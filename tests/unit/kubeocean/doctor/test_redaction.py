"""Secret values leave no trace in a support bundle, wherever they are."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
import yaml

from kubeocean.doctor.redaction import REMOVED, Redactor

CANARY = "c4nary-Vq8x-7731"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl"
USER = {"token": CANARY, "client-key-data": base64.b64encode(CANARY.encode()).decode()}
KUBECONFIG = yaml.safe_dump({"users": [{"name": "u", "user": USER}]})


def secret(value: str) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": "s"}, "data": {"kubeconfig": base64.b64encode(value.encode()).decode()}}


LAST_APPLIED = json.dumps({"kind": "Secret", "stringData": {"password": CANARY}})
PLACES: dict[str, dict[str, Any]] = {
    "Secret data": secret(KUBECONFIG),
    "Secret stringData": {"kind": "Secret", "stringData": {"any": CANARY}},
    "env": {"kind": "Pod", "spec": {"containers": [{"env": [{"name": "A", "value": CANARY}]}]}},
    "args": {"kind": "Pod", "spec": {"containers": [{"command": ["sh", "-c", CANARY], "args": [f"--x={CANARY}"]}]}},
    "last-applied": {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": LAST_APPLIED}}},
    "annotation of others": {"metadata": {"annotations": {"vault.example.com/inject": CANARY}}},
    "annotation with metadata": {"metadata": {"annotations": {"kubeocean.io/expected-metadata": json.dumps({"a": CANARY})}}},
    "settings": {"kind": "ConfigMap", "data": {"settings.yaml": yaml.safe_dump({"provider": {"kubeconfig": KUBECONFIG, "token": CANARY}})}},
    "file of a ConfigMap": {"kind": "ConfigMap", "data": {"plain.txt": CANARY}},
    "binary of a ConfigMap": {"kind": "ConfigMap", "binaryData": {"b": base64.b64encode(CANARY.encode()).decode()}},
    "event with a token": {"kind": "Event", "message": f"login failed: Authorization: Bearer {CANARY}"},
    "field named password": {"spec": {"password": CANARY, "apiToken": CANARY, "apiKey": CANARY}},
}


@pytest.mark.parametrize("place", PLACES)
def test_no_value_is_left_in_an_object_even_if_it_is_not_known(place: str) -> None:
    made = json.dumps(Redactor().body(PLACES[place]))
    assert CANARY not in made and base64.b64encode(CANARY.encode()).decode() not in made and REMOVED in made


@pytest.mark.parametrize(
    "line",
    [
        f'level=error msg="cannot authenticate" token={CANARY}',
        f'{{"msg": "settings", "password": "{CANARY}"}}',
        f"GET https://admin:{CANARY}@proxy.example.com/",
        f"authorization: Bearer {CANARY}",
        f"curl -H 'Authorization: Basic {base64.b64encode(CANARY.encode()).decode()}'",
        f"cloning https://{CANARY}@git.example.com/x.git",
        f"curl -H 'Authorization: Token {CANARY}' https://example.com",
        f'{{"msg": "Cookie: theme=dark; sid={CANARY}"}}',
        f"-----BEGIN EC PRIVATE KEY-----\n{CANARY}\n-----END EC PRIVATE KEY-----",
    ],
)
def test_no_value_is_left_in_a_log_line_that_shows_what_it_is(line: str) -> None:
    made = Redactor().text(line)
    assert CANARY not in made and base64.b64encode(CANARY.encode()).decode() not in made
    assert JWT not in Redactor().text(f"sent {JWT} to the API server")


def test_a_known_value_is_removed_in_every_form() -> None:
    redactor = Redactor.of([secret(KUBECONFIG), secret('with "quotes" inside')])
    encoded = base64.b64encode(KUBECONFIG.encode()).decode()
    for text in (f"unexpected {CANARY} here", f"stored as {encoded}", json.dumps({"x": 'with "quotes" inside'}), KUBECONFIG):
        made = redactor.text(text)
        assert CANARY not in made and encoded not in made and "quotes" not in made


def test_what_helps_to_find_a_fault_is_kept() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": {"kubeocean.io/physical-pod-name": "web-1"}, "labels": {"app": "web"}},
        "spec": {
            "containers": [{"image": "app:1", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
            "volumes": [{"secret": {"secretName": "s"}}],
            "imagePullSecrets": [{"name": "pull"}],
            "automountServiceAccountToken": False,
        },
    }
    assert Redactor().body(pod) == pod
    reference = "spec.secretRef: Secret kubeocean-system/demo does not exist; create it"
    assert Redactor().strings({"a": [reference, True, 5]}) == {"a": [reference, True, 5]}
    for text in (reference, "10 tokens were renewed", "dial tcp 10.0.0.1:6443: i/o timeout"):
        assert Redactor().text(text) == text
    policy = {"kind": "ConfigMap", "data": {"settings.yaml": "server:\n  node_address: 10.0.0.1\n"}}
    assert "10.0.0.1" in Redactor().body(policy)["data"]["settings.yaml"]


def test_the_login_of_a_registry_is_removed_also_where_its_form_says_nothing() -> None:
    login = base64.b64encode(f"robot:{CANARY}".encode()).decode()
    config = json.dumps({"auths": {"registry.example.com": {"username": "robot", "auth": login}}})
    assert login not in Redactor.of([secret(config)]).text(f"pull with {login} failed")
    assert "registry.example.com" in Redactor.of([secret(config)]).text("pull from registry.example.com failed")


def test_namespaces_of_service_accounts_stay_readable() -> None:
    data = {"token": JWT, "namespace": "kubeocean-system", "ca.crt": "PUBLIC CERTIFICATE"}
    account = {
        "type": "kubernetes.io/service-account-token",
        "data": {key: base64.b64encode(each.encode()).decode() for key, each in data.items()},
    }
    text = f"pod kubeocean-system/web sent {JWT[:30]} and {JWT}"
    assert Redactor.of([account]).text(text) == f"pod kubeocean-system/web sent {JWT[:30]} and {REMOVED}"


def test_values_that_overlap_are_removed_together() -> None:
    redactor = Redactor.of([secret("aaaa-bbbb-cccc"), secret("cccc-dddd"), secret("bbbb-c")])
    assert redactor.text("x aaaa-bbbb-cccc-dddd y bbbb-c z") == f"x {REMOVED} y {REMOVED} z"


def test_thousands_of_secrets_and_long_words_are_searched_within_seconds() -> None:
    def measured(count: int, texts: list[str]) -> float:
        redactor = Redactor.of([secret(f"{number:05}-{'v' * 20}") for number in range(count)])
        began = time.process_time()
        assert all(REMOVED not in redactor.text(text) for text in texts)
        return time.process_time() - began

    assert measured(5000, [f"container main of pod team-{number}/web is ready" for number in range(20_000)]) < 10.0
    assert measured(1, ["f" * 200_000]) < 10.0
