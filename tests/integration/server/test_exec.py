"""`kubectl exec` and `cp` through a real API server, in both of kubectl's modes, with real processes behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.server.backend import Backend, call, serving
from tests.integration.server.shells import NOTICED, SPDY, WEBSOCKETS, Shells, Target, shells_on
from tests.integration.server.terminal import interrupt, kubectl_at_terminal
from tests.integration.tries import median_within
from tests.support.program import PATIENCE, eventually
from vkubelet.errors import BadRequest, NoSuchContainer, NotSupported, Unavailable
from vkubelet.provider import TerminalSize
from vkubelet.server import Endpoint
from vkubelet.testing.cluster import ControlPlane

both_modes = pytest.mark.parametrize("websockets", [WEBSOCKETS, SPDY], ids=["websockets", "spdy"])


@both_modes
async def test_exit_codes_and_outputs_come_back(shells: Shells, *, websockets: bool) -> None:
    async def ends_with(code: int) -> None:
        ran = await shells.exec("sh", "-c", f"echo out; echo err >&2; exit {code}", websockets=websockets)
        assert (ran.code, ran.stdout) == (code, b"out\n"), ran.stderr
        assert ran.stderr.startswith("err\n")
        assert (f"exit code {code}" in ran.stderr) == bool(code)

    async with asyncio.TaskGroup() as group:
        for code in (0, 1, 7, 137, 255):
            group.create_task(ends_with(code))
    await shells.until_idle()


async def test_a_process_that_was_killed_counts_as_in_a_shell(shells: Shells) -> None:
    ran = await shells.exec("sh", "-c", "kill -9 $$")
    assert ran.code == 137, ran.stderr


@both_modes
async def test_a_hundred_megabytes_through_cat_come_back_unchanged(shells: Shells, tmp_path: Path, *, websockets: bool) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    piece = os.urandom(1024 * 1024)
    with there.open("wb") as file:
        for number in range(100):
            file.write(piece[number:] + piece[:number])
    options = ("exec", "-i", shells.name, "-c", "app", "--", "cat")
    with there.open("rb") as source, back.open("wb") as target:
        async with asyncio.timeout(90), shells.kubectl(*options, websockets=websockets, stdin=source.fileno(), stdout=target) as kubectl:
            # cat ends by nothing but the end of its input.
            assert await kubectl.wait() == 0
    with there.open("rb") as sent, back.open("rb") as received:
        assert hashlib.file_digest(received, "sha256").digest() == hashlib.file_digest(sent, "sha256").digest()


@both_modes
async def test_both_outputs_are_whole_and_in_order_up_to_the_last_byte(shells: Shells, *, websockets: bool) -> None:
    script = "seq 1 150000 & seq 150001 300000 >&2; wait; printf end; printf END >&2"
    ran = await shells.exec("sh", "-c", script, websockets=websockets)
    assert ran.stdout == b"".join(b"%d\n" % number for number in range(1, 150001)) + b"end"
    assert ran.stderr == "".join(f"{number}\n" for number in range(150001, 300001)) + "END"


@both_modes
async def test_a_session_at_a_terminal(shells: Shells, *, websockets: bool) -> None:
    async with kubectl_at_terminal(shells, "exec", "-it", shells.name, "-c", "app", "--", "sh", websockets=websockets) as terminal:
        await eventually(lambda: TerminalSize(80, 24) in shells.backend.calls.sizes, "the size has come")
        terminal.type(b"stty size\n")
        await terminal.expect(rb"24 80\r\n")
        terminal.resize(rows=40, columns=120)
        await eventually(lambda: TerminalSize(120, 40) in shells.backend.calls.sizes, "the new size has come")
        terminal.type(b"stty size\n")
        await terminal.expect(rb"40 120\r\n")
        terminal.type(b"echo to std''err >&2\n")
        await terminal.expect(rb"to stderr\r\n")
        terminal.type(b"sh -c \"echo be''gun; exec sleep 1000\"\n")
        await terminal.expect(rb"begun\r\n")
        await interrupt(terminal)
        terminal.type(b"echo interrupted by $?\n")
        await terminal.expect(rb"interrupted by 130\r\n")
        terminal.type(b"exit 7\n")
        async with asyncio.timeout(PATIENCE):
            assert await terminal.process.wait() == 7
    await shells.until_idle()
    sizes = shells.backend.calls.sizes
    assert sizes[-1] == TerminalSize(120, 40)
    assert len(sizes) <= 4, "nothing but the two sizes, however often they came"


@both_modes
async def test_input_that_nobody_reads_any_more_does_not_stop_the_rest(shells: Shells, *, websockets: bool) -> None:
    script = "exec <&-; sleep 0.5; echo still here"
    ran = await shells.exec("sh", "-c", script, flags="-i", websockets=websockets, stdin=bytes(3 * 1024 * 1024))
    assert (ran.code, ran.stdout) == (0, b"still here\n"), ran.stderr


async def test_a_process_that_closes_its_outputs_still_gets_all_its_input(shells: Shells) -> None:
    ran = await shells.exec("sh", "-c", "exec >&- 2>&-; cat > all", flags="-i", stdin=b"x" * 500_000)
    assert ran.code == 0, ran.stderr
    assert (shells.directory / "all").stat().st_size == 500_000


@both_modes
async def test_killed_kubectl_ends_the_process_within_two_seconds(shells: Shells, *, websockets: bool) -> None:
    options = ("exec", "-i", shells.name, "-c", "app", "--", "sh", "-c", "echo begun; exec sleep 1000")

    async def once() -> float:
        async with shells.kubectl(*options, websockets=websockets, stdin=asyncio.subprocess.PIPE) as kubectl:
            assert kubectl.stdout is not None
            assert await kubectl.stdout.readline() == b"begun\n"
            assert shells.streams("exec") == 1
            kubectl.send_signal(signal.SIGKILL)
            seconds = await shells.until_idle()
        await eventually(lambda: shells.streams("exec") == 0, "the metric is back")
        return seconds

    tries = await median_within(NOTICED, once, "the end of a killed kubectl's process")
    assert shells.backend.calls.cancelled["exec"] == len(tries)


@both_modes
async def test_cp_both_ways(hub: ControlPlane, streams_namespace: str, tmp_path: Path, *, websockets: bool) -> None:
    programs, inside, there, back = (tmp_path / name for name in ("bin", "inside", "there", "back"))
    for directory in (programs, inside, there / "below"):
        directory.mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    (programs / "tar").symlink_to(busybox)
    (there / "one").write_bytes(os.urandom(3_000_000))
    (there / "below" / "two words").write_text("two")
    async with shells_on(hub, streams_namespace, inside, path=str(programs)) as shells:
        into = await shells.run("cp", str(there), f"{shells.name}:{inside}/copied", "-c", "app", websockets=websockets)
        assert into.code == 0, into.stderr
        out = await shells.run("cp", "--retries=2", f"{shells.name}:{inside}/copied", str(back), "-c", "app", websockets=websockets)
        assert out.code == 0, out.stderr
    for copy in (inside / "copied", back):
        assert (copy / "one").read_bytes() == (there / "one").read_bytes()
        assert (copy / "below" / "two words").read_text() == "two"


@both_modes
async def test_errors_of_the_provider_reach_the_user_as_far_as_they_are_meant_for_him(shells: Shells, *, websockets: bool) -> None:
    for failure, text in (
        (NoSuchContainer("it went away just now"), "it went away just now"),
        (BadRequest("not like this"), "not like this"),
        (NotSupported("no shell here: use the console"), "no shell here: use the console"),
        (Unavailable("the backend restarts"), "the backend restarts"),
        (ExceptionGroup("several", [Unavailable("inside a group")]), "inside a group"),
        (NotImplementedError("who knows"), "not implemented by the provider of this node"),
        (ValueError("secret insides"), "Internal error occurred: error executing command in container: internal error"),
        (OSError("secret insides"), "Internal error occurred: error executing command in container: internal error"),
    ):
        shells.backend.failure = failure
        ran = await shells.exec("true", websockets=websockets)
        assert ran.code == 1
        assert text in ran.stderr
        assert "secret" not in ran.stderr
    shells.backend.failure = None
    ran = await shells.exec("no-such-program", websockets=websockets)
    assert 'exec: "no-such-program": executable file not found in $PATH' in ran.stderr


@both_modes
async def test_no_container_to_run_in(shells: Shells, *, websockets: bool) -> None:
    for container in ("dead", "coming"):
        ran = await shells.exec("true", container=container, websockets=websockets)
        assert ran.code == 1
        assert f'container not found ("{container}")' in ran.stderr
    shells.stand.pods.held.clear()
    ran = await shells.exec("true", websockets=websockets)
    assert ran.code == 1
    assert "pod does not exist" in ran.stderr


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/exec/NS/POD/app?command=true", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/NS/POD/app?command=true&output=true", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/NS/POD/app?command=true&error=1&tty=1", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/NS/none/app?command=true&output=1", 404, "pod does not exist"),
        ("/exec/NS/POD/none?command=true&output=1", 500, 'container not found ("none")'),
        ("/exec/NS/POD/dead?command=true&output=1", 500, 'container not found ("dead")'),
        ("/exec/NS/POD/another-uid/app?command=true&output=1", 404, "pod not found"),
        ("/exec/NS/POD/app?output=1", 400, "you must specify a command"),
        ("/exec/NS/POD/app?command=true&output=1", 400, "Upgrade request required"),
        ("/exec/NS/POD/UID/app?command=true&output=1", 400, "Upgrade request required"),
        ("/exec/NS/POD", 404, "404 page not found"),
        ("/attach/NS/POD/app", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/attach/NS/none/app?output=1", 404, "pod does not exist"),
        ("/attach/NS/POD/dead?output=1", 500, "container dead not found in pod POD_NS"),
        ("/run/NS/POD/app?cmd=echo+two++words", 200, "two  words\n"),
        ("/run/NS/POD/UID/app?cmd=echo+hello", 200, "hello\n"),
        ("/run/NS/POD/app?cmd=cat+none", 500, "command 'cat none' exited with 1: cat: none: No such file or directory\n"),
        ("/run/NS/POD/app?cmd=no-such-program", 400, 'exec: "no-such-program": executable file not found in $PATH'),
        ("/run/NS/none/app?cmd=true", 404, "pod does not exist"),
        ("/run/NS/POD/another-uid/app?cmd=true", 404, "pod not found"),
        ("/run/NS/POD/dead?cmd=true", 500, 'container not found ("dead")'),
        ("/portForward/NS/none", 404, "pod does not exist"),
        ("/portForward/NS/POD/another-uid", 404, "pod not found"),
        ("/portForward/NS/POD", 400, "Upgrade request required"),
    ],
)
async def test_what_is_wrong_is_told_before_anything_is_switched(shells: Shells, path: str, *, status: int, text: str) -> None:
    def named(form: str) -> str:
        return form.replace("NS", shells.namespace).replace("POD", shells.name).replace("UID", shells.pod.metadata.uid)

    reply = await call(shells.hub, shells.endpoint, named(path), method="POST")
    assert (reply.status, reply.text) == (status, named(text))


async def test_run_answers_both_outputs_and_only_to_post(shells: Shells) -> None:
    (shells.directory / "both").write_text("#!/bin/sh\necho out\necho err >&2\n")
    (shells.directory / "both").chmod(0o755)
    reply = await call(shells.hub, shells.endpoint, shells.path("run", "cmd=./both"), method="POST")
    assert (reply.status, reply.text, reply.headers["Content-Type"]) == (200, "out\nerr\n", "application/json")
    assert (await call(shells.hub, shells.endpoint, shells.path("run", "cmd=./both"))).status == 405
    wrong = await call(shells.hub, shells.endpoint, shells.path("exec", "command=true&output=1"), method="PUT")
    assert (wrong.status, sorted(wrong.headers["Allow"].split(","))) == (405, ["GET", "POST"])


async def test_a_provider_that_lacks_it_answers_501(hub: ControlPlane, namespace: str, node: str) -> None:
    async with serving(hub, Backend()) as stand:
        endpoint = await stand.node(node)
        await stand.pod(namespace, node)
        for path in (
            "/exec/NS/web/app?command=ls&output=1",
            "/attach/NS/web/app?output=1",
            "/run/NS/web/app?cmd=ls",
            "/portForward/NS/web",
        ):
            reply = await call(hub, endpoint, path.replace("NS", namespace), method="POST")
            assert reply.status == 501
            status = json.loads(reply.text)
            assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", 501)
        reply = await call(hub, endpoint, f"/checkpoint/{namespace}/web/app", method="POST")
        assert reply.status == 501


@both_modes
async def test_kubectl_shows_which_capability_the_provider_lacks(hub: ControlPlane, namespace: str, node: str, *, websockets: bool) -> None:
    async with serving(hub, Backend()) as stand:
        await stand.node(node)
        await stand.pod(namespace, node)
        pod = Target(hub, Endpoint("", 0), namespace, "web")
        for command, lacking in (
            (("exec", "web", "-c", "app", "--", "ls"), "exec"),
            (("attach", "web", "-c", "app"), "attach"),
            (("port-forward", "web", "18080:80"), "port-forward"),
        ):
            ran = await pod.run(*command, websockets=websockets)
            assert ran.code == 1
            assert f"the provider of this node does not support {lacking}" in ran.stderr, ran.stderr


async def test_pods_of_another_node_are_not_there(hub: ControlPlane, shells: Shells, node: str) -> None:
    other = await shells.stand.node(node)
    for verb, query in (("exec", "command=true&output=1"), ("attach", "output=1"), ("run", "cmd=true"), ("portForward", "")):
        reply = await call(hub, other, shells.path(verb, query), method="POST")
        assert (reply.status, reply.text) == (404, "pod does not exist")


async def test_a_server_that_stops_ends_the_sessions_and_says_so(hub: ControlPlane, streams_namespace: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as server:
        shells = await server.enter_async_context(shells_on(hub, streams_namespace, tmp_path))
        options = ("exec", shells.name, "-c", "app", "--", "sh", "-c", "echo begun; exec sleep 1000")
        async with asyncio.timeout(PATIENCE), shells.kubectl(*options) as kubectl:
            assert kubectl.stdout is not None
            assert await kubectl.stdout.readline() == b"begun\n"
            await server.aclose()
            # The process was ended, and kubectl does not take it for a success.
            _, stderr = await kubectl.communicate()
            assert kubectl.returncode == 1
            assert b"the stream was broken off" in stderr
