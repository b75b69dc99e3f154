"""The same commands, and the same mistakes, to a real kubelet and to ours have the same answers, message by message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from tests.integration.server.backend import call
from tests.integration.server.shells import Shells, Target
from tests.integration.server.test_negotiation import ALL, V1, V4, opened
from tests.integration.server.test_websocket import BASE64, connected
from tests.support.bound import delete
from tests.support.program import eventually
from tests.support.spdy_client import data_frame
from vkubelet.server import Endpoint
from vkubelet.server import spdy_frames as spdy
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.cluster.images import BUSYBOX
from vkubelet.testing.fixtures import run_apart

SPEAKING = "command=sh&command=-c&command=head+-c5%3B+echo+err+>%262%3B+exit+3"


@pytest.fixture(scope="module")
def real(worker: ControlPlane, worker_node: WorkerNode) -> Iterator[Target]:
    """A pod on a real node."""
    target = run_apart(started(worker, worker_node))
    yield target
    run_apart(delete(worker, "namespace", target.namespace, "--wait=false"))


async def started(worker: ControlPlane, worker_node: WorkerNode) -> Target:
    there = await worker.namespace("parity")

    def container(name: str, script: str) -> dict[str, object]:
        return {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}

    spec = {
        "nodeName": worker_node.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container("app", "sleep 1000"), container("dead", "exit 3")],
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    await worker.kubectl("apply", "-n", there, "-f", "-", stdin=json.dumps(manifest))

    async def settled() -> bool:
        pod = json.loads(await worker.kubectl("get", "pod", "-n", there, "web", "-o", "json"))
        states = {status["name"]: status["state"] for status in pod["status"].get("containerStatuses", ())}
        return "running" in states.get("app", {}) and "terminated" in states.get("dead", {})

    await eventually(settled, "the real pod has settled", seconds=60)
    return Target(worker, Endpoint(worker_node.address, 10250), there, "web")


@pytest.fixture
async def twins(real: Target, shells: Shells) -> tuple[Target, Target]:
    """The real pod and ours."""
    return real, shells


def understood(got: Mapping[int, bytes], error: int) -> dict[int, object]:
    """What came, with the Status of channel `error` read if it is one."""
    return {number: json.loads(data) if number == error and data[:1] == b"{" else data for number, data in got.items()}


async def test_mistakes_have_the_same_answers(twins: tuple[Target, Target]) -> None:
    questions = [
        ("/exec/NS/POD/app", {}),
        ("/exec/NS/POD/app?command=ls&output=true", {}),
        ("/exec/NS/none/app?command=ls&output=1", {}),
        ("/exec/NS/POD/none?command=ls&output=1", {}),
        ("/exec/NS/POD/dead?command=ls&output=1", {}),
        ("/attach/NS/POD/app", {}),
        ("/attach/NS/none/app?output=1", {}),
        ("/attach/NS/POD/none?output=1", {}),
        ("/attach/NS/POD/dead?output=1", {}),
        ("/portForward/NS/none", {}),
        ("/portForward/NS/POD/another-uid", {}),
        ("/run/NS/POD/app?cmd=echo+two++words", {}),
        ("/run/NS/POD/app?cmd=false", {}),
        ("/run/NS/none/app?cmd=ls", {}),
        ("/run/NS/POD/dead?cmd=ls", {}),
        ("/exec/NS/POD/app?command=ls&output=1", {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}),
        *(
            (f"{path}", {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v9.channel.k8s.io"})
            for path in ("/exec/NS/POD/app?command=ls&output=1", "/attach/NS/POD/app?output=1", "/portForward/NS/POD")
        ),
    ]
    different = {}
    for path, headers in questions:
        answers = []
        for target in twins:
            named = path.replace("NS", target.namespace).replace("POD", target.name)
            reply = await call(target.hub, target.endpoint, named, method="POST", headers=headers)
            text = reply.text.replace(target.namespace, "NS").replace(target.name, "POD")
            accepted = [value for name, value in reply.headers.items() if name == "X-Accepted-Stream-Protocol-Versions"]
            # The kubelet's streaming server says a refusal of the protocol twice, and ends its lines.
            answers.append((reply.status, accepted, text.splitlines()[:1] if accepted else text.removesuffix("\n")))
        if answers[0] != answers[1]:
            different[path, *headers] = answers
    assert different == {}


@pytest.mark.parametrize("protocol", ["", "channel.k8s.io", "v4.channel.k8s.io", *BASE64])
async def test_websockets_carry_the_same_messages(twins: tuple[Target, Target], protocol: str) -> None:
    said = []
    for target in twins:
        async with connected(target, target.path("exec", f"input=1&output=1&error=1&{SPEAKING}"), *filter(None, [protocol])) as client:
            await client.send(0, b"hello and more")
            await client.to_the_end()
            # The code of the close is not compared: theirs comes to nothing when they have not read all that was sent.
            said.append((client.messages[0], understood(client.got, 3)))
    assert said[0] == said[1]


@pytest.mark.parametrize("protocol", [name for name in ALL if name != V1])
async def test_spdy_carries_the_same_streams(twins: tuple[Target, Target], protocol: str) -> None:
    """The kubelet's first version gives its error stream up, a mistake that need not be repeated."""
    said = []
    for target in twins:
        async with target.spdy(target.path("exec", f"input=1&output=1&error=1&{SPEAKING}"), protocol) as client:
            await opened(client, "error", "stdin", "stdout", "stderr")
            await client.send(data_frame(3, b"hello and more"))
            frames = await client.until_closed()
            streams: dict[int, bytes] = {}
            for frame in frames:
                if isinstance(frame, spdy.Data):
                    streams[frame.stream] = streams.get(frame.stream, b"") + frame.data
            ended = {frame.stream for frame in frames if isinstance(frame, spdy.Data) and frame.fin}
            said.append((understood({number: data for number, data in streams.items() if data}, 1), ended & {5, 7}))
    assert said[0] == said[1]


async def test_port_forwards_end_the_same_way(twins: tuple[Target, Target]) -> None:
    said = []
    for target in twins:
        async with target.spdy(target.path("portForward", ""), "portforward.k8s.io") as client:
            for number, headers in ((1, {"streamtype": "stdin"}), (3, {"streamtype": "data", "port": "0"}), (5, {"streamtype": "data"})):
                await client.send(client.open_frame(number, headers))
            refused = {(await client.next(spdy.Reset)).stream for _ in range(3)}
            for number, kind in ((7, "error"), (9, "data")):
                await client.send(client.open_frame(number, {"streamtype": kind, "port": "1", "requestid": "a"}))
            told = (await client.next(spdy.Data, lambda frame: bool(frame.data))).data.decode()
            said.append((refused, told.partition(" to pod ")[0]))
    assert said[0] == said[1]


@pytest.mark.parametrize("query", ["", "port=x", "port=0", "port=99999", "port=1&port=y"])
async def test_ports_are_refused_in_the_same_words(twins: tuple[Target, Target], query: str) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "A" * 22 + "=="}
    headers["Sec-WebSocket-Protocol"] = V4
    replies = [await call(target.hub, target.endpoint, target.path("portForward", query), headers=headers) for target in twins]
    assert len({(reply.status, reply.text) for reply in replies}) == 1, replies
