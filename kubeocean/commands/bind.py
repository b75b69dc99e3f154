"""`kubeocean bind NAME`: binds a worker cluster with few rights, using the rights of the owners of both clusters.

Invariant: nothing is written before it was shown and confirmed; a second run repairs what is missing and changes nothing else.
"""

import base64
from collections.abc import Callable
from contextlib import suppress

from attrs import field, frozen

from kubeocean.commands import identity
from kubeocean.commands.plan import BindFlags, Plan
from kubeocean.commands.status import UNREPORTED, Readiness, readiness
from kubeocean.manager.binding_status import unguarded_text
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, ResourceLeasingPolicy
from kubeocean.worker.connect import KUBECONFIG
from vkubelet.api.objects import NAMESPACES, SECRETS, Json, Unknown
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Progress, Terminal
from vkubelet.errors import ApiError, Forbidden, SettingsError

SETTLED = 20.0
"""Seconds after which an unchanged failure that requires action stops the waiting."""
UNSEEN = 20.0
_EVERY = 1.0


def print_manifests(flags: BindFlags, clusters_shown: str, terminal: Terminal) -> None:
    """Prints the manifests of the `worker`, the `hub`, or `all`. Raises SettingsError for flags that can never work."""
    plan = Plan.of(flags)
    plan.check()
    terminal.write_line(plan.manifests(clusters_shown).rstrip())


def check_server(url: str) -> str:
    """Returns the URL of the worker's API server without a trailing slash. Raises SettingsError."""
    if url and not url.startswith("https://"):
        raise SettingsError("--worker-server", "must be the URL of an API server that begins with https://")
    return url.rstrip("/")


@frozen(kw_only=True)
class Bind:
    """One run of the command."""

    hub_choice: clusters.Choice
    worker_choice: clusters.Choice
    flags: BindFlags
    server: str
    yes: bool
    timeout: float
    terminal: Terminal
    clock: Clock = field(factory=SystemClock)

    async def run(self) -> None:
        """Binds the cluster and waits. Raises VKubeletError when the binding does not become Ready."""
        async with clusters.opened(self.hub_choice) as hub, clusters.opened(self.worker_choice) as worker:
            plan = await self._settle(hub, worker)
            self._show(plan, worker.connection)
            if not self.yes and not self.terminal.agree("Apply this?"):
                raise clusters.CommandFailed("nothing was changed")
            made = await self._make_identity(plan, worker)
            await self._prove(plan, worker.connection, made)
            await self._make_binding(plan, hub, worker.connection, made)
            await self._wait(plan, hub)
            await self._print_next_steps(plan, worker)

    # --- Before any write -----------------------------------------------------------------------------------------------------------

    async def _settle(self, hub: Client, worker: Client) -> Plan:
        with clusters.explained(self.hub_choice):
            home = await clusters.uid_of(hub)
            existing = await clusters.find_named(hub, CLUSTERBINDINGS, self.flags.name)
        with clusters.explained(self.worker_choice):
            away = await clusters.uid_of(worker)
        if home and home == away:
            raise SettingsError("--worker-context", "selects the computing cluster itself; name the context of the worker cluster")
        if existing and existing.metadata.deletion_timestamp:
            name = self.flags.name
            raise clusters.CommandFailed(f"ClusterBinding {name} is being deleted; wait until it is deleted: kubeocean unbind {name}")
        plan = Plan.of(self.flags, existing)
        plan.check()
        return plan

    def _show(self, plan: Plan, admin: Connection) -> None:
        write = self.terminal.write_line
        write(f"In the {self.worker_choice.title}, {admin.url}, this identity is created, with these rights and no others:\n")
        write(plan.worker_shown())
        write(f"In the {self.hub_choice.title}, these objects are created:\n")
        write(plan.hub_yaml())
        write("There the process of the binding gets these rights (`kubeocean manager` creates its roles):\n")
        write(plan.syncer_rights() + "\n")
        if identity.is_local(self.server or admin.url):
            way = f"{self.server or admin.url} is an address of this machine only"
            write(f"warning: {way}; if the computing cluster runs elsewhere, set --worker-server to an address that it can reach\n")

    # --- In the worker ------------------------------------------------------------------------------------------------------------------

    async def _make_identity(self, plan: Plan, worker: Client) -> identity.Credentials:
        with clusters.explained(self.worker_choice):
            done = await identity.ensure_definition(worker, POLICIES, self.clock)
            self._done(self.worker_choice, "CustomResourceDefinition of ResourceLeasingPolicy", done)
            # Limits are in place before the identity can be used.
            for body in plan.identity.guards:
                self._done(self.worker_choice, identity.title(body), await identity.apply_where_allowed(worker, body))
            for body in plan.identity.objects:
                self._done(self.worker_choice, identity.title(body), await identity.apply(worker, body))
            return await identity.credentials(worker, plan.identity.token, self.clock)

    async def _prove(self, plan: Plan, admin: Connection, made: identity.Credentials) -> None:
        """Checks the rights of the new identity with its own credentials. Raises CommandFailed when an essential one is missing."""
        connection = identity.connection_from_here(admin, made, namespace=plan.mount_namespace)
        with clusters.explained(self.worker_choice):
            async with Client(connection) as probe:
                missing = await identity.missing_rights(probe, plan.identity.checks, self.clock)
                gains = await identity.gains(probe, plan.mount_namespace, self.clock)
        if any(check.essential for check in missing):
            lines = "".join(f"\n  {check}: {check.why}" for check in missing)
            raise clusters.CommandFailed(f"the identity lacks rights in the {self.worker_choice.title}; add them to its roles:{lines}")
        for check in missing:
            self.terminal.write_line(f"{self.worker_choice.what}: the identity may not {check}, which is optional. {check.why}")
        if gains:
            self.terminal.write_line(f"warning: {unguarded_text(gains)}")
        self._done(
            self.worker_choice, "the new identity", f"has {len(plan.identity.checks) - len(missing)} of {len(plan.identity.checks)} rights"
        )

    # --- In the hub ---------------------------------------------------------------------------------------------------------------------

    async def _make_binding(self, plan: Plan, hub: Client, admin: Connection, made: identity.Credentials) -> None:
        kubeconfig = identity.kubeconfig_of(admin, made, namespace=plan.mount_namespace, server=self.server)
        content = base64.b64encode(identity.text_of(kubeconfig).encode()).decode()
        secret: Json = {"metadata": plan.secret_metadata, "type": "Opaque", "data": {KUBECONFIG: content}}
        with clusters.explained(self.hub_choice):
            done = await identity.ensure_definition(hub, CLUSTERBINDINGS, self.clock)
            self._done(self.hub_choice, "CustomResourceDefinition of ClusterBinding", done)
            await self._make_namespace(plan, hub)
            for resource, body in ((SECRETS, secret), (CLUSTERBINDINGS, plan.binding)):
                before = await clusters.find(hub, resource, body)
                after = await hub.apply(resource, body)
                self._done(self.hub_choice, identity.title({"kind": resource.kind, **body}), _changed(before, after))

    async def _make_namespace(self, plan: Plan, hub: Client) -> None:
        """Creates the namespace; for a user who may not read it, it counts as existing: the writes into it will show."""
        with suppress(Forbidden):
            if await clusters.find(hub, NAMESPACES, plan.hub_namespace) is None:
                await hub.apply(NAMESPACES, plan.hub_namespace)
                self._done(self.hub_choice, f"Namespace {plan.namespace}", "created")

    async def _wait(self, plan: Plan, hub: Client) -> None:
        progress = Progress(self.terminal, self.clock)
        same_since, last = self.clock.monotonic(), ""
        try:
            while True:
                seen = await self._check(plan, hub)
                progress.update(seen.text if seen.seen or progress.seconds < UNSEEN else _unseen(plan))
                if seen.ready:
                    return
                if seen.text != last:
                    same_since, last = self.clock.monotonic(), seen.text
                settled = seen.lasting and self.clock.monotonic() - same_since >= SETTLED
                if settled or progress.seconds >= self.timeout:
                    raise clusters.CommandFailed(_not_ready(plan, seen, progress.seconds))
                await self.clock.sleep(_EVERY)
        finally:
            progress.end()

    async def _check(self, plan: Plan, hub: Client) -> Readiness:
        with clusters.explained(self.hub_choice):
            return readiness((await hub.get(CLUSTERBINDINGS, plan.name)).body)

    # --- Afterwards ---------------------------------------------------------------------------------------------------------------------

    async def _print_next_steps(self, plan: Plan, worker: Client) -> None:
        write = self.terminal.write_line
        write(f"\nClusterBinding {plan.name} is Ready.")
        policies = await policies_for(worker, plan.name)
        if policies:
            write(f"Policies that lease nodes to it: {', '.join(policies)}. List its nodes:\n\n  {self._nodes(plan)}")
            return
        write("No ResourceLeasingPolicy names it yet, and without a policy there is no virtual node. This one leases half of the CPU and")
        write("memory that pods of the worker leave unrequested on each node, and all of every other resource; edit and apply it:\n")
        write(f"{self.worker_choice.kubectl} apply -f - <<EOF\n{plan.sample_policy()}EOF")
        write(f"\nThen:\n\n  {self._nodes(plan)}")

    def _nodes(self, plan: Plan) -> str:
        return f"{self.hub_choice.kubectl} get nodes -l {keys.CLUSTER_BINDING}={keys.label_value(plan.name)}"

    def _done(self, where: clusters.Choice, what: str, how: str) -> None:
        self.terminal.write_line(f"{where.what}: {what}: {how}")


async def policies_for(worker: Client, binding: str) -> list[str]:
    """Returns the names of the policies for a binding; none when they cannot be read."""
    try:
        listed = (await worker.list(POLICIES)).items
    except ApiError:
        return []
    parse: Callable[[Unknown], ResourceLeasingPolicy] = ResourceLeasingPolicy.parse
    return [each.metadata.name for each in listed if parse(each).cluster == binding]


def _changed(before: Unknown | None, after: Unknown) -> str:
    if before is None:
        return "created"
    return "unchanged" if before.metadata.resource_version == after.metadata.resource_version else "repaired"


def _unseen(plan: Plan) -> str:
    check = f"check that the chart kubeocean is installed (kubectl -n {plan.namespace} get deployments)"
    return f"{UNREPORTED}; {check}, or serve it yourself: kubeocean run --binding {plan.name}"


def _not_ready(plan: Plan, seen: Readiness, seconds: float) -> str:
    told = seen.text if seen.seen else _unseen(plan)
    return f"ClusterBinding {plan.name} is not Ready after {seconds:.0f} s: {told}"
