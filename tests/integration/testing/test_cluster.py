"""Development clusters are real ones, and leave nothing behind.

Invariant: what is left is looked for in the kernel's own lists, by the namespaces, names and directory of the run, not in our records.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from tests.support.program import PATIENCE
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import ClusterError, CommandFailed, ControlPlane, Options, Site, WorkerNode
from vkubelet.testing.cluster.cgroups import hierarchies
from vkubelet.testing.cluster.images import AGNHOST, BUSYBOX
from vkubelet.testing.cluster.isolation import FORWARDER, HOLDER, LOOPBACK
from vkubelet.testing.cluster.ledger import Kind, Ledger
from vkubelet.testing.cluster.nodeconfig import SYSCTLS
from vkubelet.testing.cluster.processes import ProcessId, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="real nodes need root")


def pod(name: str, *command: str, image: str = BUSYBOX, node: str | None = None) -> str:
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command)}
    # Other tests leave simulated nodes in the shared clusters; these pods want containers.
    real = {"matchExpressions": [{"key": "simulated", "operator": "DoesNotExist"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [real]}}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **({"nodeName": node} if node else {"affinity": affinity})}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


async def run_pod(cluster: ControlPlane, namespace: str, body: str) -> str:
    """Create a pod, wait until it is Ready, return its address."""
    name = json.loads(body)["metadata"]["name"]
    await cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=body)
    await cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    return await cluster.kubectl("-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}")


# --- Control planes --------------------------------------------------------------------------------------------------------------------


async def test_what_kubectl_writes_it_reads_back(hub: ControlPlane) -> None:
    namespace = await hub.namespace()
    await hub.kubectl("-n", namespace, "create", "configmap", "greeting", "--from-literal=text=hello")
    assert await hub.kubectl("-n", namespace, "get", "configmap", "greeting", "-o", "jsonpath={.data.text}") == "hello"


async def test_what_kubectl_says_is_in_the_error(hub: ControlPlane) -> None:
    with pytest.raises(CommandFailed) as raised:
        await hub.kubectl("get", "configmap", "nowhere")
    assert '"nowhere" not found' in raised.value.stderr


async def test_two_clusters_of_a_run_share_nothing_but_the_host_address(hub: ControlPlane, worker: ControlPlane) -> None:
    async def identity(cluster: ControlPlane) -> tuple[str, str]:
        uid = await cluster.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
        return uid, await cluster.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")

    first, second = await identity(hub), await identity(worker)
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert hub.ca.read_bytes() != worker.ca.read_bytes()
    assert hub.host_address == worker.host_address


async def test_a_client_config_is_the_user_and_groups_it_names(hub: ControlPlane) -> None:
    config = hub.client_config("jane", ["dev", "ops"], host=hub.host_address)
    answer = await hub.kubectl(f"--kubeconfig={config}", "auth", "whoami", "-o", "json")
    user = json.loads(answer)["status"]["userInfo"]
    assert user["username"] == "jane"
    assert set(user["groups"]) == {"dev", "ops", "system:authenticated"}


async def test_requests_are_in_the_audit_log(hub: ControlPlane) -> None:
    with pytest.raises(CommandFailed):
        await hub.kubectl("get", "configmap", "audited")

    async def logged() -> bool:
        # The last line may be half written.
        lines = [line for line in hub.audit_log.read_bytes().splitlines(keepends=True) if b'"audited"' in line and line.endswith(b"\n")]
        found = [event for event in map(json.loads, lines) if event.get("objectRef", {}).get("name") == "audited"]
        return [(event["user"]["username"], event["responseStatus"]["code"]) for event in found] == [("hub-admin", 404)]

    await wait_until(SystemClock(), logged, what="the request is in the audit log", timeout=PATIENCE)


async def test_outages_of_the_apiserver_keep_its_address_and_data(cluster_site: Site) -> None:
    async with ControlPlane("outages", cluster_site, options=Options(controllers=False, scheduler=False)) as plane:
        await plane.kubectl("create", "namespace", "kept")
        url = plane.url

        plane.pause()
        with pytest.raises(CommandFailed):
            await plane.kubectl("get", "namespaces", "--request-timeout=1s")
        plane.resume()
        await plane.kubectl("get", "namespace", "kept")

        for graceful in (False, True):
            await plane.stop_apiserver(graceful=graceful)
            with pytest.raises(CommandFailed, match="refused"):
                await plane.kubectl("get", "namespaces")
            await plane.start_apiserver()
            await plane.kubectl("get", "namespace", "kept")
        assert plane.url == url


async def test_a_control_plane_that_can_not_start_says_why_and_is_gone(cluster_site: Site) -> None:
    options = Options(apiserver_flags=("--no-such-flag",))
    plane = ControlPlane("broken", cluster_site, options=options)
    with pytest.raises(ClusterError, match="unknown flag: --no-such-flag"):
        async with plane:
            raise AssertionError("it started")
    assert not plane.directory.exists()
    assert not [process for process in plane.processes.values() if process.alive()]


@needs_root
async def test_an_isolated_control_plane_reaches_chosen_ports_and_nothing_reaches_it(worker: ControlPlane, cluster_site: Site) -> None:
    options = Options(controllers=False, scheduler=False)
    async with ControlPlane("private", cluster_site, options=options, isolated=True) as private:
        assert (await private.namespace()) in await private.kubectl("get", "namespaces", "-o", "name")
        assert not await private.can_dial(LOOPBACK, worker.port)
        await private.let_dial(worker.port)
        command = [*private.inside, "cat", "/proc/net/dev"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert [line.partition(":")[0].strip() for line in shown.splitlines()[2:]] == ["lo"]
        for host, port in ((LOOPBACK, worker.plane.etcd_port), (worker.host_address, worker.port)):
            assert not await private.can_dial(host, port) and await worker.can_dial(host, port)
        for host in (LOOPBACK, worker.host_address):
            assert not await worker.can_dial(host, private.port)
        config = worker.client_config("from-inside", ["system:masters"])
        answer = await private.kubectl(f"--kubeconfig={config}", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
        assert answer == "from-inside"
        with pytest.raises(ClusterError, match="all ports at once"):
            await private.let_dial(worker.plane.etcd_port)
        programs = private.processes
    assert not [each.name for each in programs.values() if each.alive()] and HOLDER in programs


# --- Nodes -----------------------------------------------------------------------------------------------------------------------------


@needs_root
async def test_pods_run_and_kubectl_reaches_into_them(worker: ControlPlane, worker_node: WorkerNode) -> None:
    namespace = await worker.namespace()
    await run_pod(worker, namespace, pod("web", "sh", "-c", "echo started; exec sleep 1000"))

    async def said() -> bool:
        return await worker.kubectl("-n", namespace, "logs", "web") == "started\n"

    await wait_until(SystemClock(), said, what="the container has spoken", timeout=PATIENCE)
    assert await worker.kubectl("-n", namespace, "exec", "-i", "web", "--", "tr", "a-z", "A-Z", stdin="hello") == "HELLO"
    node = await worker.kubectl("-n", namespace, "get", "pod", "web", "-o", "jsonpath={.spec.nodeName} {.status.hostIP}")
    assert node == f"{worker_node.name} {worker_node.address}"


@needs_root
async def test_a_pod_can_call_the_api_of_the_other_cluster(hub: ControlPlane, worker: ControlPlane, worker_node: WorkerNode) -> None:
    namespace = await worker.namespace()
    await run_pod(worker, namespace, pod("client", "sleep", "1000", image=AGNHOST))
    config = hub.client_config("from-a-pod", ["system:masters"], host=hub.host_address).read_text(encoding="utf-8")
    call = ["sh", "-c", "cat > /tmp/config; kubectl --kubeconfig=/tmp/config auth whoami -o jsonpath={.status.userInfo.username}"]
    assert await worker.kubectl("-n", namespace, "exec", "-i", "client", "--", *call, stdin=config) == "from-a-pod"


@needs_root
async def test_pods_of_different_nodes_reach_one_another_and_the_test_reaches_them(worker: ControlPlane, worker_node: WorkerNode) -> None:
    namespace = await worker.namespace()
    async with WorkerNode("node-of-a-test", worker, labels={"made-by": "test"}) as other:
        assert await worker.kubectl("get", "node", "-l", "made-by=test", "-o", "name") == f"node/{other.name}\n"
        address = await run_pod(worker, namespace, pod("server", "/agnhost", "netexec", image=AGNHOST, node=other.name))
        await run_pod(worker, namespace, pod("client", "sleep", "1000", node=worker_node.name))
        asked = await worker.kubectl("-n", namespace, "exec", "client", "--", "wget", "-qO-", f"http://{address}:8080/hostname")
        assert asked == "server"
        _, writer = await asyncio.open_connection(address, 8080)
        writer.close()
        await worker.kubectl("-n", namespace, "delete", "pod", "server", "--force", "--grace-period=0")
    await worker.kubectl("delete", "node", other.name)


@needs_root
async def test_pods_outlive_the_kubelet(worker: ControlPlane, worker_node: WorkerNode) -> None:
    namespace = await worker.namespace()
    await run_pod(worker, namespace, pod("lasting", "sh", "-c", "echo once; exec sleep 1000"))
    await worker_node.kill("kubelet")

    async def said() -> bool:
        return "once" in await worker_node.run("sh", "-c", f"cat /var/log/pods/{namespace}_lasting_*/main/0.log")

    # A pod is Ready before its shell has spoken.
    await wait_until(SystemClock(), said, what="the container has spoken", timeout=PATIENCE)
    with pytest.raises(CommandFailed):
        await worker.kubectl("-n", namespace, "logs", "lasting")
    await worker_node.start_kubelet()

    async def answers() -> bool:
        try:
            return await worker.kubectl("-n", namespace, "logs", "lasting") == "once\n"
        except CommandFailed:
            return False

    await wait_until(SystemClock(), answers, what="the new kubelet serves the old pod", timeout=PATIENCE)


# --- Nothing is left -------------------------------------------------------------------------------------------------------------------


@frozen
class Traces:
    """What would show that something of a run is left."""

    directory: Path
    links: frozenset[str]
    cgroups: frozenset[str]
    namespaces: frozenset[str]
    programs: frozenset[ProcessId]

    @classmethod
    def of(cls, directory: Path) -> Traces:
        ledger = Ledger(directory / "state.json")
        return cls(
            directory=directory,
            links=frozenset(entry.name for entry in ledger.entries(Kind.LINK)),
            cgroups=frozenset(entry.name for entry in ledger.entries(Kind.CGROUP)),
            namespaces=frozenset(name for entry in ledger.entries(Kind.NAMESPACE) for name in namespaces_of(entry.pid)),
            programs=frozenset(entry.process for entry in ledger.entries(Kind.PROCESS)),
        )

    def left(self) -> list[str]:
        found = [f"directory {self.directory}"] if self.directory.exists() else []
        found += [f"link {name}" for name in self.links if Path("/sys/class/net", name).exists()]
        found += [f"cgroup {path / name}" for name in self.cgroups for path in hierarchies() if (path / name).exists()]
        # A network namespace ends with its last process; those that wait in it or forward for it name no directory.
        found += [f"process {each.name} ({each.pid})" for each in self.programs if each.alive()]
        found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(self.directory) in line]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.directory).encode() in (process / "cmdline").read_bytes():
                    found.append(f"process {process.name}")
                # Namespaces that are gone leave their numbers to those of others, which have no mounts of the run.
                if str(self.directory) in (process / "mountinfo").read_text():
                    found += [f"process {process.name} in {name}" for name in self.namespaces & set(namespaces_of(int(process.name)))]
            except OSError:
                continue
        return found

    async def wait(self) -> None:
        """For takers-down that are not awaited."""

        async def gone() -> bool:
            return not self.left()

        await wait_until(SystemClock(), gone, what="everything is gone", timeout=PATIENCE)


def namespaces_of(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("net", "mnt", "pid")]


def machine() -> dict[str, str]:
    """What the kubelet would change for the whole machine, were it let."""
    names = [*SYSCTLS, "net/ipv4/ip_forward"]
    return {name: Path("/proc/sys", name).read_text(encoding="ascii").strip() for name in names}


@needs_root
async def test_leaving_a_site_leaves_nothing() -> None:
    before = machine()
    async with Site() as site, ControlPlane("worker", site) as worker, WorkerNode("node-1", worker) as node:
        namespace = await worker.namespace()
        await run_pod(worker, namespace, pod("stubborn", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
        traces = Traces.of(site.directory)
        assert len(traces.links) == 2
        assert len(traces.namespaces) == 3
        assert all(any(f" in {name}" in trace for trace in traces.left()) for name in traces.namespaces)
        assert machine() == before
        assert (await node.run("cat", "/proc/sys/vm/overcommit_memory")).strip() == "1"
    assert traces.left() == []
    assert machine() == before


@needs_root
async def test_a_starter_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import asyncio, signal\n"
        "from vkubelet.testing.cluster import ControlPlane, Options, Site, WorkerNode\n"
        "async def main():\n"
        "    async with Site() as site, ControlPlane('worker', site) as worker, WorkerNode('node-1', worker):\n"
        "        options = Options(controllers=False, scheduler=False)\n"
        "        async with ControlPlane('private', site, options=options, isolated=True) as private:\n"
        "            await private.let_dial(worker.port)\n"
        "            print(site.directory, flush=True)\n"
        "            signal.pause()\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE, env=environment, cwd=tmp_path)
    assert process.stdout is not None
    traces = Traces.of(Path((await process.stdout.readline()).decode().strip()))
    assert traces.namespaces and {FORWARDER, HOLDER} <= {each.name for each in traces.programs}
    process.kill()
    await process.wait()
    await traces.wait()


@needs_root
async def test_second_up_is_quick_and_adds_nodes_of_both_kinds_and_down_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "build" / "dev"

    async def command(*args: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        argv = [sys.executable, "-m", "vkubelet.testing.cluster", *args, "--dir", str(directory)]
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, env=environment, cwd=tmp_path)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()

    try:
        announced = await command("up", "--nodes", "0")
        assert "a bridge" in announced
        assert "already running" in await command("up", "--nodes", "0")
        await command("up", "--nodes", "1")
        assert "simulating 2 nodes" in await command("up", "--simulated", "2")
        assert "This will make" not in await command("up", "--simulated", "3")
        traces = Traces.of(directory)
        worker = ControlPlane("worker", Site(directory, detached=True))
        await worker.attach()
        nodes = (await worker.kubectl("get", "nodes", "-o", "name")).split()
        assert nodes == [f"node/{name}" for name in ("node-1", "simulated-1", "simulated-2", "simulated-3")]
        ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        assert await worker.kubectl("get", "nodes", "-o", ready) == "True True True True"
        namespace = await worker.namespace()
        await run_pod(worker, namespace, pod("never-run", "none", image="none", node="simulated-3"))
        assert (directory / "hub.kubeconfig").exists()
    finally:
        await command("down")
    assert traces.left() == []


def test_make_passes_the_numbers_of_nodes_on() -> None:
    command = ["make", "--dry-run", "--always-make", "up", "NODES=2", "SIMULATED=3"]
    told = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True).stdout
    assert "up --nodes 2 --simulated 3" in told


async def test_two_runs_go_side_by_side(hub: ControlPlane) -> None:
    async with Site() as other, ControlPlane("hub", other, options=Options(controllers=False, scheduler=False)) as twin:
        assert twin.url != hub.url
        if os.geteuid() == 0:
            assert twin.host_address != hub.host_address
        await twin.kubectl("get", "namespaces")
    await hub.kubectl("get", "namespaces")


def test_ctrl_c_during_up_undoes_what_was_begun(tmp_path: Path, watch_lines: Callable[[subprocess.Popen[str], str], None]) -> None:
    directory = tmp_path / "dev"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-m", "vkubelet.testing.cluster", "up", "--nodes", "0", "--dir", str(directory)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        watch_lines(process, "starting the control planes")
        traces = Traces.of(directory)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert [trace for trace in traces.left() if not trace.startswith("directory")] == []


@pytest.fixture
def watch_lines() -> Callable[[subprocess.Popen[str], str], None]:
    def watch(process: subprocess.Popen[str], wanted: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if wanted in line:
                return
        raise AssertionError(f"ended without saying: {wanted}")

    return watch
