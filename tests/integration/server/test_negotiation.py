"""Which protocol a client gets, and what each version makes of the same end; with a client that sends what it is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.integration.server.shells import Shells, shells_on
from tests.support.program import eventually
from tests.support.spdy_client import SpdyClient, connected, data_frame
from vkubelet.server import spdy_frames as spdy
from vkubelet.testing.cluster import ControlPlane

V1, V2, V3, V4 = "channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io", "v4.channel.k8s.io"
ALL = [V4, V3, V2, V1]
ENDING = "output=1&command=sh&command=-c&command=echo+out%3B+exit+$CODE"
PLAIN = "command terminated with non-zero exit code: error executing command [sh -c echo out; exit 3], exit code 3"
STATUS = {
    "metadata": {},
    "status": "Failure",
    "message": PLAIN,
    "reason": "NonZeroExitCode",
    "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
}


async def opened(client: SpdyClient, *kinds: str) -> dict[str, int]:
    """Streams opened one after another, each answered; their numbers."""
    numbers = {kind: 2 * at + 1 for at, kind in enumerate(kinds)}
    for kind, number in numbers.items():
        await client.send(client.open_frame(number, {"streamtype": kind}))
        assert (await client.next(spdy.SynReply)).stream == number
    return numbers


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("code", [0, 3])
async def test_every_version_tells_the_end_in_its_own_way(shells: Shells, protocol: str, *, code: int) -> None:
    async with shells.spdy(shells.path("exec", ENDING.replace("$CODE", str(code))), protocol) as client:
        assert f"X-Stream-Protocol-Version: {protocol}\r\n" in client.head
        await opened(client, "error", "stdout")
        assert await client.read_stream(3) == b"out\n"
        told = (await client.read_stream(1)).decode()
        if protocol == V4:
            assert json.loads(told) == (STATUS if code else {"metadata": {}, "status": "Success"})
        else:
            assert told == (PLAIN if code else "")
        frames = await client.until_closed()
    kinds = [(frame.stream, frame.fin) for frame in frames if isinstance(frame, spdy.Data) and frame.fin]
    assert kinds == [(3, True), (1, True)], "the outputs end before the error stream"


@pytest.mark.parametrize("protocol", [V3, V4])
async def test_sizes_come_from_version_3_on_and_none_after_the_end(shells: Shells, protocol: str) -> None:
    path = shells.path("exec", "input=1&output=1&error=1&tty=1&command=sh")
    async with shells.spdy(path, protocol) as client:
        # No stderr: a terminal has none.
        numbers = await opened(client, "error", "stdin", "stdout", "resize")
        sizes = shells.backend.calls.sizes
        await client.send(data_frame(numbers["resize"], b'{"Width":101,"Height":31}\n'))
        await eventually(lambda: [size.width for size in sizes] == [101], "the size is there", every=0.01)
        for ping, part in ((1, b'{"Width":0,"Height":0}\n{"Wid'), (3, b'th":102,"Height":32}')):
            await client.send(data_frame(numbers["resize"], part), spdy.ping(ping))
            await client.next(spdy.Ping)
        await eventually(lambda: sizes[-1].width == 102, "the next size is there", every=0.01)
        await client.send(data_frame(numbers["stdin"], b"stty size; exit\n"))
        assert b"32 102\r\n" in await client.read_stream(numbers["stdout"])
    assert [size.width for size in sizes] == [101, 102]


@pytest.mark.parametrize("protocol", [V1, V2])
async def test_older_versions_have_a_terminal_without_sizes(shells: Shells, protocol: str) -> None:
    path = shells.path("exec", "output=1&tty=1&command=sh&command=-c&command=test+-t+1+%26%26+echo+terminal")
    async with shells.spdy(path, protocol) as client:
        await opened(client, "error", "stdout")
        assert await client.read_stream(3) == b"terminal\r\n"


async def test_the_clients_first_choice_that_we_know_wins(shells: Shells) -> None:
    path = shells.path("exec", ENDING.replace("$CODE", "0"))
    for offered, chosen in (
        (["v5.channel.k8s.io", V4, V3, V2, V1], V4),
        ([V2, V4], V2),
        (["v9.channel.k8s.io, v3.channel.k8s.io", V4], V3),
    ):
        async with shells.spdy(path, *offered) as client:
            assert f"X-Stream-Protocol-Version: {chosen}\r\n" in client.head


async def test_no_common_version_is_a_403_that_lists_ours(shells: Shells) -> None:
    for verb, query, ours in (
        ("exec", "output=1&command=true", ALL),
        ("attach", "output=1", ALL),
        ("portForward", "", ["portforward.k8s.io"]),
    ):
        async with shells.spdy(shells.path(verb, query), "v9.channel.k8s.io", "v8.channel.k8s.io", status=403) as client:
            lines = [line for line in client.head.split("\r\n") if line.lower().startswith("x-accepted")]
            assert lines == [f"X-Accepted-Stream-Protocol-Versions: {name}" for name in ours]
            body = (await client.reader.readuntil(b"]")).decode() + (await client.reader.readuntil(b"]")).decode()
            assert body == (
                "unable to upgrade: unable to negotiate protocol: client supports [v9.channel.k8s.io v8.channel.k8s.io], "
                f"server accepts [{' '.join(ours)}]"
            )


async def test_no_version_at_all_is_a_400(shells: Shells) -> None:
    for verb, query in (("exec", "output=1&command=true"), ("portForward", "")):
        async with shells.spdy(shells.path(verb, query), status=400) as client:
            assert await client.reader.readuntil(b"required") == b"unable to upgrade: X-Stream-Protocol-Version is required"


async def test_streams_that_do_not_come_in_time_end_the_session_before_anything_runs(
    hub: ControlPlane, streams_namespace: str, tmp_path: Path
) -> None:
    async with shells_on(hub, streams_namespace, tmp_path, stream_creation_timeout=1.5) as shells:
        async with shells.spdy(shells.path("exec", "input=1&output=1&command=touch&command=ran"), V4) as client:
            await opened(client, "error", "stdout")
            frames = await client.until_closed()
            assert isinstance(frames[-1], spdy.GoAway)
            # An empty error stream would be a success.
            assert not [frame for frame in frames if isinstance(frame, spdy.Data)]
        assert not (tmp_path / "ran").exists()


async def test_streams_that_do_not_belong_there_are_refused_and_the_rest_works(shells: Shells) -> None:
    async with shells.spdy(shells.path("exec", ENDING.replace("$CODE", "0")), V4) as client:
        await client.send(client.open_frame(1, {"streamtype": "error"}))
        for number, headers in ((3, {"streamtype": "stdin"}), (5, {"streamtype": "error"}), (7, {})):
            await client.send(client.open_frame(number, headers))
            assert (await client.next(spdy.Reset)).stream == number
        await client.send(client.open_frame(9, {"streamtype": "stdout"}))
        assert await client.read_stream(9) == b"out\n"
        assert json.loads(await client.read_stream(1))["status"] == "Success"


async def test_a_client_that_left_before_its_streams_leaves_nothing(shells: Shells) -> None:
    tasks = len(asyncio.all_tasks())
    path = shells.path("exec", "output=1&command=sleep&command=1000")
    for _ in range(20):
        async with shells.spdy(path, V4) as client:
            await opened(client, "error")
    async with connected(shells.endpoint.address, shells.endpoint.port, None) as plain:
        plain.abort()
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")
    assert shells.backend.calls.cancelled.total() == 0
