"""Rules of logs.

Invariant: what a caller gets is observed by kubectl; what the runtime hides from callers is requested from the provider itself.
"""

from __future__ import annotations

import asyncio
import uuid

from vkubelet.api.objects import PodRef
from vkubelet.clock import parse_rfc3339
from vkubelet.errors import NoSuchPod, ProviderError
from vkubelet.provider import LogOptions, SupportsLogs
from vkubelet.testing.conformance.rules import Broken, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

END_SECONDS = 10.0
"""Seconds in which a follower is released when its container has terminated, or a stream is closed when its reader has disconnected."""

AGAIN = 0.2
"""Seconds after which an empty log is read again."""


@rule(needs=SupportsLogs)
async def log_times(stand: Stand) -> str:
    """Each line of a log starts with an RFC 3339 time, and the times do not run backwards."""
    (pod,) = await stand.running("logged")
    data = await _written(stand, pod)
    lines = data.decode(errors="replace").splitlines()
    expect(data.endswith(b"\n"), f"the last line does not end: {lines[-1]!r}")
    _expect_times(lines)
    shown = (await stand.judge.ok("logs", "logged", "--timestamps")).decode(errors="replace").splitlines()
    _expect_times(shown)
    plain = (await stand.judge.ok("logs", "logged", "--tail=1")).decode(errors="replace").splitlines()
    expect(len(plain) == 1, f"kubectl logs --tail=1 showed {len(plain)} lines")
    await stand.delete("logged")
    await stand.ended(pod)
    return f"{len(lines)} lines"


async def _written(stand: Stand, pod: Made) -> bytes:
    """Returns the log once it is not empty: a container runs before it has written. Raises Broken."""
    provider, end = stand.capability(SupportsLogs), stand.clock.monotonic() + stand.patience
    while True:
        data = b"".join([chunk async for chunk in provider.stream_logs(pod.ref, "main", LogOptions(timestamps=True))])
        if data:
            return data
        expect(stand.clock.monotonic() < end, "the log of a container that writes is empty")
        await stand.clock.sleep(AGAIN)


def _expect_times(lines: list[str]) -> None:
    times = []
    for line in lines:
        first = line.partition(" ")[0]
        try:
            times.append(parse_rfc3339(first))
        except ValueError:
            raise Broken(f"a line does not begin with an RFC 3339 time and a space: {line[:80]!r}") from None
    expect(times == sorted(times), "the times of the lines run backwards")


@rule(needs=SupportsLogs)
async def log_follow(stand: Stand) -> None:
    """A followed log shows the existing lines at once, continues while the container runs, and stops with it."""
    (pod,) = await stand.running("followed")
    async with stand.judge.started("logs", "--follow", "followed") as process:
        assert process.stdout is not None
        await _line(process.stdout, stand.patience)
        await stand.clock.sleep(0.5)
        expect(process.returncode is None, "kubectl logs --follow ended while the container ran")
        await stand.delete("followed", grace=1)
        await stand.ended(pod)
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.stdout.read()
                code = await process.wait()
        except TimeoutError:
            raise Broken(f"kubectl logs --follow did not end within {END_SECONDS:g} s after the container had") from None
        expect(code == 0, f"kubectl logs --follow ended with {code} when the container had ended")


@rule(needs=SupportsLogs)
async def log_left(stand: Stand) -> None:
    """When the reader of a followed log disconnects, the stream is closed: it can be cancelled."""
    (pod,) = await stand.running("left")
    async with stand.judge.started("logs", "--follow", "left") as process:
        assert process.stdout is not None
        await _line(process.stdout, stand.patience)
        process.kill()
        await process.wait()

    def closed() -> bool:
        return all(call.ended is not None for call in stand.recording.of("stream_logs", pod.uid))

    await stand.recording.changes.until(closed, "stream_logs ends when its reader has left", seconds=END_SECONDS)
    await stand.delete("left")
    await stand.ended(pod)


@rule(needs=SupportsLogs)
async def log_unknown(stand: Stand) -> None:
    """The log of a pod the backend does not have is NoSuchPod, so that a caller does not take it for an empty one."""
    stranger = PodRef(stand.judge.namespace, "never-was", str(uuid.uuid4()), stand.node)
    try:
        data = b"".join([chunk async for chunk in stand.capability(SupportsLogs).stream_logs(stranger, "main", LogOptions())])
    except NoSuchPod:
        return
    except ProviderError as error:
        raise Broken(f"the log of a pod that does not exist raised {type(error).__name__}, not NoSuchPod") from error
    raise Broken(f"the log of a pod that does not exist is {data[:80]!r}")


async def _line(stream: asyncio.StreamReader, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            line = await stream.readline()
    except TimeoutError:
        raise Broken(f"kubectl logs --follow showed nothing within {seconds:g} s") from None
    expect(line, "kubectl logs --follow ended without a line")
    return line


RULES = (log_times, log_follow, log_left, log_unknown)
