"""`kubeocean logs NAME|--manager`: prints the logs of the process that serves a binding, or of the manager.

Invariant: of several replicas the leader's log is printed, and its name is on stderr, so that the output is the log alone.
"""

import sys
from collections.abc import AsyncIterator, Sequence

from attrs import frozen

from kubeocean.commands import reading
from kubeocean.manager.workloads import deployment_name
from kubeocean.rbac.permissions import MANAGER
from vkubelet.api.objects import LEASES, PODS, Key, Pod
from vkubelet.client.rest import Client, Selection
from vkubelet.commands import clusters
from vkubelet.commands.reading import MissingRight, Reader
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import Forbidden

MANAGER_LABELS = f"app.kubernetes.io/name={MANAGER}"
_LINES = 1000


@frozen(kw_only=True)
class Asked:
    """Which part of a log is printed; `tail` None for all of it."""

    follow: bool = False
    previous: bool = False
    tail: int | None = _LINES

    @property
    def params(self) -> list[tuple[str, str]]:
        named = {"follow": "true" if self.follow else "", "previous": "true" if self.previous else ""}
        named["tailLines"] = "" if self.tail is None else str(self.tail)
        return [(name, value) for name, value in named.items() if value]


async def show(hub: clusters.Choice, binding: str, terminal: Terminal, *, namespace: str, asked: Asked) -> None:
    """Prints the log of the process of a binding, of the manager for an empty name. Raises CommandFailed."""
    async with clusters.opened(hub) as client:
        reader = Reader(client, hub)
        name, pods = await pods_of(reader, binding, namespace)
        pod = await leader(reader, pods, lease=Key(namespace, name))
        print(f"Pod {pod.key}, {len(pods)} replicas" if len(pods) > 1 else f"Pod {pod.key}", file=sys.stderr)
        try:
            with clusters.explained(hub, passing=Forbidden):
                async for line in lines(client, pod.key, asked):
                    terminal.write_line(line)
        except Forbidden as error:
            raise MissingRight(f"you may not get pods/log in namespace {namespace} in the {hub.title}: {error.message}") from error


async def pods_of(hub: Reader, binding: str, namespace: str) -> tuple[str, Sequence[Pod]]:
    """Reads the pods of a process, with the name of its Deployment. Raises CommandFailed when there is none."""
    if binding:
        (served,) = await reading.bindings(hub, binding)
        name = deployment_name(served.cluster_id)
        labels, start = f"k8s-app={name}", f"kubeocean run --binding {binding}"
    else:
        name, labels, start = MANAGER, MANAGER_LABELS, "helm upgrade --install kubeocean deploy/charts/kubeocean"
    pods = await hub.list(PODS, Selection(namespace=namespace, labels=labels))
    if not pods:
        text = f"the {hub.choice.title} has no pod of Deployment {namespace}/{name}"
        raise clusters.CommandFailed(f"{text}; if the process runs elsewhere, its log is on its stderr; to start it: {start}")
    return name, pods


async def leader(hub: Reader, pods: Sequence[Pod], *, lease: Key) -> Pod:
    """Returns the pod that holds the Lease, else the first that runs."""
    found = await hub.get_if_allowed(LEASES, lease, otherwise="the leader is not known")
    holder = str(found.spec.get("holderIdentity") or "") if found is not None else ""
    running = sorted(pods, key=lambda pod: (not (holder and pod.metadata.name in holder), pod.phase != "Running", pod.metadata.name))
    return running[0]


async def lines(client: Client, pod: Key, asked: Asked) -> AsyncIterator[str]:
    """Yields the lines of a log. Raises ApiError."""
    rest = b""
    async with client.stream(f"{PODS.path(pod.namespace, pod.name, 'log')}", asked.params) as chunks:
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
