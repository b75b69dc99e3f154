"""Objects that commands create: applied in their order, named for people.

Invariant: an object of a Helm release is never written.
"""

from collections.abc import Sequence
from typing import Final

from vkubelet.api import objects
from vkubelet.api.objects import Json, JsonView, Resource, Unknown
from vkubelet.client.rest import Client
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Terminal

OURS: Final = "fleet"
"""Field manager of the commands, and value of the label of what they create."""
INSTALLER: Final = clusters.Installer(name=OURS, content="fleet.vkubelet.io/content", version="fleet.vkubelet.io/version")
_HELM: Final = "meta.helm.sh/release-name"
_RESOURCES: Final[dict[str, Resource[Unknown]]] = {
    each.kind: each
    for each in (
        objects.NAMESPACES,
        objects.SERVICEACCOUNTS,
        objects.SECRETS,
        objects.CONFIGMAPS,
        objects.CLUSTERROLES,
        objects.CLUSTERROLEBINDINGS,
        objects.ROLES,
        objects.ROLEBINDINGS,
        objects.DEPLOYMENTS,
        objects.ADMISSIONPOLICIES,
        objects.ADMISSIONPOLICYBINDINGS,
    )
}


def resource_of(body: JsonView) -> Resource[Unknown]:
    return _RESOURCES[body["kind"]]


def title(body: JsonView) -> str:
    """Returns kind and name for people."""
    namespace = body["metadata"].get("namespace", "")
    return f"{body['kind']} {body['metadata']['name']}" + (f" in namespace {namespace}" if namespace else "")


async def apply_all(client: Client, bodies: Sequence[Json], *, choice: clusters.Choice, terminal: Terminal) -> None:
    """Applies objects in their order. Raises CommandFailed."""
    for body in bodies:
        resource = resource_of(body)
        with clusters.explained(choice):
            before = await clusters.find(client, resource, body)
            if before is not None and _HELM in before.metadata.annotations:
                terminal.write_line(f"{choice.what}: {title(body)}: unchanged, it belongs to a Helm release")
                continue
            after = await client.apply(resource, body)
        unchanged = before is not None and before.metadata.resource_version == after.metadata.resource_version
        done = "created" if before is None else "unchanged" if unchanged else "updated"
        terminal.write_line(f"{choice.what}: {title(body)}: {done}")


def confirm(terminal: Terminal, question: str, *, yes: bool) -> None:
    """Asks for a yes, unless that was given. Raises CommandFailed, SettingsError."""
    if not yes and not terminal.agree(question):
        raise clusters.CommandFailed("nothing was changed")
