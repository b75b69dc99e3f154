"""`kubeocean bind|unbind|status` against two real clusters, with a process that has the generated rights and nothing more."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from attrs import evolve, frozen

from tests.integration.kubeocean.conftest import only_simulated
from tests.integration.kubeocean.console import Console, decoded, owner
from tests.support.audit import Audit
from tests.support.bound import SYSTEM, apply, get, items
from tests.support.kubectl import Kubectl, Ran
from tests.support.program import Program, eventually, holds
from tests.support.simulated import all_ready, simulated_nodes
from tests.support.stage import Stage
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.api.objects import Json
from vkubelet.testing.cluster import ControlPlane

GUARDS = "validatingadmissionpolicies,validatingadmissionpolicybindings"
_numbers = itertools.count(1)


@pytest.fixture
async def console(hub: ControlPlane, worker: ControlPlane, tmp_path: Path) -> AsyncIterator[Console]:
    made = Console.of(hub, worker, name=f"cli{next(_numbers)}", directory=tmp_path)
    yield made
    await made.remove()


async def everything(console: Console) -> dict[str, str]:
    """resourceVersions of all that `bind` makes."""
    out: dict[str, str] = {}
    mount, bound = console.bound.mount, console.bound
    kinds = "serviceaccounts,secrets,roles,rolebindings"
    found = [("worker", item) for item in await items(bound.worker, kinds, "-n", mount)]
    for name in ("namespace", "clusterrole", "clusterrolebinding"):
        item = await get(bound.worker, name, mount if name == "namespace" else f"kubeocean-syncer-{mount}")
        found += [("worker", item)] if item else []
    found += [("hub", item) for item in (await get(bound.hub, "secret", bound.secret, "-n", SYSTEM),) if item]
    for where, item in found:
        if not item["metadata"]["name"].startswith(("default", "kube-root-ca")):
            out[f"{where} {item['kind']} {item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return out


async def test_nothing_is_touched_before_somebody_has_agreed(console: Console) -> None:
    audits = [Audit(plane, owner(console.bound.name)) for plane in (console.bound.hub, console.bound.worker)]
    printed = await console.bind("--print", "--metrics")
    assert printed.code == 0
    kinds = [body["kind"] for body in decode_yaml_documents(printed.stdout)]
    assert kinds[0] == "CustomResourceDefinition" and kinds[-2:] == ["Secret", "ClusterBinding"]
    assert {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} <= set(kinds)
    asked = await console.bind()
    assert (
        asked.code == 2
        and asked.stderr == "error: --yes: is required without a terminal, where no question can be asked; nothing was changed\n"
    )
    shown = asked.stdout.decode()
    assert "resources: [pods/exec, pods/attach, pods/portforward]" in shown and "mountNamespace: " + console.bound.mount in shown
    declined = await console.answer("no\n", *console.binding)
    assert declined.code == 1 and declined.stderr == "error: nothing was changed\n"
    assert b"Apply this? [y/N]" in declined.stdout and b"pods/portforward" in declined.stdout
    # The questions without a default: mode, metrics. The clusters are named by flags.
    chosen = await console.answer("\n" + f"{console.worker_file}\n" + "\nno\n", "bind", console.bound.name, *console.at_home)
    assert chosen.code == 1 and chosen.stderr.endswith("error: nothing was changed\n"), chosen.stdout
    assert f"--worker-kubeconfig {console.worker_file}" in chosen.stdout.decode() and b"pods/portforward" in chosen.stdout
    assert [str(call) for audit in audits for call in audit.writes()] == []
    assert await everything(console) == {}


@frozen
class Served:
    """A binding that `bind` has made, served by a process, with a simulated node of the worker that a policy leases."""

    console: Console
    program: Program
    node: str
    ran: Ran


async def until_bound(console: Console, stack: AsyncExitStack) -> tuple[Ran, Program]:
    """Bind while nobody serves it yet; as soon as the binding is there, its process is started, and `bind` ends."""
    program = await console.program()
    stack.push(program)
    binding = asyncio.create_task(console.bind("--yes", "--policy-label"))

    async def made() -> bool:
        return binding.done() or await console.is_bound()

    await eventually(made, "the binding is made")
    program.start()
    ran = await binding
    assert ran.code == 0, f"{ran.stdout.decode()}\n{ran.stderr}\n{program.tail()}"
    return ran, program


async def serve(console: Console, stack: AsyncExitStack) -> Served:
    bound, node = console.bound, f"sim-{console.bound.name}"
    stack.push_async_callback(bound.worker.kubectl, "delete", "node", node, "--ignore-not-found", "--wait=false")
    stack.enter_context(simulated_nodes(bound.worker, node, nodes=1, directory=bound.directory))
    await all_ready(bound.worker, [node])
    ran, program = await until_bound(console, stack)
    return Served(console, program, node, ran)


async def lease(served: Served) -> None:
    """Apply the policy that `bind` proposed, for the scene's own node."""
    told = served.ran.stdout.decode()
    policy = decode_yaml(told.partition("<<EOF\n")[2].partition("EOF")[0])
    assert policy["spec"]["cluster"] == served.console.bound.name
    policy["metadata"]["name"] = f"all-of-{served.console.bound.name}"
    policy["spec"]["nodeSelector"] = only_simulated(served.node)
    await apply(served.console.bound.worker, policy)
    await served.console.bound.node_ready(served.node)


async def test_bound_by_the_command_everything_works_with_these_rights_alone(console: Console) -> None:
    async with AsyncExitStack() as stack:
        audits = [Audit(console.bound.hub, console.syncer), Audit(console.bound.worker, console.borrower)]
        served = await serve(console, stack)
        said = served.ran.stdout.decode()
        assert f"ClusterBinding {console.bound.name} is Ready." in said and "without a policy there is no virtual node" in said
        assert "warning: spec.secretRef" not in said, "the admission policies that bind created refuse every trial"
        await lease(served)
        await works(served)
        refused = [str(call) for audit in audits for call in audit.calls() if call.code == 403 and "dryRun=" not in call.uri]
        assert refused == []
        assert all(audit.writes() for audit in audits)
        await tells(served)
        await repeats(served)
        await parts(served)


async def works(served: Served) -> None:
    """A pod with a ConfigMap, a Secret and a token runs, is looked into, and ends; a foreign hand does not get in."""
    stage = await Stage.of(served.console.bound, [served.node])
    await stage.home.create("configmaps", {"metadata": {"name": "conf", "namespace": stage.namespace}, "data": {"a": "1"}})
    await stage.home.create("secrets", {"metadata": {"name": "hush", "namespace": stage.namespace}, "stringData": {"b": "2"}})
    sources = [{"configMap": {"name": "conf"}}, {"secret": {"name": "hush"}}, {"serviceAccountToken": {"path": "token"}}]
    volumes = [{"name": "all", "projected": {"sources": sources}}]
    body = stage.body("works", script={"log-text": "hello", "log-interval": "1"}, volumes=volumes)
    body["spec"]["containers"][0]["volumeMounts"] = [{"name": "all", "mountPath": "/all"}]
    await stage.home.create("pods", body)
    await stage.running("works")
    kubectl = Kubectl(served.console.bound.hub, stage.namespace)

    async def shows_its_log() -> bool:
        return b"hello" in (await kubectl.run("logs", "works", "--tail=1")).stdout

    await eventually(shows_its_log, "the log is shown", every=0.5)
    ran = await kubectl.sh("works", "echo from inside")
    assert ran.stdout == b"from inside\n", ran.stderr
    await reader_of_node_logs_runs_nothing(served, stage)
    await stage.home.delete("pods", "works", stage.namespace, grace=1)
    await stage.absent("works")
    await stage.no_physical("works")


async def reader_of_node_logs_runs_nothing(served: Served, stage: Stage) -> None:
    """The right on one subresource of nodes opens neither the pod's shell nor the node's proxy."""
    hub, name = served.console.bound.hub, f"log-reader-{served.console.bound.name}"
    await hub.kubectl("create", "clusterrole", name, "--verb=get,create", "--resource=nodes/log")
    await hub.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={name}")
    target = f"/exec/{stage.namespace}/works/main?command=id&output=1"
    kubectl = Kubectl(hub, stage.namespace)
    try:
        by_proxy = await kubectl.run(f"--as={name}", "get", "--raw", f"/api/v1/nodes/{stage.vnode}/proxy{target}")
        assert by_proxy.code != 0 and 'cannot get resource "nodes/proxy"' in by_proxy.stderr, by_proxy.stderr
        by_pod = await kubectl.run(f"--as={name}", "exec", "works", "--", "id")
        assert by_pod.code != 0 and "forbidden" in by_pod.stderr.lower(), by_pod.stderr
        assert await straight(hub, name, stage.vnode, "/logs/") != 403
        assert await straight(hub, name, stage.vnode, target) == 403
        assert await straight(hub, name, stage.vnode, target, method="POST") == 403
    finally:
        await hub.kubectl("delete", "clusterrole,clusterrolebinding", name)


async def straight(hub: ControlPlane, user: str, node: str, path: str, *, method: str = "GET") -> int:
    """The status with which the kubelet port of a node answers a user of the hub."""
    status = (await get(hub, "node", node))["status"]
    (address,) = (each["address"] for each in status["addresses"] if each["type"] == "InternalIP")
    pair = hub.authority.client(user, []).write(hub.directory / "clients", f"{user}-straight")
    context = ssl.create_default_context(cafile=str(hub.ca))
    context.load_cert_chain(pair.certificate, pair.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        async with session.request(method, f"https://{address}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}{path}") as response:
            return response.status


async def tells(served: Served) -> None:
    """`status`, for people and for programs."""
    console = served.console

    async def tells_people() -> None:
        shown = await console.status()
        assert shown.code == 0, shown.stdout
        head, row, empty, node_head, node = shown.stdout.decode().splitlines()
        assert head.split() == ["NAME", "PHASE", "NODES", "PODS", "CPU", "MEMORY", "WORKER", "POLICIES"] and not empty
        name, phase, nodes, pods, *used, worker, policies = row.split()
        assert (name, phase, nodes, pods, worker) == (console.bound.name, "Ready", "1/1", "0", "reachable")
        assert policies == f"all-of-{name}" and all(each.startswith("0/") and len(each) > 2 for each in used)
        assert node_head.split()[:2] == ["NODE", "STATE"] and node.split()[1] == "Open" and node.split()[-1] == policies

    async def tells_programs() -> None:
        (told,) = decoded(await console.status("-o", "json"))
        assert told["ready"] is True and told["policies"] == {f"all-of-{console.bound.name}": 1} and told["problems"] == []

    await holds(tells_people)
    await holds(tells_programs)


async def repeats(served: Served) -> None:
    """A second run changes nothing; a third mends what was broken; neither shows what must stay hidden."""
    console, bound = served.console, served.console.bound
    before = await everything(console)
    again = await console.bind("--yes", "--policy-label")
    assert again.code == 0 and await everything(console) == before
    assert "Policies that lease nodes to it: all-of-" in again.stdout.decode()
    await bound.worker.kubectl("delete", "rolebinding", "kubeocean-syncer", "-n", bound.mount)
    broken = {"stringData": {"kubeconfig": "broken"}}
    await bound.hub.kubectl("patch", "secret", bound.secret, "-n", SYSTEM, "-p", json.dumps(broken))

    async def failed() -> bool:
        shown = await console.status()
        return shown.code == 1 and "! Ready=False, ConnectivityFailed: spec.secretRef" in shown.stdout.decode()

    await eventually(failed, "status says what is wrong")
    mended = await console.bind("--yes", "--policy-label")
    assert mended.code == 0, mended.stderr
    assert f"RoleBinding {bound.mount}/kubeocean-syncer: created" in mended.stdout.decode()
    assert f"Secret {SYSTEM}/{bound.secret}: repaired" in mended.stdout.decode()
    for hidden in await console.secrets():
        for ran in (served.ran, again, mended):
            text = ran.stdout.decode() + ran.stderr
            assert hidden not in text and base64.b64decode(hidden).decode() not in text


async def parts(served: Served) -> None:
    """`unbind` says what it waits for and what is left; the identity goes when it is told so, and only what `bind` has made."""
    console, bound = served.console, served.console.bound
    refused = await console.unbind()
    assert refused.code == 2 and "--yes" in refused.stderr
    gone = await console.unbind("--yes", "--force-after", "60")
    said = gone.stdout.decode()
    assert gone.code == 0, said + gone.stderr + served.program.tail()
    assert f"ClusterBinding {bound.name} and its virtual nodes are deleted" in said and f"Secret {SYSTEM}/{bound.secret}" in said
    assert "PriorityClass kubeocean-default, which all bindings share" in said
    assert not await console.is_bound()
    assert await get(bound.hub, "node", bound.vnode(served.node)) is None
    shared = await shared_with_others(console)
    assert await get(bound.worker, "priorityclass", "kubeocean-default")
    cleared = await console.unbind("--yes", "--remove-identity", *console.both[2:], "--mount-namespace", bound.mount)
    assert cleared.code == 0, cleared.stderr
    assert list(await everything(console)) == [f"worker Namespace {bound.mount}"]
    assert not [each for each in await items(bound.worker, GUARDS) if bound.mount in each["metadata"]["name"]]
    left = await get(bound.worker, "priorityclass", "kubeocean-default") is not None
    assert f"PriorityClass kubeocean-default: {'kept, it is shared' if left else 'deleted'}" in cleared.stdout.decode()
    # Other tests may have bindings of this worker, whose namespaces may be on their way out.
    assert left in (shared, await shared_with_others(console))
    assert (await console.status()).code == 1
    assert "has no ClusterBinding" in (await console.unbind("--yes")).stderr


async def shared_with_others(console: Console) -> bool:
    """Whether any binding has a namespace in the worker."""
    notes = [each["metadata"].get("annotations", {}) for each in await items(console.bound.worker, "namespaces")]
    return any("kubeocean.io/mount-owner" in each for each in notes)


async def test_a_crd_of_an_earlier_version_is_updated_and_one_of_others_is_kept(console: Console) -> None:
    """The definitions are shared with other tests, so what is outdated here is a mark and an added sentence."""
    hub, crd = console.bound.hub, "crd/clusterbindings.cloud.tencent.com"
    original = json.loads(await hub.kubectl("get", crd, "-o", "json"))

    async def put(body: Json) -> None:
        """Raw, as kubectl itself would write its annotation, with a resourceVersion that the next `kubectl apply` would take away."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterbindings.cloud.tencent.com"
        await hub.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(body))

    async def becomes(labels: dict[str, str], annotations: dict[str, str], *, version: str) -> str:
        now = json.loads(await hub.kubectl("get", crd, "-o", "json"))
        schema = now["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schema["description"] = "outdated"
        now["metadata"] |= {"labels": labels, "annotations": {**annotations, "kubeocean.io/version": version}}
        await put(now)
        ran = await console.bind("--yes", "--timeout", "0")
        (line,) = [line for line in ran.stdout.decode().splitlines() if "CustomResourceDefinition of ClusterBinding" in line]
        after = json.loads(await hub.kubectl("get", crd, "-o", "json"))
        kept = after["spec"]["versions"][0]["schema"]["openAPIV3Schema"].get("description") == "outdated"
        assert kept is not line.endswith("updated"), line
        return line.rpartition(": ")[2]

    try:
        ours = {"app.kubernetes.io/managed-by": "kubeocean-bind"}
        assert await becomes(ours, {}, version="0.0.9") == "updated"
        assert await becomes({}, {}, version="0.0.9") == "updated"
        assert await becomes({"app.kubernetes.io/managed-by": "Helm"}, {}, version="0.0.9") == "unchanged"
        assert await becomes({}, {"kubectl.kubernetes.io/last-applied-configuration": "{}"}, version="0.0.9") == "unchanged"
        assert await becomes(ours, {}, version="99.0.0") == "unchanged"
    finally:
        now = json.loads(await hub.kubectl("get", crd, "-o", "json"))
        now["metadata"] |= {key: original["metadata"].get(key) for key in ("labels", "annotations")}
        await put({**now, "spec": original["spec"]})


# --- What is wrong, and with which flag -------------------------------------------------------------------------------------------------


async def test_an_owner_without_rights_is_told_so_and_the_other_cluster_stays_as_it_was(console: Console) -> None:
    guest = evolve(console, worker_file=console.bound.worker.client_config(f"guest-{console.bound.name}"))
    ran = await guest.bind("--yes")
    assert ran.code == 1 and "the worker cluster refuses" in ran.stderr and "ask its owner" in ran.stderr
    assert not await console.is_bound()
    assert await everything(console) == {}


async def test_a_cluster_can_not_be_bound_to_itself(console: Console) -> None:
    ran = await console.run("bind", "x", *console.at_home, "--worker-context", "hub", "--yes")
    assert ran.code == 2 and "--worker-context: selects the computing cluster itself" in ran.stderr


async def test_a_binding_that_nobody_serves_ends_in_a_sentence_with_the_remedy(console: Console) -> None:
    ran = await console.bind(
        "--yes", "--timeout", "2", "--worker-server", f"https://{console.bound.worker.host_address}:{console.bound.worker.port}"
    )
    assert ran.code == 1
    assert (
        "is not Ready after 2 s: no process has reported on the ClusterBinding yet" in ran.stderr
        and "kubeocean run --binding" in ran.stderr
    )
    stored = await get(console.bound.hub, "secret", console.bound.secret, "-n", SYSTEM)
    made = decode_yaml(base64.b64decode(stored["data"]["kubeconfig"]))
    assert made["clusters"][0]["cluster"]["server"] == f"https://{console.bound.worker.host_address}:{console.bound.worker.port}"
    other = await console.bind("--yes", "--cluster-id", "another")
    assert other.code == 2 and f"--cluster-id: is {console.bound.name} for this ClusterBinding and cannot be changed" in other.stderr
    shown = await console.status()
    assert shown.code == 1 and "! no process has reported on the ClusterBinding yet" in shown.stdout.decode()


async def test_what_a_helm_release_made_is_left_as_it_is_and_its_gaps_are_named(console: Console) -> None:
    bound = console.bound
    assert (await console.bind("--yes", "--timeout", "0")).code == 1
    await warns_of_what_is_not_refused(console)
    role = await get(bound.worker, "role", "kubeocean-syncer", "-n", bound.mount)
    role["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    role["rules"] = [rule for rule in role["rules"] if "pods" not in rule["resources"]]
    await bound.worker.kubectl("replace", "-f", "-", stdin=json.dumps(role))
    ran = await console.bind("--yes", "--timeout", "0")
    assert f"Role {bound.mount}/kubeocean-syncer: kept, Helm manages it" in ran.stdout.decode()
    assert ran.code == 1 and f"create pods in namespace {bound.mount}: Runs the pods of the computing cluster" in ran.stderr
    kept = await get(bound.worker, "role", "kubeocean-syncer", "-n", bound.mount)
    assert kept["rules"] == role["rules"]


async def warns_of_what_is_not_refused(console: Console) -> None:
    """An admission policy of the release warns instead of denying, for a while."""
    worker, kind, helm = console.bound.worker, "validatingadmissionpolicybindings", {"app.kubernetes.io/managed-by": "Helm"}
    suffix = f"{console.bound.mount}-priorityclasses"
    (guard,) = [each for each in await items(worker, kind) if each["spec"]["policyName"].endswith(suffix)]
    name, before = guard["metadata"]["name"], guard["metadata"]["labels"]
    for labels, action in ((helm, "Warn"), (before, "Deny")):
        change = {"metadata": {"labels": labels}, "spec": {"validationActions": [action]}}
        await worker.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(change))
        if action == "Warn":
            output = (await console.bind("--yes", "--timeout", "0")).stdout.decode()
            assert "warning: spec.secretRef: the user of the kubeconfig can create PriorityClasses that preempt local pods" in output
            assert "install the admission policies" in output and "run privileged pods" not in output
