"""Nothing secret leaves the Secrets: not in debug logs, events, conditions, metrics, labels, annotations or errors.

Each test first shows that its search would find something: what it plants does travel, and what it reads does hold other words of the test.
"""

from __future__ import annotations

import base64
import json
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, Scene, only_simulated, undo
from tests.support.bound import SYSTEM, Bound, condition, get
from tests.support.core import Core
from tests.support.program import Program, eventually
from tests.support.stage import Stage, virtual_uid
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import CommandFailed

READ_IN_THE_OPEN = ("pods", "nodes", "events", "configmaps", "namespaces", "serviceaccounts")


def canary() -> str:
    """A word that is nowhere else."""
    return f"canary-{uuid.uuid4().hex}"


def faces(secret: str) -> set[str]:
    """How a secret might look: itself, as base64, and the parts of a token."""
    whole = {secret, base64.b64encode(secret.encode()).decode()}
    return whole | {part for part in secret.split(".") if len(part) > 24}


@frozen
class Leak:
    """Where a secret was found."""

    place: str
    around: str


def leaks(places: dict[str, str], secrets: set[str]) -> list[Leak]:
    """Every place that holds one of the secrets, without the secret."""
    found = []
    for place, text in places.items():
        for secret in secrets:
            at = text.find(secret)
            if at >= 0:
                found.append(Leak(place, f"{text[max(0, at - 120) : at]}<here>"))
    return found


async def open_places(bound: Bound, program: Program) -> dict[str, str]:
    """Everything that can be read without the right to read Secrets; of Secrets their metadata. Specs of pods are their authors' own."""
    places = {"log": program.text()}
    for side, cluster in (("home", bound.hub), ("worker", bound.worker)):
        core = Core(cluster)
        for kind in READ_IN_THE_OPEN:
            places[f"{side} {kind}"] = json.dumps([_without_spec(each) for each in await core.list(kind)])
        places[f"{side} secrets"] = json.dumps([each["metadata"] for each in await core.list("secrets")])
        places[f"{side} leases"] = await cluster.kubectl("get", "leases", "-A", "-o", "json")
    places["bindings"] = await bound.hub.kubectl("get", "clusterbindings", "-o", "json")
    places["policies"] = await bound.worker.kubectl("get", "resourceleasingpolicies", "-o", "json")
    return places


def _without_spec(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != "spec"}


def metrics(bound: Bound) -> str:
    address = bound.settings["health"]["metrics_address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


async def test_secrets_and_tokens_of_pods_are_nowhere_but_in_secrets(common: Scene, stage: Stage) -> None:
    bound, planted = common.bound, canary()
    body = {"metadata": {"name": "planted", "namespace": stage.namespace}, "stringData": {"word": planted, "other": f"{planted}-2"}}
    await stage.home.create("secrets", body)
    await stage.create("carrier", **_uses_secret("planted"))
    carrier = await stage.running("carrier")
    copy = await stage.until_physical("planted", bool, "there", kind="secrets")
    assert base64.b64decode(copy["data"]["word"]).decode() == planted
    errors = await _provoke_errors(stage, planted)
    tokens = {base64.b64decode(value).decode() for each in await _token_secrets(stage) for value in each["data"].values()}
    assert tokens and any(virtual_uid(each) == carrier["metadata"]["uid"] for each in await _token_secrets(stage))
    secrets = {face for secret in (planted, *tokens, *_private_key(bound)) for face in faces(secret)}

    places = {**await open_places(bound, common.program), "metrics": metrics(bound), "errors": errors}
    for place, word in {
        "log": stage.namespace,
        "home events": "refused-there",
        "worker pods": "carrier",
        "metrics": "vkubelet_pods",
        "errors": "nobody",
    }.items():
        assert word in places[place], f"the search does not see {place}"
    assert [str(leak) for leak in leaks(places, secrets)] == []


def _uses_secret(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "localhost/busybox:dev",
        "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": name, "key": "word"}}}],
        "envFrom": [{"secretRef": {"name": name}}],
        "volumeMounts": [{"name": "s", "mountPath": "/s"}],
    }
    return {"containers": [container], "volumes": [{"name": "s", "secret": {"secretName": name}}]}


async def _provoke_errors(stage: Stage, planted: str) -> str:
    """Every way in which a Secret can fail to reach its pod, and the errors of the kubelet port; returns what kubectl shows of these."""
    await stage.create("misses", **_uses_secret("missing"))
    # The copy's name is taken by somebody else, who holds the same word.
    taken = {"name": stage.physical_name("taken"), "namespace": stage.bound.mount}
    await stage.there.create("secrets", {"metadata": taken, "stringData": {"word": planted}})
    await stage.home.create("secrets", {"metadata": {"name": "taken", "namespace": stage.namespace}, "stringData": {"word": planted}})
    await stage.create("conflicts", **_uses_secret("taken"))
    # The worker's admission refuses the pod.
    enforce = "pod-security.kubernetes.io/enforce"
    await stage.there.patch("namespaces", stage.bound.mount, {"metadata": {"labels": {enforce: "baseline"}}})
    await stage.until_refused_there("privileged", containers=[{"name": "m", "image": "i", "securityContext": {"privileged": True}}])
    refused = _uses_secret("planted")
    refused["containers"][0] |= {"securityContext": {"privileged": True}, "args": [planted]}
    refused["containers"][0]["env"].append({"name": "PLAIN", "value": planted})
    await stage.create("refused-there", **refused)
    unsupported = _uses_secret("planted")
    unsupported["volumes"].append({"name": "x", "storageos": {"volumeName": planted, "secretRef": {"name": "planted"}}})
    await stage.create("unsupported", **unsupported)
    for name, reason in (("misses", "MandatorySecretNotFound"), ("conflicts", "FailedCreatePod"), ("refused-there", "FailedCreatePod")):
        await stage.event(name, reason)
    await stage.until("unsupported", lambda found: found["status"]["phase"] == "Failed", "rejected")
    await stage.there.patch("namespaces", stage.bound.mount, {"metadata": {"labels": {enforce: None}}})
    await stage.there.delete("secrets", taken["name"], stage.bound.mount)
    # An edit under our hands: the copy is written again.
    copy = stage.physical_name("planted")
    await stage.there.patch("secrets", copy, {"data": {"word": None, "more": "eA=="}}, namespace=stage.bound.mount)
    await stage.until_physical("planted", lambda found: "word" in found["data"] and "more" not in found["data"], "mended", kind="secrets")
    shown = ""
    for arguments in (("logs", "carrier", "-c", "nobody"), ("exec", "carrier", "--", "echo", planted)):
        with pytest.raises(CommandFailed) as failed:
            await stage.bound.hub.kubectl(*arguments, "-n", stage.namespace)
        shown += failed.value.stderr
    return shown


async def _token_secrets(stage: Stage) -> list[dict[str, Any]]:
    label = "kubeocean.io/service-account-token"
    found = await stage.there.list("secrets", stage.bound.mount)
    return [each for each in found if label in each["metadata"].get("labels", {})]


def _private_key(bound: Bound) -> set[str]:
    """A line from the middle of the PEM of the key to the worker, as text and as the kubeconfig holds it."""
    user = decode_yaml(bound.kubeconfig_secret()["stringData"]["kubeconfig"])["users"][0]["user"]
    lines = base64.b64decode(user["client-key-data"]).decode().splitlines()
    assert "PRIVATE KEY" in lines[0] and len(lines) > 3
    return {lines[1], lines[2], user["client-key-data"][60:120]}


Spoil = Callable[[dict[str, Any], dict[str, Any], str], object]
"""Changes the cluster and the user of a good kubeconfig, given a canary; a text in return is the whole kubeconfig."""

SPOILT: dict[str, Spoil] = {
    "no YAML": lambda cluster, user, word: f'users:\n- user: {{token: "{word}\n  {word}: [',
    "tabs": lambda cluster, user, word: f"users:\n\t- token: {word}\n",
    "a tag": lambda cluster, user, word: f"users: !!python/object:{word} {{}}\n",
    "a mere word": lambda cluster, user, word: word,
    "another list": lambda cluster, user, word: f"users: [{word}]\nclusters: {word}\ncurrent-context: {{{word}: 1}}\n",
    "token": lambda cluster, user, word: (user.clear(), user.update(token=word)),
    "token is a list": lambda cluster, user, word: (user.clear(), user.update(token=[word])),
    "token of two lines": lambda cluster, user, word: (user.clear(), user.update(token=f"{word}\n{word}")),
    "token beyond ASCII": lambda cluster, user, word: (user.clear(), user.update(token=f"{word}ä€")),
    "password": lambda cluster, user, word: (user.clear(), user.update(username="u", password=word)),
    "key is no base64": lambda cluster, user, word: user.update({"client-key-data": f"{word}!"}),
    "key is no PEM": lambda cluster, user, word: user.update({"client-key-data": base64.b64encode(word.encode()).decode()}),
    "certificate is no PEM": lambda cluster, user, word: user.update({"client-certificate-data": base64.b64encode(word.encode()).decode()}),
    "token file": lambda cluster, user, word: (user.clear(), user.update(tokenFile=f"/{word}")),
    "plugin": lambda cluster, user, word: (user.clear(), user.update(exec=_plugin(word))),
    "password in the server": lambda cluster, user, word: cluster.update(server=f"https://me:{word}@127.0.0.1:9"),
    "password in the proxy": lambda cluster, user, word: cluster.update({"proxy-url": f"http://me:{word}@127.0.0.1:9"}),
    "proxy of another kind": lambda cluster, user, word: cluster.update({"proxy-url": f"socks5://me:{word}@127.0.0.1:9"}),
}


def _plugin(word: str) -> dict[str, Any]:
    api = "client.authentication.k8s.io/v1"
    return {"apiVersion": api, "command": f"/{word}", "args": [word], "env": [{"name": "A", "value": word}], "interactiveMode": "Never"}


@pytest.fixture
async def other(common: Scene, tmp_path: Path) -> AsyncIterator[Bound]:
    """A second binding of the same physical node, without a process."""
    bound = Bound(
        hub=common.bound.hub,
        worker=common.bound.worker,
        name="canary",
        directory=tmp_path,
        spec={"nodeSelector": only_simulated(common.nodes[0])},
    )
    await bound.install()
    yield bound
    await undo(bound)


async def test_nothing_of_a_kubeconfig_is_shown_whatever_is_wrong_with_it(common: Scene, other: Bound) -> None:
    core, word = Core(other.hub), canary()
    await core.delete("secrets", other.secret, SYSTEM)
    with other.program() as program:
        said: dict[str, str] = {}
        for name, spoil in SPOILT.items():
            # Without the Secret in between, two that lead to the same words could not be told apart.
            await _says(other, lambda text: "does not exist" in text, "the Secret is missed", program)
            await core.create("secrets", other.kubeconfig_secret(spoilt(other, spoil, word)))
            said[name] = await _says(other, lambda text: "does not exist" not in text, f"what is wrong: {name}", program)
            await core.delete("secrets", other.secret, SYSTEM)
        assert {name: text for name, text in said.items() if "spec.secretRef" not in text} == {}
        assert len(set(said.values())) > 6, said
        await core.create("secrets", other.kubeconfig_secret())
        await other.node_ready(common.nodes[0])
        places = await open_places(other, program)
    secrets = faces(word) | _private_key(other)
    assert "canary" in places["bindings"] and "no usable kubeconfig" in places["home events"]
    assert [str(leak) for leak in leaks(places, secrets)] == []


def spoilt(bound: Bound, spoil: Spoil, word: str) -> str:
    body = decode_yaml(bound.kubeconfig_secret()["stringData"]["kubeconfig"])
    made = spoil(body["clusters"][0]["cluster"], body["users"][0]["user"], word)
    return made if isinstance(made, str) else str(yaml.safe_dump(body))


async def _says(bound: Bound, wanted: Callable[[str], bool], what: str, program: Program) -> str:
    """The message of condition Ready=False, as soon as it is like that."""

    async def message() -> str:
        found = await get(bound.hub, "clusterbinding", bound.name)
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        text = str(conditions["Ready"]["message"]) if condition(found, "Ready") == "False" else ""
        return text if wanted(text) else ""

    try:
        return str(await eventually(message, what, seconds=STARTS_WITHIN))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{program.tail(20)}") from None
