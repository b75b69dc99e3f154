"""Demonstrates the project from start to finish: two clusters, a binding, a workload on a virtual node, its logs and its shell from the
hub.

`demo.py [DIRECTORY]`; the directory of the clusters is build/dev if none is given. Without root rights the node of the worker cluster is
simulated by vkubelet with the mock provider: then nothing runs in containers, and everything else is as real.

Invariant: every step may be repeated; existing clusters and objects are used, and `make down` stops everything that was started.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import binaries
from vkubelet.testing.cluster.ledger import Entry, Kind, Ledger
from vkubelet.testing.cluster.processes import ClusterError, ProcessId, spawn
from vkubelet.testing.cluster.site import STATE_FILE

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "samples"
MANIFESTS = ROOT / "kubeocean" / "manifests"
DEV = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else ROOT / "build" / "dev"
HUB, WORKER = DEV / "hub.kubeconfig", DEV / "worker.kubeconfig"
IDENTITY = DEV / "kubeocean.kubeconfig"
CONFIG = DEV / "kubeocean.yaml"
LOG = DEV / "kubeocean.log"
OWNER, PROGRAM, DASHBOARD = "demo", "kubeocean", "dashboard"
MOCK, MOCK_NODE = "simulated-node", "simulated"
ROOT_RIGHTS = os.geteuid() == 0
TICK_SECONDS = 10.0
VIRTUAL = "kubeocean.io/cluster-binding=demo"


class DemoFailed(Exception):
    """A step failed; the text contains what did not happen and where to check."""


class ProgramEnded(Exception):
    """kubeocean exited by itself; waiting for anything is in vain."""


def say(text: str) -> None:
    print(text, flush=True)


def shown(path: Path) -> str:
    """Returns the path as the reader would type it."""
    return os.path.relpath(path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def step(text: str) -> Iterator[None]:
    """Prints a step, and its progress while it lasts."""
    say(f"==> {text}")
    started, done = time.monotonic(), threading.Event()

    def tick() -> None:
        while not done.wait(TICK_SECONDS):
            say(f"    … {time.monotonic() - started:.0f} s")

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


def kubectl_program() -> str:
    found = binaries.find("kubectl")
    if found is None:
        raise DemoFailed("no kubectl found in PATH or cache; run `make up`, which installs one")
    return str(found)


def kubectl(kubeconfig: Path, *args: str, stdin: str | None = None) -> str:
    """Runs kubectl. Raises DemoFailed with its error output."""
    command = [kubectl_program(), "--kubeconfig", str(kubeconfig), *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"kubectl {shlex.join(args)}: {done.stderr.strip()}")
    return done.stdout


def read(kubeconfig: Path, *args: str) -> Any:
    return json.loads(kubectl(kubeconfig, "get", *args, "--output", "json"))


def apply(kubeconfig: Path, *files: Path) -> None:
    for file in files:
        kubectl(kubeconfig, "apply", "--filename", str(file))


def wait_for(what: str, check: Callable[[], Any], *, seconds: float) -> Any:
    """Returns the first true value of `check`; its errors are shown only after the timeout. Raises DemoFailed."""
    end, last = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            if found := check():
                return found
        except DemoFailed as error:
            last = f"; last: {error}"
        time.sleep(0.3)
    raise DemoFailed(f"not within {seconds:.0f} s: {what}{last}; see {shown(LOG)}")


def token_of(kubeconfig: Path, namespace: str, account: str) -> Mapping[str, str]:
    """Returns the data of a ServiceAccount's long-lived token Secret, once the control plane has filled it."""
    secret = f"{account}-token"

    def filled() -> Any:
        data = read(kubeconfig, "--namespace", namespace, "secret", secret).get("data") or {}
        return data if "token" in data else None

    data: Mapping[str, str] = wait_for(f"token in Secret {namespace}/{secret}", filled, seconds=30)
    return data


def kubeconfig_of(server: str, data: Mapping[str, str]) -> str:
    """Returns a kubeconfig for one token, as JSON, which is YAML as well."""
    token = base64.b64decode(data["token"]).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority-data": data["ca.crt"]}}],
            "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
    )


def write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)


def endpoint(kubeconfig: Path) -> tuple[str, int]:
    """Returns where pods reach this cluster's API server: not by loopback, as the kubeconfig does."""
    found = read(kubeconfig, "--namespace", "default", "endpointslice", "kubernetes")
    return found["endpoints"][0]["addresses"][0], found["ports"][0]["port"]


def server_of(kubeconfig: Path) -> str:
    """Returns the API server's URL in the kubeconfig."""
    config = json.loads(kubectl(kubeconfig, "config", "view", "--output", "json"))
    return str(config["clusters"][0]["cluster"]["server"])


def forget_the_dead() -> None:
    """Drops stopped programs of the demo from the ledger: an exited kubeocean must not count as an exited cluster, which `up` would
    restart."""
    ledger = Ledger(DEV / STATE_FILE)
    ledger.forget(entry for entry in ledger.entries(Kind.PROCESS, OWNER) if not entry.process.alive())


def clusters() -> None:
    forget_the_dead()
    say("==> two clusters and a worker node")
    command = [sys.executable, "-m", "vkubelet.testing.cluster", "up", "--dir", str(DEV), "--nodes", "1" if ROOT_RIGHTS else "0"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise DemoFailed("the clusters did not start; `make down` removes what is left")
    if not ROOT_RIGHTS:
        simulate_node()


def simulate_node() -> None:
    """Simulates the node of the worker cluster, where there are no rights to run containers; one that runs is kept."""
    say(
        f"""==> you are not root, so no container runs here: the worker's node `{MOCK_NODE}` is simulated by vkubelet's mock provider.
    Its pods are Running by script, and their logs and shells are simulated; clusters, binding and kubeocean are real."""
    )
    ledger = Ledger(DEV / STATE_FILE)
    if ledger.process(OWNER, MOCK) is None:
        address, _ = endpoint(WORKER)
        settings = {
            "instance": MOCK_NODE,
            "node": {"taint": ""},
            "server": {"node_address": address, "main_port": False, "approve_own_csr": True},
            "health": {"health_address": "", "metrics_address": ""},
            "provider": {"node": MOCK_NODE, "resolve": False, "cpu": "8", "memory": "32Gi", "labels": {"type": "simulated"}},
        }
        config = DEV / f"{MOCK}.yaml"
        config.write_text(json.dumps(settings, indent=2) + "\n")
        ledger.add(Entry(kind=Kind.PATH, name=str(config), owner=OWNER))
        start(MOCK, ["vkubelet", "run", "--provider", "mock", "--config", str(config), "--kubeconfig", str(WORKER)])
    with step("waiting for the simulated node"):
        wait_for("the simulated node is Ready", lambda: any(map(is_ready, read(WORKER, "nodes")["items"])), seconds=60)


def established(kubeconfig: Path, plural: str) -> bool:
    """Checks that the API server serves the resource; `kubectl wait` fails on a CRD that has no conditions yet."""
    crd = read(kubeconfig, "crd", f"{plural}.cloud.tencent.com")
    return any(c["type"] == "Established" and c["status"] == "True" for c in crd.get("status", {}).get("conditions", ()))


def bind() -> None:
    """Applies everything that the two owners of the clusters would apply."""
    with step("worker cluster: CRD, mount namespace, narrow rights, policy (half of each node)"):
        apply(WORKER, MANIFESTS / "resourceleasingpolicies.yaml", SAMPLES / "worker-rbac.yaml", SAMPLES / "worker-guards.yaml")
        wait_for("the CRD is established", partial(established, WORKER, "resourceleasingpolicies"), seconds=30)
        apply(WORKER, SAMPLES / "policy.yaml")
        worker_config = kubeconfig_of(server_of(WORKER), token_of(WORKER, "kubeocean-worker", "kubeocean-syncer"))
    with step("computing cluster: CRD, narrow rights, Secret with the worker's kubeconfig, binding"):
        apply(HUB, MANIFESTS / "clusterbindings.yaml", SAMPLES / "hub-rbac.yaml", SAMPLES / "hub-token.yaml")
        wait_for("the CRD is established", partial(established, HUB, "clusterbindings"), seconds=30)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "demo-kubeconfig", "namespace": "kubeocean-system"},
            "stringData": {"kubeconfig": worker_config},
        }
        kubectl(HUB, "apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=json.dumps(secret))
        apply(HUB, SAMPLES / "binding.yaml")
        host, port = endpoint(HUB)
        access = {"spec": {"apiServerAccess": {"host": host, "port": port}}}
        kubectl(HUB, "patch", "clusterbinding", "demo", "--type=merge", "--patch", json.dumps(access))
        write_private(IDENTITY, kubeconfig_of(server_of(HUB), token_of(HUB, "kubeocean-system", "kubeocean-syncer")))


def lives(program: ProcessId) -> bool:
    """Checks that the program runs. Raises ProgramEnded with the last lines of its log when it does not."""
    if not program.alive():
        lines = "\n".join(LOG.read_text(errors="replace").splitlines()[-15:])
        raise ProgramEnded(f"kubeocean exited by itself:\n{lines}")
    return True


def ended(program: ProcessId) -> bool:
    return not program.alive()


def stop_program(name: str) -> None:
    """Stops a program of an earlier run."""
    ledger = Ledger(DEV / STATE_FILE)
    for entry in [entry for entry in ledger.entries(Kind.PROCESS, OWNER) if entry.name == name]:
        entry.process.signal(signal.SIGTERM)
        wait_for(f"{name} stops", partial(ended, entry.process), seconds=30)
        ledger.forget([entry])


def run_kubeocean() -> ProcessId:
    """Starts the process of the binding, recorded so that `make down` stops it; a running one is stopped, which pods do not notice."""
    stop_program(PROGRAM)
    ledger = Ledger(DEV / STATE_FILE)
    address, _ = endpoint(HUB)
    settings = {
        "health": {"health_address": f"127.0.0.1:{free_port()}", "metrics_address": f"127.0.0.1:{free_port()}"},
        "server": {"node_address": address, "main_port": False, "approve_own_csr": True},
    }
    CONFIG.write_text(json.dumps(settings, indent=2) + "\n")
    for path in (IDENTITY, CONFIG):
        ledger.add(Entry(kind=Kind.PATH, name=str(path), owner=OWNER))
    say(f"==> kubeocean run --binding demo   (log: {shown(LOG)})")
    return start(PROGRAM, ["kubeocean", "run", "--binding", "demo", "--kubeconfig", str(IDENTITY), "--config", str(CONFIG)])


def start(name: str, command: Sequence[str]) -> ProcessId:
    """Starts one of our programs, recorded so that `make down` stops it and removes its log."""
    ledger, log = Ledger(DEV / STATE_FILE), DEV / f"{name}.log"
    ledger.add(Entry(kind=Kind.PATH, name=str(log), owner=OWNER))
    started = spawn(name, [str(Path(sys.executable).with_name(command[0])), *command[1:]], log=log)
    ledger.add_process(started, OWNER)
    return started


def run_dashboard() -> str:
    """Starts the dashboard as a user does, and returns its address, which contains a token; the log that has it is private."""
    stop_program(DASHBOARD)
    log = DEV / f"{DASHBOARD}.log"
    log.unlink(missing_ok=True)
    program = start(DASHBOARD, ["kubeocean", "dashboard", "--local", "--no-open", "--kubeconfig", str(HUB)])

    def address() -> str:
        text = log.read_text(errors="replace")
        if not program.alive():
            raise ProgramEnded(f"kubeocean dashboard exited by itself:\n{text}")
        return next((word for word in text.split() if word.startswith("http://")), "")

    found: str = wait_for("the dashboard prints its address", address, seconds=60)
    return found


def is_ready(node: Any) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


def node_ready() -> bool:
    """Checks that a virtual node is Ready, and that its kubelet server responds to the API server."""
    for node in read(HUB, "nodes", "--selector", VIRTUAL)["items"]:
        if is_ready(node):
            return kubectl(HUB, "get", "--raw", f"/api/v1/nodes/{node['metadata']['name']}/proxy/healthz") == "ok"
    return False


def deploy() -> None:
    """Applies the sample; where nothing runs, its annotations script the log of the simulated node."""
    body = decode_yaml((SAMPLES / "deployment.yaml").read_text())
    if not ROOT_RIGHTS:
        script = {"log-interval": "1", "log-text": "hello from {hostname} on {node}"}
        body["spec"]["template"]["metadata"]["annotations"] = {f"mock.vkubelet.io/{key}": value for key, value in script.items()}
    kubectl(HUB, "apply", "--filename", "-", stdin=json.dumps(body))


def same_pod() -> tuple[str, str] | None:
    """Returns name and IP of the workload's pod, when it runs in both clusters with the same address."""
    physical = {
        pod["metadata"].get("annotations", {}).get("kubeocean.io/virtual-pod-uid"): pod["status"]
        for pod in read(WORKER, "pods", "--namespace", "kubeocean-worker")["items"]
    }
    for pod in read(HUB, "pods", "--selector", "app=hello")["items"]:
        status, below = pod["status"], physical.get(pod["metadata"]["uid"], {})
        running = status["phase"] == below.get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        if running and status.get("podIP") and status["podIP"] == below.get("podIP"):
            return pod["metadata"]["name"], status["podIP"]
    return None


def show(kubeconfig: Path, *args: str) -> None:
    """Shows a command and its output, as the reader could type it."""
    say(f"\n$ kubectl --kubeconfig {shown(kubeconfig)} {shlex.join(args)}")
    say(kubectl(kubeconfig, *args).rstrip())


def show_status() -> None:
    """Shows `kubeocean status`, which fails unless the binding is Ready; its phase follows the node within seconds."""
    program = Path(sys.executable).with_name("kubeocean")

    def ready() -> str:
        done = subprocess.run([program, "status", "--kubeconfig", HUB], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise DemoFailed(f"kubeocean status: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    text = wait_for("the binding is Ready", ready, seconds=30)
    say(f"\n$ kubeocean status --kubeconfig {shown(HUB)}\n{text.rstrip()}")


def show_live_logs(pod: str, *, lines: int = 5, seconds: float = 20.0) -> None:
    """Follows the log until some new lines arrive. Raises DemoFailed when they do not."""
    args = ["logs", "--follow", "--tail=1", pod]
    say(f"\n$ kubectl --kubeconfig {shown(HUB)} {shlex.join(args)}")
    command = [kubectl_program(), "--kubeconfig", str(HUB), *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stop = threading.Timer(seconds, process.terminate)
    stop.start()
    try:
        assert process.stdout is not None
        seen = [line for _, line in zip(range(lines), map(_shown, process.stdout), strict=False)]
    finally:
        stop.cancel()
        process.terminate()
        process.wait()
    if len(seen) < lines or not all("hello from" in line for line in seen):
        raise DemoFailed(f"no live log lines of {pod} within {seconds:.0f} s")


def _shown(line: str) -> str:
    say(line.rstrip())
    return line


def demo() -> None:
    clusters()
    bind()
    program = run_kubeocean()
    with step("waiting for the virtual node"):
        wait_for("a virtual node is Ready", lambda: lives(program) and node_ready(), seconds=90)
    with step("a Deployment in the computing cluster, placed by its scheduler"):
        deploy()
        pod, _ = wait_for("the pod runs in both clusters with one IP", same_pod, seconds=90)
    show(HUB, "get", "nodes")
    show(HUB, "get", "pods", "--output", "wide")
    show(WORKER, "get", "pods", "--namespace", "kubeocean-worker", "--output", "wide")
    show_live_logs(pod)
    show(HUB, "exec", pod, "--", "sh", "-c", "echo a shell in; hostname")
    show_status()
    say(f"\n$ kubeocean dashboard --kubeconfig {shown(HUB)} &")
    say(
        f"""Dashboard, for those who know this address: {run_dashboard()}

Everything keeps running. To continue:
  export KUBECONFIG={shown(HUB)}        # the worker cluster: {shown(WORKER)}
  alias kubectl={kubectl_program()}
  kubectl logs --follow {pod}
  kubectl exec -it {pod} -- sh
  kubectl scale deployment hello --replicas=3
  kubectl describe node --selector {VIRTUAL}
  make down                                       # stops everything"""
    )


if __name__ == "__main__":
    try:
        demo()
    except (DemoFailed, ProgramEnded, ClusterError) as error:
        sys.exit(f"demo: {error}")
