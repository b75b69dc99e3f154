"""What people do with kubectl in a pod, against the mock provider in the real process, by either transport of kubectl.

Invariant: the judge is kubectl: its exit code, what it prints, and the files it leaves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import random
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from attrs import evolve, frozen

from tests.integration.runtime.fleet import Fleet
from tests.support.program import PATIENCE
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.fixtures import run_apart

SECONDS = 60.0
CONNECTIONS = 50


@frozen
class Kubectl:
    """kubectl for the namespace of these tests, with one of its transports."""

    program: Path
    kubeconfig: Path
    namespace: str
    node: str
    websockets: bool = True

    @property
    def env(self) -> dict[str, str]:
        told = "true" if self.websockets else "false"
        return {**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": told, "KUBECTL_PORT_FORWARD_WEBSOCKETS": told}

    def command(self, *args: str) -> list[str]:
        return [str(self.program), f"--kubeconfig={self.kubeconfig}", "-n", self.namespace, *args]

    def __call__(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.command(*args), input=stdin, capture_output=True, env=self.env, timeout=SECONDS, check=False)

    def start(self, *args: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*args), stdin=stdin, stdout=stdout, stderr=subprocess.STDOUT, env=self.env)


def pod(name: str, node: str, **script: str) -> dict[str, object]:
    annotations = {f"mock.vkubelet.io/{key.replace('_', '-')}": value for key, value in script.items()}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "none", "stdin": True}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


@pytest.fixture(scope="module")
def served(bare_hub: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """One mock node with three pods that run: `web`, `chatty` that logs, and `shut` without open ports."""
    fleet = Fleet(plane=bare_hub, directory=tmp_path_factory.mktemp("mock"))
    fleet.namespace = run_apart(bare_hub.namespace("mock"))
    node = fleet.name("mock")
    pods = [pod("web", node), pod("chatty", node, log_interval="0.3"), pod("shut", node, ports="81=http")]
    try:
        with fleet.program("mock", provider={"node": node}) as program:
            run_apart(fleet.ready([node], program=program))
            run_apart(fleet.kubectl("create", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": pods})))
            run_apart(fleet.running("web", "chatty", "shut"))
            binary = run_apart(bare_hub.site.binaries.ensure(["kubectl"]))["kubectl"]
            yield Kubectl(binary, bare_hub.kubeconfig, fleet.namespace, node)
    finally:
        run_apart(fleet.remove())


@pytest.fixture(params=["websocket", "spdy"])
def kubectl(served: Kubectl, request: pytest.FixtureRequest) -> Kubectl:
    return evolve(served, websockets=request.param == "websocket")


def test_exec_returns_the_exit_code_and_keeps_the_outputs_apart(kubectl: Kubectl) -> None:
    codes = (0, 1, 7, 137)
    running = [kubectl.start("exec", "web", "--", "sh", "-c", f"echo out; exit {code}") for code in codes]
    assert [process.wait(SECONDS) for process in running] == list(codes)
    assert [process.communicate()[0].decode().splitlines()[0] for process in running] == ["out"] * 4
    done = kubectl("exec", "web", "--", "sh", "-c", "echo out; echo err >&2; kill -9 $$")
    assert (done.returncode, done.stdout) == (137, b"out\n")
    assert done.stderr == b"err\ncommand terminated with exit code 137\n"
    missing = kubectl("exec", "web", "-c", "none", "--", "true")
    assert missing.returncode == 1 and b"none" in missing.stderr


def test_a_hundred_megabytes_come_back_as_they_went(kubectl: Kubectl, tmp_path: Path) -> None:
    sent, back = tmp_path / "sent", tmp_path / "back"
    block = random.Random(7).randbytes(1 << 20)
    with sent.open("wb") as out:
        for number in range(100):
            out.write(struct.pack(">I", number) + block[4:])
    with sent.open("rb") as source, back.open("wb") as target:
        process = kubectl.start("exec", "-i", "web", "--", "cat", stdin=source.fileno(), stdout=target.fileno())
        assert process.wait(SECONDS) == 0
    assert back.stat().st_size == sent.stat().st_size == 100 << 20
    assert digest(back) == digest(sent)


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- a terminal ------------------------------------------------------------------------------------------------------------------------


@contextmanager
def at_a_terminal(kubectl: Kubectl, *args: str, rows: int, columns: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """kubectl on a pseudoterminal of this size."""
    ours, theirs = pty.openpty()
    resize(ours, rows, columns)
    process = subprocess.Popen(kubectl.command(*args), stdin=theirs, stdout=theirs, stderr=theirs, env=kubectl.env, start_new_session=True)
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def shown(terminal: int, pattern: str) -> str:
    """What the terminal shows until the pattern is in it."""
    text, end = "", time.monotonic() + SECONDS
    while not re.search(pattern, text):
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{pattern!r} was not shown, but: {text!r}"
        text += os.read(terminal, 4096).decode(errors="replace")
    return text


def test_a_terminal_is_resized_while_the_shell_runs(kubectl: Kubectl) -> None:
    with at_a_terminal(kubectl, "exec", "-it", "web", "--", "sh", rows=31, columns=97) as (terminal, process):
        shown(terminal, "/ # ")
        os.write(terminal, b"stty size\r")
        shown(terminal, r"\r\n31 97\r\n/ # ")
        resize(terminal, 44, 111)
        process.send_signal(signal.SIGWINCH)
        end = time.monotonic() + SECONDS
        text = ""
        while "44 111" not in text and time.monotonic() < end:
            os.write(terminal, b"stty size\r")
            text = shown(terminal, r"\r\n\d+ \d+\r\n/ # ")
        assert "44 111" in text
        os.write(terminal, b"exit 7\r")
        assert process.wait(SECONDS) == 7


# --- attach and debug ------------------------------------------------------------------------------------------------------------------


def test_attach_follows_the_log_and_hears_its_client(kubectl: Kubectl) -> None:
    with kubectl.start("attach", "-i", "chatty", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        lines: set[bytes] = set()
        while not (b"hello\n" in lines and any(b"still runs" in line for line in lines)):
            line = process.stdout.readline()
            assert line, f"ended with {lines}"
            lines.add(line)
        process.stdin.close()
        assert process.wait(SECONDS) == 0


def test_a_debugger_joins_the_pod(kubectl: Kubectl) -> None:
    name = "debug-ws" if kubectl.websockets else "debug-spdy"
    done = kubectl("debug", "-i", "web", "--image=busybox", f"--container={name}", stdin=b"hostname\nexit 4\n")
    assert b"web\n" in done.stdout, done
    ended = f'{{.status.ephemeralContainerStatuses[?(@.name=="{name}")].state.terminated.exitCode}}'
    waited = kubectl("wait", "pod/web", f"--for=jsonpath={ended}=4", f"--timeout={PATIENCE:.0f}s")
    assert waited.returncode == 0, waited.stderr
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.status.phase}").stdout == b"Running"


# --- files -----------------------------------------------------------------------------------------------------------------------------


def test_files_are_copied_both_ways(kubectl: Kubectl, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "large").write_bytes(random.Random(1).randbytes(5_000_000))
    (source / "deep" / "er" / "small").write_text("hello\n")
    (source / "deep" / "empty").touch()
    target = f"/tmp/{'ws' if kubectl.websockets else 'spdy'}"
    there = kubectl("cp", str(source), f"web:{target}")
    assert there.returncode == 0, there.stderr
    back = kubectl("cp", f"web:{target}", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert contents(tmp_path / "back") == contents(source)
    onto = kubectl("cp", str(source / "large"), "web:/tmp/onto")
    assert onto.returncode == 0, onto.stderr
    assert kubectl("exec", "web", "--", "cat", "/tmp/onto").stdout == (source / "large").read_bytes()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- ports -----------------------------------------------------------------------------------------------------------------------------


@contextmanager
def forwarded(kubectl: Kubectl, pod: str, port: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The local port."""
    with kubectl.start("port-forward", f"pod/{pod}", f":{port}", "--address=127.0.0.1") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            match = re.search(r"127\.0\.0\.1:(\d+) -> ", line)
            assert match, line
            yield int(match[1]), process
        finally:
            process.kill()


def test_fifty_connections_at_once_do_not_mix(kubectl: Kubectl) -> None:
    payloads = [struct.pack(">I", number) * 25_000 for number in range(CONNECTIONS)]
    with forwarded(kubectl, "web", 7777) as (port, _):
        sockets = [socket.create_connection(("127.0.0.1", port), SECONDS) for _ in payloads]
        try:
            # All are open and have been answered before the first one says the rest.
            for one, payload in zip(sockets, payloads, strict=True):
                one.sendall(payload[:4])
            assert [receive(one, 4) for one in sockets] == [payload[:4] for payload in payloads]
            for one, payload in zip(sockets, payloads, strict=True):
                one.sendall(payload[4:])
            assert [receive(one, len(payload) - 4) for one, payload in zip(sockets, payloads, strict=True)] == [p[4:] for p in payloads]
        finally:
            for one in sockets:
                one.close()


def receive(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := one.recv(1 << 16)):
        data += part
    return data


def test_a_closed_port_refuses_and_an_open_one_answers(kubectl: Kubectl) -> None:
    with forwarded(kubectl, "shut", 81) as (port, _):
        with closing(socket.create_connection(("127.0.0.1", port), SECONDS)) as one:
            one.sendall(b"GET /here HTTP/1.1\r\nHost: shut\r\n\r\n")
            assert receive(one, 1 << 16).endswith(b"shut answers at /here\n")
    with forwarded(kubectl, "shut", 80) as (port, process):
        with closing(socket.create_connection(("127.0.0.1", port), SECONDS)) as one:
            assert receive(one, 1) == b""
        assert process.stdout is not None
        told = until(process.stdout, b"connection refused")
        assert b"error forwarding port 80" in told


def until(stream: Iterator[bytes], words: bytes) -> bytes:
    text = b""
    for line in stream:
        text += line
        if words in text:
            return text
    raise AssertionError(f"{words!r} was not said, but: {text!r}")


# --- the node --------------------------------------------------------------------------------------------------------------------------


def raw(kubectl: Kubectl, path: str) -> str:
    done = kubectl("get", "--raw", f"/api/v1/nodes/{kubectl.node}/proxy/{path}")
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_the_node_tells_what_its_pods_use_and_did(served: Kubectl) -> None:
    summary = json.loads(raw(served, "stats/summary"))
    assert {"web", "chatty"} <= {entry["podRef"]["name"] for entry in summary["pods"]} and summary["node"]["nodeName"] == served.node
    assert re.search(r'container_cpu_usage_seconds_total\{container="main",pod="web",', raw(served, "metrics/resource"))
    assert "machine_cpu_cores" in raw(served, "metrics/cadvisor")
    assert raw(served, "metrics/probes") is not None
    assert "mock.log" in raw(served, "logs/")
    assert f"pod {served.namespace}/web started" in raw(served, "logs/mock.log")
