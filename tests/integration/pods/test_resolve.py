"""What a pod refers to, resolved with the rights of one kubelet and no others; lines are those of docs/reference/kubelet-compatibility.md.

Every scene's own client has the certificate of a node (`system:node:NAME`), so that the Node authorizer answers it; objects are made and
judged by the `kubernetes` package as an administrator.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client as k8s

from tests.integration.pods.conftest import HOST_IP, World
from tests.integration.pods.resolving import (
    ALLOCATABLE,
    AheadClock,
    Scene,
    acting,
    container,
    encoded,
    from_field,
    from_key,
    text_of,
    volume_of,
)
from tests.support.audit import Audit, Call
from tests.support.program import eventually
from tests.support.witness import api_client
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import PODS, Node, Pod
from vkubelet.clock import SystemClock
from vkubelet.errors import Unavailable


@pytest.fixture
def ahead() -> float:
    """Seconds by which our clock goes before that of the API server."""
    return 0.0


@pytest.fixture
async def scene(world: World, tmp_path: Path, ahead: float) -> AsyncIterator[Scene]:
    node = f"resolving-{world.namespace}"
    body = {"metadata": {"name": node}, "spec": {"unschedulable": True, "taints": [{"key": "test", "effect": "NoSchedule"}]}}
    await asyncio.to_thread(world.witness.create_node, body)
    shown = Node.decode(encode_json({"metadata": {"name": node}, "status": {"allocatable": ALLOCATABLE}}))
    try:
        async with acting(world, node, tmp_path, clock=AheadClock(ahead), shown=shown) as made:
            yield made
    finally:
        await asyncio.to_thread(world.witness.delete_node, node)


# --- lines 62 to 67 -----------------------------------------------------------------------------------------------------------------------


_ENV = [
    {"name": "FORWARD", "value": "$(LATER)"},
    {"name": "LATER", "value": "<$(A)$(P_A)>"},
    {"name": "ESCAPED", "value": "$$(A) $(UNKNOWN) $("},
    {"name": "CHAIN", "value": "$(ESCAPED)"},
    {"name": "OWN_URL", "value": "$(MY_WEB_PORT)"},
    {"name": "B", "value": "own"},
    {"name": "EMPTY", "value": ""},
    from_key("KEY", "secret", "hidden", "PASSWORD"),
    from_key("LEFT_OUT", "configMap", "base", "missing", optional=True),
    from_field("NAME", "metadata.name"),
    from_field("NAMESPACE", "metadata.namespace"),
    from_field("UID", "metadata.uid"),
    from_field("LABEL", "metadata.labels['app']"),
    from_field("ANNOTATION", "metadata.annotations['example.com/Note']"),
    from_field("NODE", "spec.nodeName"),
    from_field("ACCOUNT", "spec.serviceAccountName"),
    from_field("HOST_IP", "status.hostIP"),
    from_field("HOST_IPS", "status.hostIPs"),
    from_field("POD_IP", "status.podIP"),
    from_field("POD_IPS", "status.podIPs"),
    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
    {"name": "MILLI", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
    {"name": "NODE_CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    {"name": "MEBI", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
]
_IMPORTED = [
    {"configMapRef": {"name": "base"}},
    {"prefix": "P_", "configMapRef": {"name": "base"}},
    {"secretRef": {"name": "hidden"}},
    {"configMapRef": {"name": "nowhere", "optional": True}},
]


def _expected(*, web: str, home: str) -> dict[str, str]:
    """All but what differs from pod to pod, written by hand."""
    return {
        "A": "from-map", "B": "own", "P_A": "from-map", "P_B": "map-b", "PASSWORD": "pa$$word",
        "FORWARD": "$(LATER)", "LATER": "<from-mapfrom-map>", "ESCAPED": "$(A) $(UNKNOWN) $(", "CHAIN": "$(A) $(UNKNOWN) $(",
        "OWN_URL": f"tcp://{web}:8080", "EMPTY": "", "KEY": "pa$$word", "LABEL": "web", "ANNOTATION": "n", "ACCOUNT": "default",
        "HOST_IP": HOST_IP, "HOST_IPS": HOST_IP, "POD_IP": "10.1.2.3", "POD_IPS": "10.1.2.3,fd00::3",
        "CPU": "2", "MILLI": "1100", "NODE_CPU": "4", "MEBI": "64",
        "KUBERNETES_SERVICE_HOST": home, "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "KUBERNETES_PORT": f"tcp://{home}:443", "KUBERNETES_PORT_443_TCP": f"tcp://{home}:443", "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
        "KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": home,
        "MY_WEB_SERVICE_HOST": web, "MY_WEB_SERVICE_PORT": "8080", "MY_WEB_SERVICE_PORT_HTTP_ALT": "8080",
        "MY_WEB_SERVICE_PORT_DNS": "53", "MY_WEB_PORT": f"tcp://{web}:8080",
        "MY_WEB_PORT_8080_TCP": f"tcp://{web}:8080", "MY_WEB_PORT_8080_TCP_PROTO": "tcp",
        "MY_WEB_PORT_8080_TCP_PORT": "8080", "MY_WEB_PORT_8080_TCP_ADDR": web,
        "MY_WEB_PORT_53_UDP": f"udp://{web}:53", "MY_WEB_PORT_53_UDP_PROTO": "udp", "MY_WEB_PORT_53_UDP_PORT": "53",
        "MY_WEB_PORT_53_UDP_ADDR": web,
    }  # fmt: skip


async def test_environment_and_command_are_those_that_a_kubelet_makes(scene: Scene) -> None:
    await scene.make("config_map", "base", data={"A": "from-map", "B": "map-b"}, binaryData={"BIN": "/w=="})
    await scene.make("secret", "hidden", data=encoded(B="from-secret", PASSWORD="pa$$word"))
    ports = [{"name": "http-alt", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    web = (await scene.make("service", "my-web", spec={"ports": ports})).spec.cluster_ip
    await scene.make("service", "headless", spec={"clusterIP": "None", "ports": [{"port": 80}]})
    home = (await asyncio.to_thread(scene.admin.witness.read_namespaced_service, "kubernetes", "default")).spec.cluster_ip
    await eventually(lambda: _knows(scene, "my-web"), "the Service is known")
    resources = {"limits": {"memory": "64Mi"}, "requests": {"cpu": "1100m", "memory": "32Mi"}}
    told = {"command": ["run", "$(B)", "$$(B)"], "args": ["$(MY_WEB_SERVICE_HOST)", "$(NOBODY)"]}
    made = container(env=_ENV, envFrom=_IMPORTED, resources=resources, **told)
    metadata = {"labels": {"app": "web"}, "annotations": {"example.com/Note": "n"}}
    resolved = await scene.running("web", containers=[made], metadata=metadata)
    main = resolved.containers["main"]
    own = {"NAME": "web", "NAMESPACE": scene.admin.namespace, "UID": resolved.pod.metadata.uid, "NODE": scene.provider.node}
    assert main.env == {**_expected(web=web, home=home), **own}
    assert (main.command, main.args) == (("run", "own", "$(B)"), (web, "$(NOBODY)"))
    assert "couldn't find key missing in ConfigMap" in await scene.event("web", "OptionalConfigMapKeyNotFound")
    assert await scene.event("web", "OptionalConfigMapNotFound") == 'configmap "nowhere" not found'
    alone = await scene.running("alone", enableServiceLinks=False)
    assert {name.split("_")[0] for name in alone.containers["main"].env} == {"KUBERNETES"}


async def _knows(scene: Scene, service: str) -> bool:
    """Whether what a new pod is told includes a Service; asked for a pod that is nowhere."""
    body = {
        "metadata": {"name": "probe", "namespace": scene.admin.namespace, "uid": f"probe-{service}"},
        "spec": {"containers": [container()]},
    }
    pod = Pod.decode(encode_json(body))
    resolved = await scene.pods.resolve(pod)
    scene.pods.pod_gone(pod.ref)
    return f"{service.upper().replace('-', '_')}_SERVICE_HOST" in resolved.containers["main"].env


# --- lines 32 to 34 -----------------------------------------------------------------------------------------------------------------------


async def test_missing_mandatory_objects_are_told_and_start_the_pod_when_they_come(scene: Scene) -> None:
    await scene.make("config_map", "partly", data={"other": "x"})
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    pods: dict[str, dict[str, Any]] = {
        "env-secret": {"containers": [container(env=[from_key("X", "secret", "none", "k")])]},
        "env-key": {"containers": [container(env=[from_key("X", "configMap", "partly", "k")])]},
        "volume": {"containers": [container(**mount)], "volumes": [{"name": "v", "secret": {"secretName": "none"}}]},
    }
    for name, spec in pods.items():
        await scene.start(name, **spec)
    namespace = scene.admin.namespace
    texts = {
        "env-secret": ("CreateContainerConfigError", 'secret "none" not found', "MandatorySecretNotFound", "Failed"),
        "env-key": (
            "CreateContainerConfigError",
            f"couldn't find key k in ConfigMap {namespace}/partly",
            "MandatoryConfigMapKeyNotFound",
            "Failed",
        ),
        "volume": ("ContainerCreating", 'MountVolume.SetUp failed for volume "v" : secret "none" not found', "FailedMount", "FailedMount"),
    }
    for name, (reason, message, *events) in texts.items():
        await scene.waiting(name, reason, message)
        for event in events:
            text = f"Error: {message}" if event == "Failed" else message
            assert await scene.event(name, event, text) == text
    began = SystemClock().monotonic()
    await scene.make("secret", "none", data=encoded(k="v"))
    await scene.change("config_map", "partly", data={"k": "late"})
    for name in pods:
        await scene.admin.running(name)
    print(f"all run {SystemClock().monotonic() - began:.1f} s after the objects came")
    assert scene.provider.resolved["env-key"].containers["main"].env["X"] == "late"


# --- line 68 ------------------------------------------------------------------------------------------------------------------------------


async def test_volumes_have_their_files_and_follow_their_sources(scene: Scene) -> None:
    await scene.make("config_map", "cfg", data={"a": "1", "b": "1"}, binaryData={"bin": "/w=="})
    await scene.make("secret", "hidden", data=encoded(key="hush"))
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o400}
    sources = [
        {"secret": {"name": "hidden", "items": [{"key": "key", "path": "deep/key", "mode": 0o440}]}},
        {"configMap": {"name": "later", "optional": True}},
        {"downwardAPI": {"items": [labels]}},
    ]
    volumes = [
        {"name": "cfg", "configMap": {"name": "cfg", "defaultMode": 0o640}},
        {"name": "all", "projected": {"sources": sources}},
        {"name": "down", "downwardAPI": {"items": [labels]}},
        {"name": "room", "emptyDir": {}},
        {"name": "unused", "configMap": {"name": "nowhere"}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("cfg", "all", "down", "room")]
    mounts += [{"name": "cfg", "mountPath": "/one", "subPath": "a"}, {"name": "room", "mountPath": "/logs", "subPathExpr": "$(NAME)/x"}]
    made = container(volumeMounts=mounts, env=[from_field("NAME", "metadata.name")])
    resolved = await scene.running("files", containers=[made], volumes=volumes, metadata={"labels": {"app": "1"}})
    cfg, whole, down = (volume_of(resolved, path) for path in ("/cfg", "/all", "/down"))
    assert {name: (cfg / name).read_bytes() for name in ("a", "b", "bin")} == {"a": b"1", "b": b"1", "bin": b"\xff"}
    assert [(path.stat().st_mode & 0o777) for path in (cfg / "a", whole / "deep/key", down / "labels")] == [0o640, 0o440, 0o400]
    assert (whole / "deep/key").read_text() == "hush" and (down / "labels").read_text() == 'app="1"'
    assert volume_of(resolved, "/room").is_dir() and volume_of(resolved, "/logs").parts[-3:] == ("room", "files", "x")
    one, before = volume_of(resolved, "/one"), os.readlink(cfg / "..data")

    began = SystemClock().monotonic()
    await scene.change("config_map", "cfg", data={"a": "2", "b": None, "c": "2"})
    await scene.change("secret", "hidden", data=encoded(key="changed"))
    await scene.make("config_map", "later", data={"optional": "came"})
    await scene.change("pod", "files", metadata={"labels": {"app": "2"}})
    await eventually(lambda: text_of(cfg / "a") == "2", "the ConfigMap's change")
    await eventually(lambda: text_of(whole / "deep/key") == "changed", "the Secret's change")
    await eventually(lambda: text_of(whole / "optional") == "came", "the optional object")
    await eventually(lambda: text_of(down / "labels") == 'app="2"' == text_of(whole / "labels"), "the label's change")
    print(f"all files are up to date after {SystemClock().monotonic() - began:.1f} s")
    assert os.readlink(cfg / "..data") != before and not (cfg / "b").exists() and (cfg / "c").read_text() == "2"
    assert one.read_text() == "1", "what is mounted by subPath does not change"

    await scene.remove("config_map", "later")
    await eventually(lambda: text_of(whole / "optional") is None, "the optional object's end")
    await scene.remove("config_map", "cfg")
    await scene.event("files", "FailedMount", 'configmap "cfg" not found')
    assert (cfg / "a").read_text() == "2", "what was there stays"


async def test_what_has_become_immutable_is_not_looked_at_again(scene: Scene) -> None:
    await scene.make("config_map", "cfg", data={"a": "1"})
    labels = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    volumes = [{"name": "cfg", "configMap": {"name": "cfg"}}, {"name": "down", "projected": {"sources": [{"downwardAPI": labels}]}}]
    made = container(volumeMounts=[{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes])
    resolved = await scene.running("fixed", containers=[made], volumes=volumes)
    file, down = (volume_of(resolved, f"/{name}") for name in ("cfg", "down"))
    await scene.change("config_map", "cfg", data={"a": "2"}, immutable=True)
    await eventually(lambda: text_of(file / "a") == "2", "the last change")
    await scene.remove("config_map", "cfg")
    await scene.make("config_map", "cfg", data={"a": "3"})
    await scene.change("pod", "fixed", metadata={"labels": {"later": "yes"}})
    await eventually(lambda: text_of(down / "labels") == 'later="yes"', "a later look at the files")
    assert text_of(file / "a") == "2", "as a kubelet, which does not look at what can not change"
    assert not [event for event in await scene.events("fixed") if event.reason == "FailedMount"]


# --- line 69 ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [471.0])
async def test_tokens_are_bound_to_the_pod_renewed_in_time_and_end_with_it(scene: Scene) -> None:
    """A token of ten minutes is due after eight; our clock is so far ahead that this is in a few seconds."""
    token = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}
    volumes = [{"name": "tokens", "projected": {"sources": [token]}}]
    made = container(volumeMounts=[{"name": "tokens", "mountPath": "/t"}])
    spec: dict[str, Any] = {"automountServiceAccountToken": False, "containers": [made], "volumes": volumes}
    resolved = await scene.running("signed", **spec, securityContext={"runAsUser": 1000})
    file = volume_of(resolved, "/t") / "token"
    first = file.read_text()
    claims = json.loads(base64.urlsafe_b64decode(first.split(".")[1] + "=="))
    assert (claims["aud"], claims["exp"] - claims["iat"]) == (["vault"], 600)
    assert claims["kubernetes.io"]["pod"] == {"name": "signed", "uid": resolved.pod.metadata.uid}
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o600, 1000 if os.geteuid() == 0 else os.geteuid())
    second = await eventually(lambda: file.read_text() if file.read_text() != first else None, "a new token", seconds=60)
    review = k8s.AuthenticationV1Api(scene.admin.witness.api_client)

    async def accepted(text: str) -> bool:
        body = {"spec": {"token": text, "audiences": ["vault"]}}
        return bool((await asyncio.to_thread(review.create_token_review, body)).status.authenticated)

    assert await accepted(second)
    await scene.admin.delete("signed")
    await scene.admin.absent("signed")

    async def refused() -> bool:
        return not await accepted(second)

    await eventually(refused, "the token ends with its pod", seconds=60)


# --- line 70 ------------------------------------------------------------------------------------------------------------------------------


async def test_pull_secrets_are_decoded_afresh_and_missing_ones_told(scene: Scene) -> None:
    def config(password: str) -> dict[str, str]:
        return encoded(**{".dockerconfigjson": json.dumps({"auths": {"registry.example": {"password": password}}})})

    await scene.make("secret", "pull", type="kubernetes.io/dockerconfigjson", data=config("old"))
    resolved = await scene.running("pulling", imagePullSecrets=[{"name": "pull"}, {"name": "nowhere"}])
    assert [(each.name, each.config["auths"]["registry.example"]) for each in resolved.pull_secrets] == [("pull", {"password": "old"})]
    assert "(nowhere)" in await scene.event("pulling", "FailedToRetrieveImagePullSecret")
    await scene.change("secret", "pull", data=config("new"))

    async def next_pull() -> bool:
        again = await scene.provider.host.resolve(resolved.pod, containers=["main"])
        return bool(again.pull_secrets[0].config["auths"]["registry.example"]["password"] == "new")

    await eventually(next_pull, "the changed Secret at the next pull")


# --- line 71 ------------------------------------------------------------------------------------------------------------------------------


async def test_a_pod_can_be_updated_after_its_objects_vanished(scene: Scene) -> None:
    await scene.make("config_map", "cfg", data={"K": "v"})
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    made = container(envFrom=[{"configMapRef": {"name": "cfg"}}], **mount)
    first = await scene.running("lasting", containers=[made], volumes=[{"name": "v", "configMap": {"name": "cfg"}}])
    await scene.remove("config_map", "cfg")
    await scene.event("lasting", "FailedMount")
    await scene.change("pod", "lasting", metadata={"labels": {"changed": "yes"}})
    changed = {"changed": "yes"}
    await eventually(lambda: scene.provider.resolved["lasting"].pod.metadata.labels == changed, "the update is synced")
    again = scene.provider.resolved["lasting"]
    assert again.containers["main"].env["K"] == "v" and (volume_of(again, "/v") / "K").read_text() == "v"
    with pytest.raises(Unavailable, match='configmap "cfg" not found'):
        await scene.provider.host.resolve(first.pod, files=first.files, containers=["main"])


# --- line 72 ------------------------------------------------------------------------------------------------------------------------------


async def test_objects_are_read_by_name_shared_and_let_go_with_the_rights_of_one_node(scene: Scene) -> None:
    audit = Audit(scene.admin.hub, f"system:node:{scene.provider.node}")
    await scene.make("secret", "shared", data=encoded(K="v"))
    await scene.make("secret", "fixed", data=encoded(F="v"), immutable=True)
    await scene.make("config_map", "large", data={"L": "x" * 1000})
    sources = [{"secretRef": {"name": "shared"}}, {"secretRef": {"name": "fixed"}}, {"configMapRef": {"name": "large"}}]
    made = container(envFrom=sources)
    pods = [await scene.start(name, containers=[made]) for name in ("one", "two", "three")]
    for pod in pods:
        assert (await scene.admin.running(pod.ref.name))["status"]["podIP"] == "10.1.2.3"
    texts = [scene.provider.resolved[pod.ref.name].containers["main"].env["L"] for pod in pods]
    assert len({id(text) for text in texts}) == 1, "pods share what they keep of an object"
    for pod in pods:
        await scene.admin.client.delete(PODS, pod.ref, grace=0)
        await scene.admin.absent(pod.ref.name)
    # The log has a watch when it ends.
    watches = await eventually(lambda: [call for call in _of_secrets(audit) if call.verb == "watch"], "the watch has ended")
    assert len(watches) == 1, "one watch for three pods"
    asked = _of_secrets(audit)
    assert {_named(call) for call in asked} == {"shared", "fixed"}, asked
    assert {call.verb for call in asked if _named(call) == "fixed"} == {"get"}, "what can not change is not watched"
    assert {call.verb for call in asked} <= {"get", "list", "watch"}
    as_node = k8s.CoreV1Api(api_client(scene.identity))
    assert await _refused(lambda: as_node.list_secret_for_all_namespaces())
    # That the pods are gone reaches the authorizer a moment later.
    await eventually(lambda: _refused(lambda: as_node.read_namespaced_secret("shared", scene.admin.namespace)), "the right has ended")


async def _refused(call: Callable[[], object]) -> bool:
    try:
        await asyncio.to_thread(call)
    except k8s.ApiException as error:
        if error.status == 403:
            return True
        raise
    return False


def _of_secrets(audit: Audit) -> list[Call]:
    return [call for call in audit.calls() if call.what == "secrets"]


def _named(call: Call) -> str:
    """The one object that was asked for, by its path or by a field selector."""
    selector = parse_qs(urlsplit(call.uri).query).get("fieldSelector", [""])[0]
    return call.name or selector.removeprefix("metadata.name=")
