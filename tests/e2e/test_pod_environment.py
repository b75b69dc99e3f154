"""A pod sees in the worker what it would see at home, and reaches the computing cluster's API from there."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.bound import Bound, apply, pod, running
from tests.support.program import eventually
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import WorkerNode
from vkubelet.testing.fixtures import run_apart

SCRIPT = """
env | sort | sed 's/^/env /'
for f in /config/* /secret/* /down/*; do echo "file $f $(cat $f)"; done
echo done
trap 'exit 0' TERM; while true; do sleep 0.2; done
"""

API_SCRIPT = """
trap 'exit 0' TERM
dir=/var/run/secrets/kubernetes.io/serviceaccount
token=${TOKEN_FILE:-$dir/token}
while true; do
  if kubectl --server=https://kubernetes.default.svc:$KUBERNETES_SERVICE_PORT --certificate-authority=$dir/ca.crt \
      --token=$(cat $token) get pods -n $(cat $dir/namespace) -o name > /tmp/out 2> /tmp/err; then
    echo "listed $(tr '\\n' ' ' < /tmp/out) claims $(cut -d. -f2 < $token)"
  else
    echo "failed $(tr '\\n' ' ' < /tmp/err)"
  fi
  sleep ${PAUSE:-1} & wait $!
done
"""


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _environment_pod(namespace: str) -> dict[str, Any]:
    body = pod("sees", namespace)
    body["metadata"].update(labels={"app": "sees", "tier": "front"}, annotations={"note": "two words"})
    container = body["spec"]["containers"][0]
    container["command"] = ["sh", "-c", SCRIPT]
    container["resources"] = {"requests": {"cpu": "20m"}, "limits": {"memory": "64Mi"}}
    container["envFrom"] = [{"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "cred"}, "prefix": "S_"}]
    container["env"] = [
        {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "colour"}}},
        {"name": "TWO", "valueFrom": {"secretKeyRef": {"name": "cred", "key": "password"}}},
        {"name": "MISSING", "valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "x", "optional": True}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        _field("POD", "metadata.name"),
        _field("NAMESPACE", "metadata.namespace"),
        _field("UID_", "metadata.uid"),
        _field("TIER", "metadata.labels['tier']"),
        _field("NOTE", "metadata.annotations['note']"),
        _field("NODE", "spec.nodeName"),
        _field("ACCOUNT", "spec.serviceAccountName"),
        _field("IP", "status.podIP"),
    ]
    container["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in ("config", "secret", "down")]
    items = [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "tier", "fieldRef": {"fieldPath": "metadata.labels['tier']"}},
    ]
    body["spec"]["volumes"] = [
        {"name": "config", "configMap": {"name": "conf"}},
        {"name": "secret", "secret": {"secretName": "cred"}},
        {"name": "down", "downwardAPI": {"items": items}},
    ]
    return body


async def test_pod_sees_in_the_worker_what_it_would_see_at_home(leased: Bound, worker_node: WorkerNode) -> None:
    namespace = await leased.hub.namespace()
    metadata = {"namespace": namespace}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf", **metadata}, "data": {"colour": "blue", "size": "9"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cred", **metadata}, "stringData": {"password": "p@ss word"}}
    await apply(leased.hub, config, secret, _environment_pod(namespace))
    at_home = await running(leased, namespace, "sees")

    async def whole_output() -> list[str] | None:
        lines = (await leased.hub.kubectl("logs", "sees", "-n", namespace)).splitlines()
        return lines if "done" in lines else None

    lines = await eventually(whole_output, "the pod printed everything")
    env = dict(line.removeprefix("env ").split("=", 1) for line in lines if line.startswith("env "))
    expected = {
        "colour": "blue",
        "size": "9",
        "S_password": "p@ss word",
        "ONE": "blue",
        "TWO": "p@ss word",
        "MEMORY": str(64 * 1024 * 1024),
        "POD": "sees",
        "NAMESPACE": namespace,
        "UID_": at_home["metadata"]["uid"],
        "TIER": "front",
        "NOTE": "two words",
        "NODE": leased.vnode(worker_node.name),
        "ACCOUNT": "default",
        "IP": at_home["status"]["podIP"],
        "HOSTNAME": "sees",
        "KUBERNETES_SERVICE_HOST": leased.hub.host_address,
        "KUBERNETES_SERVICE_PORT": str(leased.hub.port),
    }
    assert {name: env.get(name) for name in expected} == expected
    assert "MISSING" not in env
    files = {line.split(" ", 2)[1]: line.split(" ", 2)[2] for line in lines if line.startswith("file ")}
    assert files == {
        "/config/colour": "blue",
        "/config/size": "9",
        "/secret/password": "p@ss word",
        "/down/name": "sees",
        "/down/tier": "front",
    }


def _api_pod(name: str, namespace: str) -> dict[str, Any]:
    body = pod(name, namespace)
    body["spec"]["containers"][0].update(image="localhost/agnhost:dev", command=["sh", "-c", API_SCRIPT])
    return body


async def _allow_listing(bound: Bound, namespace: str) -> None:
    await bound.hub.kubectl("create", "role", "lister", "--verb=list", "--resource=pods", "-n", namespace)
    await bound.hub.kubectl("create", "rolebinding", "lister", "--role=lister", f"--serviceaccount={namespace}:default", "-n", namespace)


async def test_process_in_the_pod_lists_pods_of_the_computing_cluster(leased: Bound) -> None:
    namespace = await leased.hub.namespace()
    await _allow_listing(leased, namespace)
    await apply(leased.hub, _api_pod("lister", namespace))
    await running(leased, namespace, "lister")

    async def listed() -> bool:
        return "listed pod/lister " in await leased.hub.kubectl("logs", "lister", "-n", namespace)

    await eventually(listed, "the process in the pod listed pods")


@pytest.fixture(scope="session")
def ten_minute_token(leased: Bound) -> tuple[str, str]:
    """A pod with a token of the shortest life there is; it calls the API until the end of the run."""

    async def start() -> tuple[str, str]:
        namespace = await leased.hub.namespace("token")
        await _allow_listing(leased, namespace)
        body = _api_pod("patient", namespace)
        container = body["spec"]["containers"][0]
        container["env"] = [{"name": "TOKEN_FILE", "value": "/short/token"}, {"name": "PAUSE", "value": "15"}]
        container["volumeMounts"] = [{"name": "short", "mountPath": "/short"}]
        source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
        body["spec"]["volumes"] = [{"name": "short", "projected": {"sources": [source]}}]
        await apply(leased.hub, body)
        await running(leased, namespace, "patient")
        return namespace, "patient"

    return run_apart(start())


@pytest.mark.first
async def test_token_of_ten_minutes_is_there_from_the_start(leased: Bound, ten_minute_token: tuple[str, str]) -> None:
    namespace, name = ten_minute_token

    async def claims() -> Any:
        return _claims(await leased.hub.kubectl("logs", name, "-n", namespace))

    first = (await eventually(claims, "the pod used its token"))[0]
    assert 590 <= first["exp"] - first["iat"] <= 610
    assert first["kubernetes.io"]["pod"]["name"] == name


@pytest.mark.last
@pytest.mark.timeout(1500)
async def test_process_in_the_pod_still_lists_pods_after_its_first_token_has_expired(
    leased: Bound, ten_minute_token: tuple[str, str]
) -> None:
    """Started with the first test of the run, looked at after all others, so the ten minutes cost little of it."""
    namespace, name = ten_minute_token

    async def used_after_the_first_expired() -> Any:
        text = await leased.hub.kubectl("logs", name, "-n", namespace)
        claims, last = _claims(text), text.rpartition("\n")[0].rpartition("\n")[2]
        over = bool(claims) and SystemClock().now().timestamp() > claims[0]["exp"] + 5
        return text if over and claims[-1]["iat"] > claims[0]["iat"] and last.startswith("listed ") else None

    text = await eventually(used_after_the_first_expired, "the first token expired and another was used", seconds=840, every=4)
    lines = [line for line in text.splitlines() if line]
    # A machine that is busy for ten minutes may keep somebody from being heard, who then is not refused.
    assert not [line for line in lines if line.startswith("failed ") and "Unable to connect" not in line]


def _claims(text: str) -> list[dict[str, Any]]:
    parts = [line.split(" claims ")[1] for line in text.splitlines() if " claims " in line]
    return [json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in parts]
