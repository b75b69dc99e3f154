"""`kubeocean unbind NAME`: unbinds a worker cluster, and reports what is left behind.

Invariant: it deletes the binding and waits; its pods and nodes are removed by the process that serves it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attrs import field, frozen

from kubeocean.commands import clusters, identity
from kubeocean.commands.binding_summary import outlook
from kubeocean.commands.clusters import Choice, CommandFailed, explained
from kubeocean.commands.plan import Plan, Wish
from kubeocean.commands.terminal import Progress, Terminal
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.resources import CLUSTERBINDINGS
from kubeocean.rbac.permissions import worker_guards, worker_objects
from vkubelet.api.objects import Unknown
from vkubelet.client.resources import NAMESPACES, NODES
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.errors import NotFound, SettingsError

_EVERY = 1.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its flags."""
    parser = commands.add_parser("unbind", help="delete a binding, wait until it is gone, say what is left behind")
    parser.add_argument("name", metavar="NAME", help="name of the ClusterBinding")
    clusters.add_hub_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--force-after",
        type=int,
        metavar="SECONDS",
        help="give up what can not be cleaned up in the worker after so long (forceUnbindAfter)",
    )
    parser.add_argument("--remove-identity", action="store_true", help="also take the identity out of the worker (needs --worker-context)")
    clusters.add_worker_arguments(parser)
    parser.add_argument("--mount-namespace", default="", metavar="NS", help="of that identity, where the binding is gone already")
    clusters.add_timeout(parser, 600.0, until="gone")
    parser.set_defaults(call=_command)


def _command(arguments: argparse.Namespace) -> None:
    if arguments.force_after is not None and arguments.force_after < 0:
        raise SettingsError("--force-after", "must be 0 or more seconds")
    unbind = Unbind(
        hub_choice=clusters.hub_of(arguments),
        worker_choice=clusters.worker_of(arguments) if arguments.remove_identity else None,
        name=arguments.name,
        mount_namespace=arguments.mount_namespace,
        force_after=arguments.force_after,
        yes=arguments.yes,
        timeout=clusters.timeout_of(arguments),
        terminal=Terminal.standard(),
    )
    clusters.finish(unbind.run())


@frozen(kw_only=True)
class Unbind:
    """One run of the command."""

    hub_choice: Choice
    worker_choice: Choice | None
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
            with explained(self.hub_choice):
                found = await clusters.find_named(hub, CLUSTERBINDINGS, self.name)
                plan = Plan.of(Wish(name=self.name, mount_namespace=self.mount_namespace), found)
                await self._part(hub, found)
            if self.worker_choice:
                await self._remove_identity(hub, plan, self.worker_choice)
            else:
                self._say_what_is_left(plan)

    async def _part(self, hub: Client, found: Unknown | None) -> None:
        """Deletes the binding and waits; a deleted binding is no error when the identity is to be removed. Raises CommandFailed."""
        if found is None and self.worker_choice is None:
            raise CommandFailed(f"there is no ClusterBinding {self.name} in the {self.hub_choice.title}; see: kubeocean status")
        if found is None:
            self.terminal.say(f"ClusterBinding {self.name} is gone already.")
            if not self.yes and not self.terminal.agree(f"Take its identity out of the {self.worker_title}?"):
                raise CommandFailed("nothing was changed")
            return
        await self._agree(hub, ClusterBinding.parse(found))
        await self._delete(hub, found)
        await self._wait(hub, found)
        self.terminal.say(f"ClusterBinding {self.name} is gone, and its virtual nodes with it.")

    @property
    def worker_title(self) -> str:
        return self.worker_choice.title if self.worker_choice else "worker cluster"

    async def _agree(self, hub: Client, binding: ClusterBinding) -> None:
        if binding.deleting:
            self.terminal.say(f"ClusterBinding {self.name} is being deleted already.")
            return
        nodes = await _nodes(hub, self.name)
        self.terminal.say(f"ClusterBinding {self.name} goes, with {_counted(len(nodes), 'virtual node')} and all pods on them.")
        if not self.yes and not self.terminal.agree("Delete it?"):
            raise CommandFailed("nothing was changed")

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
                progress.tell(text)
                if progress.seconds >= self.timeout:
                    raise CommandFailed(
                        f"ClusterBinding {self.name} is still there after {progress.seconds:.0f} s: {text}; {_remedy(left)}"
                    )
                await self.clock.sleep(_EVERY)
        finally:
            progress.end()

    async def _waiting_for(self, hub: Client, left: Unknown) -> str:
        nodes = await _nodes(hub, self.name)
        parts = [_counted(len(nodes), "virtual node") + " left", *(f"finalizer {each}" for each in left.metadata.finalizers)]
        told = outlook(left.body)
        return ", ".join(parts) + (f" ({told.text})" if told.seen and not told.ready else "")

    # --- What is left ---------------------------------------------------------------------------------------------------------------

    def _say_what_is_left(self, plan: Plan) -> None:
        say = self.terminal.say
        say("Left behind, so that it can be bound again:")
        say(f"  in the {self.hub_choice.title}: Secret {plan.secret} with the worker's kubeconfig")
        for body in (*plan.identity.objects, *plan.identity.guards):
            say(f"  in the worker cluster: {identity.title(body)}")
        say(f"  in the worker cluster: PriorityClass {keys.DEFAULT_PRIORITY_CLASS}, which all bindings share, if a pod ran there")
        mount = "" if plan.mount_namespace == keys.WORKER_NAMESPACE else f" --mount-namespace {plan.mount_namespace}"
        say(f"To take the identity away as well:\n  kubeocean unbind {self.name} --remove-identity --worker-context CTX{mount}")

    async def _remove_identity(self, hub: Client, plan: Plan, worker_choice: Choice) -> None:
        async with clusters.opened(worker_choice) as worker:
            with explained(worker_choice):
                granted = worker_objects(plan.mount_namespace, metrics=True)
                # The limits are removed last, so that the identity never exists without them.
                for body in (*reversed(granted), *worker_guards(plan.mount_namespace, policy_label=True)):
                    if body["kind"] != NAMESPACES.kind:
                        self.terminal.say(f"{worker_choice.what}: {identity.title(body)}: {await identity.remove(worker, body)}")
                shared = f"PriorityClass {keys.DEFAULT_PRIORITY_CLASS}"
                self.terminal.say(f"{worker_choice.what}: {shared}: {await identity.remove_priority_class(worker)}")
        with explained(self.hub_choice):
            secret = plan.shown_secret()
            self.terminal.say(f"{self.hub_choice.what}: {identity.title(secret)}: {await identity.remove(hub, secret)}")
        self.terminal.say(f"Left behind: Namespace {plan.mount_namespace} in the {worker_choice.title}, with whatever else is in it.")


async def _nodes(hub: Client, name: str) -> Sequence[object]:
    return (await hub.list(NODES, Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(name)}"))).items


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _remedy(left: Unknown) -> str:
    if keys.FINALIZER_SYNCER in left.metadata.finalizers:
        look = "see whether the process of the binding runs and reaches the worker cluster"
        return f"{look}, or give up what is there: kubeocean unbind {left.metadata.name} --force-after 0"
    if keys.FINALIZER_MANAGER in left.metadata.finalizers:
        return "see whether `kubeocean manager` runs"
    return "the finalizers are not ours; see who put them there"
