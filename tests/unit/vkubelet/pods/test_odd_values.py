"""Odd text and numbers in one pod end neither the process nor another pod, and no Secret's value is published.

Invariant: whatever is drawn, the pod `plain` runs, is published and ends as if it were alone.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory_api import Body, MemoryApi
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import NODES, Node, Pod, PodRef
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.errors import Unavailable
from vkubelet.pods import Pods
from vkubelet.provider import ContainerReport, Host, PodReport, Running, Terminated, Waiting
from vkubelet.resolve.redaction import HIDDEN
from vkubelet.testing.clock import ManualClock

PODS_PATH, SECRET, CONFIG = "/api/v1/namespaces/d/pods", "/api/v1/namespaces/d/secrets/s", "/api/v1/namespaces/d/configmaps/c"

TEXT = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["", "\0", "$(", "$(KEY)", "a" * 100_000, "‮", "9" * 400, "../..", "%00", "{}", "null", "-1", "1e999999999"]),
)
"""What the API can transport; lone surrogates come from the bytes of Secrets."""
ODD = st.one_of(TEXT, st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.just([]), st.just({}))
MAP = st.dictionaries(TEXT, TEXT, max_size=3)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/gpu"]) | TEXT, TEXT | st.integers(-(2**63), 2**63 - 1), max_size=3)
LONE = st.text(alphabet=st.characters(), max_size=20) | st.just("\udcff")


@st.composite
def odd_specs(draw: st.DrawFn) -> Body:
    env: list[Body] = [
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "TEXT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key", "optional": True}}},
        {"name": draw(TEXT), "value": draw(TEXT)},
    ]
    container: Body = {
        "name": draw(TEXT),
        "image": draw(TEXT),
        "command": draw(st.lists(TEXT | st.just("$(KEY)"), max_size=3)),
        "args": ["$(KEY)$(TEXT)", draw(TEXT)],
        "env": env,
        "resources": {"requests": draw(AMOUNTS), "limits": draw(AMOUNTS)},
        "ports": [{"containerPort": draw(ODD), "hostPort": draw(ODD), "protocol": draw(ODD)}],
    }
    fields = st.sampled_from(["hostname", "nodeSelector", "affinity", "tolerations", "priority", "restartPolicy", "os", "volumes"])
    return {"nodeName": "n", "containers": [container], **draw(st.dictionaries(fields, ODD, max_size=2))}


@st.composite
def odd_pods(draw: st.DrawFn) -> Body:
    meta: Body = {"name": "odd", "namespace": "d", "uid": "uid-odd", "labels": draw(MAP), "annotations": draw(MAP)}
    for name in draw(st.sets(st.sampled_from(["creationTimestamp", "generation", "deletionGracePeriodSeconds", "finalizers"]))):
        meta[name] = draw({"creationTimestamp": TEXT, "finalizers": st.lists(TEXT)}.get(name, st.integers(-(2**63), 2**63 - 1)))
    if draw(st.booleans()):
        meta["deletionTimestamp"] = draw(TEXT | st.just("0000-01-01T00:00:00Z") | st.just("9999-12-31T23:59:59Z"))
    status = draw(st.dictionaries(st.sampled_from(["startTime", "conditions", "containerStatuses", "reason", "podIP", "qosClass"]), ODD))
    return {"metadata": meta, "spec": draw(odd_specs()), "status": {"phase": "Pending", **status}}


def pod(name: str) -> Body:
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"nodeName": "n", "containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


class Quoting:
    """A provider that quotes in its errors and reports all that it was given, as backends do."""

    poll_interval = 5.0

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts)
        self.deleted: list[str] = []
        self.running: dict[str, PodReport] = {}
        self.pods: Pods

    async def run(self, host: Host) -> None:
        await host.until_stopped()

    async def sync_pod(self, pod: Pod) -> None:
        if pod.ref.name == "plain":
            self.running[pod.ref.uid] = report = PodReport(pod.ref, [ContainerReport("main", Running())])
            self.pods.report(report)
            return
        resolved = await self.pods.resolve(pod)
        given = [text for each in resolved.containers.values() for text in (*each.command, *each.args, *each.env.values())]
        waits = [ContainerReport(each.name, Waiting("Odd", f"{given}")) for each in resolved.containers.values()]
        self.pods.report(PodReport(pod.ref, waits))
        raise Unavailable(f"cannot run {' '.join(given)}: {self.texts}", event=self.texts[0] or "Odd", waiting=self.texts[0])

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.deleted.append(pod.name)
        self.running.pop(pod.uid, None)
        self.pods.pod_gone(pod)

    async def list_pods(self, node: str) -> list[PodReport]:
        ref = PodRef(self.texts[0], self.texts[-1], "uid-odd", node)
        odd = PodReport(ref, [ContainerReport(text, Terminated(2**40, text, text)) for text in self.texts])
        return [odd, *self.running.values()]


class Stand:
    """The pods' side of a runtime, and its events, on an API in memory."""

    def __init__(self, odd: Body, *, secret: bytes, texts: Iterable[str], node: Body) -> None:
        self.clock, self.api = ManualClock(), MemoryApi()
        self.api.put(SECRET, {"metadata": {"name": "s", "namespace": "d"}, "data": {"key": base64.b64encode(secret).decode()}})
        self.api.put(CONFIG, {"metadata": {"name": "c", "namespace": "d"}, "data": {"key": next(iter(texts))}})
        self.api.put(f"{PODS_PATH}/odd", odd)
        plain = pod("plain")
        for container in plain["spec"]["containers"]:
            # An odd pod may request all that the node has.
            container.pop("resources", None)
        self.api.put(f"{PODS_PATH}/plain", plain)
        client = self.api.client()
        live = Node.decode(encode_json(node))
        self.recorder = Recorder(client, "vkubelet", clock=self.clock, redact=lambda uid, text: self.pods.redacted(uid, text))
        self.provider = Quoting(texts)
        self.pods = self.provider.pods = Pods(
            provider=self.provider,
            client=client,
            node_client=lambda name: client,
            recorder=self.recorder,
            clock=self.clock,
            node=lambda name: live,
            node_ips=lambda name: ("10.0.0.1",),
        )
        self.node = ObjectReference(NODES.api_version, NODES.kind, "n")

    async def play(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run()) for run in (self.pods.informer.run, self.pods.run, self.recorder.run)]
            self.pods.enable("n")
            await self.clock.advance(30.0)
            assert self._phase("plain") == "Running"
            self.api.put(f"{PODS_PATH}/plain", _deleting(self.api.objects[f"{PODS_PATH}/plain"]))
            self.recorder.event(self.node, "Still", "events are still written")
            await self.clock.advance(60.0)
            assert "plain" in self.provider.deleted
            assert self.pods.store.by_name("d", "plain") is None
            assert any(message == "events are still written" for message in self.messages())
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()

    def _phase(self, name: str) -> str | None:
        found: str | None = self.api.objects[f"{PODS_PATH}/{name}"]["status"].get("phase")
        return found

    def messages(self) -> list[str]:
        return [write.body["message"] for write in self.api.writes if "message" in write.body]


def _deleting(body: Body) -> Body:
    meta: dict[str, Any] = {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:31Z", "deletionGracePeriodSeconds": 1}
    return {**body, "metadata": meta}


NODE: Body = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    odd=odd_pods(),
    secret=st.binary(max_size=40),
    texts=st.lists(LONE, min_size=1, max_size=3),
    labels=MAP,
    amounts=AMOUNTS,
)
def test_one_odd_pod_disturbs_no_other(odd: Body, secret: bytes, texts: list[str], labels: dict[str, str], amounts: dict[str, Any]) -> None:
    allocatable = {**amounts, "cpu": "4", "pods": "10"}
    node = {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": allocatable}}
    asyncio.run(Stand(odd, secret=secret, texts=texts, node=node).play())


def test_no_value_of_a_secret_is_in_an_event_or_a_status() -> None:
    odd = pod("odd")
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}]
    odd["spec"]["containers"][0].update(command=["$(KEY)"], env=env)
    stand = Stand(odd, secret=b"/bin/\xffhush\n", texts=["x"], node=NODE)
    asyncio.run(stand.play())
    assert any(HIDDEN in message for message in stand.messages())
    assert "hush" not in str(stand.api.writes)
    assert any(HIDDEN in str(write.body["status"]) for write in stand.api.writes if "status" in write.body)
