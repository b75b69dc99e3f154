"""`kubeocean unbind NAME`: unbinds a worker cluster, and reports what is left behind.

Invariant: it deletes the binding and waits; its pods and nodes are removed by the process that serves it.
"""

from collections.abc import Sequence

from attrs import field, frozen

from kubeocean.commands import identity
from kubeocean.commands.plan import BindFlags, Plan
from kubeocean.commands.status import readiness
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.rbac.permissions import worker_guards, worker_objects
from kubeocean.rbac.tenants import tenant_guards, wide_objects
from vkubelet.api.objects import NAMESPACES, NODES, Unknown
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Progress, Terminal
from vkubelet.errors import NotFound, SettingsError

_EVERY = 1.0


def check_force_after(seconds: int | None) -> int | None:
    """Returns the flag --force-after. Raises SettingsError."""
    if seconds is not None and seconds < 0:
        raise SettingsError("--force-after", "must be 0 or more seconds")
    return seconds


@frozen(kw_only=True)
class Unbind:
    """One run of the command."""

    hub_choice: clusters.Choice
    worker_choice: clusters.Choice | None
    name: str
    mount_namespace: str
    force_after: int | None
    yes: bool
    timeout: float
    terminal: Terminal
    clock: Clock = field(factory=SystemClock)

    async def run(self) -> None:
        """Unbinds the cluster. Raises VKubeletError when the binding still exists after the timeout."""
        async with clusters.opened(self.hub_choice) as hub:
            with clusters.explained(self.hub_choice):
                found = await clusters.find_named(hub, CLUSTERBINDINGS, self.name)
                plan = Plan.of(BindFlags(name=self.name, mount_namespace=self.mount_namespace), found)
                await self._part(hub, found)
            if self.worker_choice:
                await self._remove_identity(hub, plan, self.worker_choice)
            else:
                self._print_remaining(plan)

    async def _part(self, hub: Client, found: Unknown | None) -> None:
        """Deletes the binding and waits; a deleted binding is no error when the identity is to be removed. Raises CommandFailed."""
        if found is None and self.worker_choice is None:
            raise clusters.CommandFailed(
                f"the {self.hub_choice.title} has no ClusterBinding {self.name}; `kubeocean status` lists those that exist"
            )
        if found is None:
            self.terminal.write_line(f"ClusterBinding {self.name} is deleted already.")
            if not self.yes and not self.terminal.agree(f"Delete its identity in the {self.worker_title}?"):
                raise clusters.CommandFailed("nothing was changed")
            return
        await self._agree(hub, ClusterBinding.parse(found))
        await self._delete(hub, found)
        await self._wait(hub, found)
        self.terminal.write_line(f"ClusterBinding {self.name} and its virtual nodes are deleted.")

    @property
    def worker_title(self) -> str:
        return self.worker_choice.title if self.worker_choice else "worker cluster"

    async def _agree(self, hub: Client, binding: ClusterBinding) -> None:
        if binding.deleting:
            self.terminal.write_line(f"ClusterBinding {self.name} is being deleted already.")
            return
        nodes = await _nodes(hub, self.name)
        self.terminal.write_line(f"This deletes ClusterBinding {self.name}, {_counted(len(nodes), 'virtual node')} and all pods on them.")
        if not self.yes and not self.terminal.agree("Delete it?"):
            raise clusters.CommandFailed("nothing was changed")

    async def _delete(self, hub: Client, found: Unknown) -> None:
        if self.force_after is not None:
            change = {"spec": {"forceUnbindAfter": self.force_after}}
            await hub.patch(CLUSTERBINDINGS, self.name, change, kind=PatchKind.MERGE)
        if found.metadata.deletion_timestamp is None:
            try:
                await hub.delete(CLUSTERBINDINGS, self.name, uid=found.metadata.uid)
            except NotFound:
                return

    async def _wait(self, hub: Client, found: Unknown) -> None:
        progress = Progress(self.terminal, self.clock)
        try:
            while True:
                left = await clusters.find_named(hub, CLUSTERBINDINGS, self.name)
                if left is None or left.metadata.uid != found.metadata.uid:
                    return
                text = await self._waiting_for(hub, left)
                progress.update(text)
                if progress.seconds >= self.timeout:
                    raise clusters.CommandFailed(
                        f"ClusterBinding {self.name} still exists after {progress.seconds:.0f} s: {text}; {_remedy(left)}"
                    )
                await self.clock.sleep(_EVERY)
        finally:
            progress.end()

    async def _waiting_for(self, hub: Client, left: Unknown) -> str:
        nodes = await _nodes(hub, self.name)
        parts = [_counted(len(nodes), "virtual node") + " left", *(f"finalizer {each}" for each in left.metadata.finalizers)]
        state = readiness(left.body)
        return ", ".join(parts) + (f" ({state.text})" if state.seen and not state.ready else "")

    # --- What is left ---------------------------------------------------------------------------------------------------------------

    def _print_remaining(self, plan: Plan) -> None:
        write = self.terminal.write_line
        write("These objects remain, so that the cluster can be bound again:")
        write(f"  in the {self.hub_choice.title}: Secret {plan.secret} with the worker's kubeconfig")
        for body in (*plan.identity.objects, *plan.identity.guards):
            write(f"  in the worker cluster: {identity.title(body)}")
        write(f"  in the worker cluster: PriorityClass {keys.DEFAULT_PRIORITY_CLASS}, which all bindings share, if a pod ran there")
        mount = "" if plan.mount_namespace == keys.WORKER_NAMESPACE else f" --mount-namespace {plan.mount_namespace}"
        write(f"To delete the identity as well:\n  kubeocean unbind {self.name} --remove-identity --worker-context CTX{mount}")

    async def _remove_identity(self, hub: Client, plan: Plan, worker_choice: clusters.Choice) -> None:
        async with clusters.opened(worker_choice) as worker:
            with clusters.explained(worker_choice):
                granted = [*worker_objects(plan.mount_namespace, metrics=True), *wide_objects(plan.mount_namespace, creates=True)]
                # The limits are removed last, so that the identity never exists without them.
                limits = (*worker_guards(plan.mount_namespace, policy_label=True), *tenant_guards(plan.mount_namespace))
                for body in (*reversed(granted), *limits):
                    if body["kind"] != NAMESPACES.kind:
                        self.terminal.write_line(f"{worker_choice.what}: {identity.title(body)}: {await identity.remove(worker, body)}")
                shared = f"PriorityClass {keys.DEFAULT_PRIORITY_CLASS}"
                self.terminal.write_line(f"{worker_choice.what}: {shared}: {await identity.remove_priority_class(worker)}")
        with clusters.explained(self.hub_choice):
            secret = plan.shown_secret()
            self.terminal.write_line(f"{self.hub_choice.what}: {identity.title(secret)}: {await identity.remove(hub, secret)}")
        self.terminal.write_line(f"Namespace {plan.mount_namespace} in the {worker_choice.title} remains, with all other objects in it.")


async def _nodes(hub: Client, name: str) -> Sequence[object]:
    return (await hub.list(NODES, Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(name)}"))).items


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _remedy(left: Unknown) -> str:
    if keys.FINALIZER_SYNCER in left.metadata.finalizers:
        check = "check that the process of the binding runs and reaches the worker cluster"
        return f"{check}, or give up what is there: kubeocean unbind {left.metadata.name} --force-after 0"
    if keys.FINALIZER_MANAGER in left.metadata.finalizers:
        return "check that `kubeocean manager` runs"
    return "these finalizers are not Kubeocean's; check which controller set them"
