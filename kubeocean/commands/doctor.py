"""`kubeocean doctor [NAME]`: examines the hub and the workers of its bindings, and prints each problem with the commands that correct it.

Invariant: nothing is written but reviews and dry runs. The exit code is 0 exactly when no check found an error; a check whose input may not
be read is skipped, and names the right.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence

from attrs import define, field, frozen

from kubeocean.commands import reading
from kubeocean.commands.output import Format, data, in_progress, write
from kubeocean.commands.status import current, unmet
from kubeocean.doctor import bindings, nodes
from kubeocean.manager.checks import Findings, check_worker
from kubeocean.manager.workloads import deployment_name
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, ClusterBinding, definition
from kubeocean.rbac.permissions import hub_rules
from kubeocean.worker.connect import Target, find_target
from vkubelet.api import objects
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Key, Node, Pod, Resource, Unknown
from vkubelet.api.rbac import checks_of
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.examination import PROBE_TIMEOUT, Log, lacking, server
from vkubelet.commands.examination import definition as check_definition
from vkubelet.commands.findings import Checked, Finding, blocks
from vkubelet.commands.reading import MissingRight, Reader
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import ApiError, Forbidden, Unreachable, VKubeletError

_PROBED_NODES = 3
_WORKER_KUBECTL = "kubectl --context CONTEXT"
_SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, Unknown)


# --- The hub ------------------------------------------------------------------------------------------------------------------------------


async def definitions(reader: Reader, resource: Resource[Unknown], *, kubectl: str) -> list[Finding]:
    """Checks the CustomResourceDefinition of one of our kinds."""
    install = f"{kubectl} apply --server-side --force-conflicts -f kubeocean/manifests/{resource.plural}.yaml"
    return await check_definition(reader, decode_yaml(definition(resource)), kubectl=kubectl, install=install)


@define
class HubExamination:
    """Examines what all bindings share."""

    hub: Reader
    log: Log
    clock: Clock = field(kw_only=True)

    async def run(self) -> None:
        subject, kubectl = self.hub.choice.title, self.hub.choice.kubectl
        await self.log.check(subject, "API server", server(self.hub, self.clock))
        await self.log.check(subject, "definitions", definitions(self.hub, CLUSTERBINDINGS, kubectl=kubectl))


# --- One binding --------------------------------------------------------------------------------------------------------------------------


async def worker_rights(binding: ClusterBinding, worker: Client, found: Findings, *, kubectl: str) -> list[Finding]:
    """Returns what the user of `worker` lacks, and may do beyond need. An API server may refuse to name that user."""
    out: list[Finding] = []
    if found.missing:
        try:
            status = (await worker.create(_SELF_REVIEWS, {})).body.get("status") or {}
        except ApiError:
            status = {}
        user = (status.get("userInfo") or {}).get("username", "USER")
        out += bindings.rights(binding, found.missing, user=user, kubectl=kubectl)
    return [*out, *bindings.guards(binding, found.unguarded or ())]


@define
class BindingExamination:
    """Examines one binding from both sides; `worker` is the worker cluster as named by flags."""

    hub: Reader
    log: Log
    binding: ClusterBinding = field(kw_only=True)
    known: Sequence[ClusterBinding] = field(kw_only=True)
    worker: clusters.Choice | None = field(kw_only=True)
    namespace: str = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    _nodes: Sequence[Node] | None = field(default=None, init=False)
    _pods: Sequence[Pod] | None = field(default=None, init=False)
    _deployments: list[Unknown | None] = field(factory=list, init=False)
    """The one of the process, or None without one, once it was read."""

    @property
    def subject(self) -> str:
        return f"ClusterBinding {self.binding.name}"

    @property
    def commands(self) -> bindings.Commands:
        return bindings.Commands(self.hub.choice.kubectl, self.worker.kubectl if self.worker else _WORKER_KUBECTL)

    async def _check(self, name: str, work: Awaitable[Iterable[Finding]]) -> None:
        await self.log.check(self.subject, name, work)

    async def run(self) -> None:
        """Performs all checks of the binding."""
        await self._check("connection", self._connection())
        await self._worker()
        await self._check("nodes", self._ready())
        await self._check("process", self._process())
        await self._check("rights in the hub", self._hub_rights())
        await self._check("kubelet port", self._kubelet_port())
        await self._check("certificate requests", self._certificates())
        await self._check("addresses of the hub", self._addresses())
        await self._check("DaemonSets", self._daemonsets())
        await self._check("waiting pods", self._waiting())
        await self._check("pod network", self._routed())
        await self._check("conditions", self._conditions())

    async def _conditions(self) -> Iterable[Finding]:
        stored = await self.hub.get(CLUSTERBINDINGS, self.binding.name)
        known = self.log.findings(self.subject)
        return bindings.conditions(unmet(current(stored.body)), known) if stored is not None else ()

    # --- The worker -----------------------------------------------------------------------------------------------------------------

    async def _connection(self) -> Iterable[Finding]:
        """Checks what the manager checks before it serves a binding, with the kubeconfig of the Secret."""
        secret = self.binding.secret
        stored = await self.hub.get(objects.SECRETS, Key(secret.namespace, secret.name)) if secret.name and secret.namespace else None
        owner = await reading.owner_of(self.hub, self.binding)
        with clusters.explained(self.hub.choice):
            found = await check_worker(self.hub.client, self.binding, owner.hub_uid, clock=self.clock)
            target = await find_target(self.hub.client, self.binding, owner.hub_uid)
        out: list[Finding] = []
        if found.problem is not None:
            out.append(bindings.connection(self.binding, found.problem, has_secret=stored is not None, commands=self.commands))
        if isinstance(target, Target):
            out += bindings.credentials(self.binding, target.connection.expires, now=self.clock.now())
            async with Client(target.connection, field_manager=reading.FIELD_MANAGER, clock=self.clock) as worker:
                out += await worker_rights(self.binding, worker, found, kubectl=self.commands.worker)
        return out

    async def _worker(self) -> None:
        """Checks the worker as the user may read it: with the flags' kubeconfig, else with that of the Secret."""
        try:
            owner = await reading.owner_of(self.hub, self.binding)
            async with reading.worker_reader(self.hub, self.binding, owner, chosen=self.worker) as reader:
                await self._check("worker API server", server(reader, self.clock))
                await self._check("worker definitions", definitions(reader, POLICIES, kubectl=self.commands.worker))
            await self._check("policies", self._policies())
        except VKubeletError as error:
            self.log.done.append(Checked(subject=self.subject, check="worker", skipped=str(error)))

    async def _policies(self) -> Iterable[Finding]:
        seen = await reading.snapshot(self.hub, self.binding, chosen=self.worker)
        kubectl = self.commands.worker
        plain = [node for node in await self.hub.list(objects.NODES) if node.metadata.name not in seen.virtual]
        return [
            *bindings.policies(seen.lease, self.binding, instant=self.clock.now(), kubectl=kubectl),
            *bindings.unknown_bindings(seen.policies, self.known, kubectl=kubectl),
            *nodes.networks(plain, list(seen.worker.nodes.store)),
        ]

    # --- The hub --------------------------------------------------------------------------------------------------------------------

    async def _virtual(self) -> Sequence[Node]:
        """Returns the virtual nodes, read once. Raises CommandFailed, in each check that needs them."""
        if self._nodes is None:
            self._nodes = sorted((await reading.virtual_nodes(self.hub, self.binding)).values(), key=lambda node: node.metadata.name)
        return self._nodes

    async def _ready(self) -> Iterable[Finding]:
        return nodes.ready(await self._virtual(), kubectl=self.commands.hub)

    async def _deployment(self) -> Unknown | None:
        if not self._deployments:
            self._deployments.append(await self.hub.get(objects.DEPLOYMENTS, Key(self.namespace, deployment_name(self.binding.cluster_id))))
        return self._deployments[0]

    async def _process(self) -> Iterable[Finding]:
        deployment = await self._deployment()
        own = Selection(namespace=self.namespace, labels=f"k8s-app={deployment_name(self.binding.cluster_id)}")
        pods = await self.hub.list(objects.PODS, own) if deployment is not None else ()
        names = {node.metadata.name for node in await self._virtual()}
        leases = await self.hub.list(objects.LEASES, Selection(namespace="kube-node-lease")) if names else ()
        renewed = [lease for lease in leases if lease.metadata.name in names]
        return bindings.process(self.binding, deployment, pods, leases=renewed, now=self.clock.now(), commands=self.commands)

    async def _hub_rights(self) -> Iterable[Finding]:
        deployment = await self._deployment()
        if deployment is None:
            raise clusters.CommandFailed("the user of the process is unknown, as it has no Deployment")
        spec = deployment.body["spec"]["template"]["spec"]
        account = Key(self.namespace, spec.get("serviceAccountName") or "default")
        missing = await lacking(self.hub, account, checks_of(hub_rules(binding=self.binding.name, namespace=self.namespace)))
        return bindings.hub_rights(account, missing, kubectl=self.commands.hub, helm=self.hub.choice.helm)

    async def _kubelet_port(self) -> Iterable[Finding]:
        out: list[Finding] = []
        for node in (await self._virtual())[:_PROBED_NODES]:
            failure = await self._proxied(f"/api/v1/nodes/{node.metadata.name}/proxy/healthz", "nodes/proxy")
            out += nodes.kubelet_port(node, failure, kubectl=self.commands.hub)
        return out

    async def _proxied(self, path: str, right: str) -> ApiError | None:
        """Sends a request through the hub's API server; returns why it was not answered. Raises MissingRight."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self.hub.client.request("GET", path)
        except TimeoutError:
            return Unreachable(f"get {path}", f"timeout after {PROBE_TIMEOUT:g} s")
        except Forbidden as error:
            # The API server names the resource; the program behind it answers in its own way.
            if right in error.message:
                raise MissingRight(f"you may not get {right} in the {self.hub.choice.title}: {error.message}") from error
            return None
        except ApiError as error:
            return error
        return None

    async def _certificates(self) -> Iterable[Finding]:
        return nodes.certificates(await self.hub.list(objects.CSRS), await self._virtual(), kubectl=self.commands.hub)

    async def _addresses(self) -> Iterable[Finding]:
        listed = await self.hub.list(objects.SERVICES)
        return bindings.addresses(self.binding, [each.key for each in listed], kubectl=self.commands.hub)

    # --- Pods of the virtual nodes --------------------------------------------------------------------------------------------------

    async def _on_nodes(self) -> Sequence[Pod]:
        """Returns the pods of the virtual nodes, read once. Raises CommandFailed, in each check that needs them."""
        if self._pods is None:
            names = {node.metadata.name for node in await self._virtual()}
            self._pods = [pod for pod in await self.hub.list(objects.PODS) if pod.node in names]
        return self._pods

    async def _daemonsets(self) -> Iterable[Finding]:
        return nodes.daemonsets(await self._on_nodes(), self.binding, kubectl=self.commands.hub)

    async def _waiting(self) -> Iterable[Finding]:
        waiting = {pod.metadata.uid: pod for pod in await self._on_nodes() if not pod.terminal and not pod.terminating}
        pending = {uid: pod for uid, pod in waiting.items() if pod.phase in ("", "Pending")}
        events = await self.hub.list(objects.EVENTS, Selection(fields="type=Warning")) if pending else ()
        bodies = [each.body for each in events]
        return [*nodes.refused(bodies, pending, self.binding, commands=self.commands), *nodes.images(waiting.values())]

    async def _routed(self) -> Iterable[Finding]:
        running = next((pod for pod in await self._on_nodes() if pod.phase == "Running" and pod.status.get("podIP")), None)
        if running is None:
            return ()
        path = f"{objects.PODS.path(running.metadata.namespace, f'{running.metadata.name}:{nodes.PROBED_PORT}')}/proxy/"
        return nodes.routed(running, await self._proxied(path, "pods/proxy"), binding=self.binding.name)


# --- The command --------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Doctor:
    """One run of the command; `worker` is the worker cluster as named by flags, None to use the Secret of each binding."""

    hub: clusters.Choice
    worker: clusters.Choice | None
    binding: str
    terminal: Terminal
    output: Format
    namespace: str = keys.NAMESPACE
    clock: Clock = SystemClock()

    async def run(self) -> None:
        """Prints the results of all checks. Raises CommandFailed for an unknown binding, SystemExit with 1 after an error was found."""
        with in_progress("examining the clusters"):
            done = await self.examine()
        if self.output.is_data:
            self.terminal.write_line(data(done, self.output))
        else:
            write(self.terminal, list(blocks(done, wide=self.output is Format.WIDE)))
        if any(each.failed for each in done):
            raise SystemExit(1)

    async def examine(self) -> Sequence[Checked]:
        """Performs all checks. Raises CommandFailed."""
        log = Log(self.hub, program="kubeocean")
        async with clusters.opened(self.hub) as client:
            reader = Reader(client, self.hub)
            await HubExamination(reader, log, clock=self.clock).run()
            await self._bindings(reader, log)
        return log.done

    async def _bindings(self, hub: Reader, log: Log) -> None:
        try:
            found = await reading.bindings(hub)
        except clusters.CommandFailed as error:
            log.done.append(Checked(subject=self.hub.title, check="bindings", skipped=str(error)))
            return
        chosen = [each for each in found if self.binding in ("", each.name)] or await reading.bindings(hub, self.binding)
        for binding in chosen:
            examined = BindingExamination(
                hub, log, binding=binding, known=found, worker=self.worker, namespace=self.namespace, clock=self.clock
            )
            await examined.run()
