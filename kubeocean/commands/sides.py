"""The two clusters of a binding as named by flags, and the kinds of Kubeocean in them.

Invariant: an error about a cluster names the flag that selected it.
"""

from pathlib import Path
from typing import Final

from kubeocean.model import keys
from kubeocean.model.crds import definition
from vkubelet.api.objects import Resource, Unknown
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.commands import definitions
from vkubelet.commands.clusters import Choice
from vkubelet.errors import SettingsError

FIELD_MANAGER: Final = "kubeocean-bind"
_INSTALLER: Final = definitions.Installer(name=FIELD_MANAGER, content=keys.APPLIED, version=keys.VERSION)


def hub_of(kubeconfig: Path | None, context: str) -> Choice:
    return Choice("computing cluster", "--kubeconfig, --context", kubeconfig, context, FIELD_MANAGER)


def worker_of(kubeconfig: Path | None, context: str, *, hub: Choice) -> Choice:
    """Returns the worker cluster. Raises SettingsError when neither flag names it: the current context is the computing cluster's."""
    if not context and not kubeconfig:
        raise SettingsError("--worker-context", "name the kubeconfig context of the worker cluster, or set --worker-kubeconfig")
    return Choice("worker cluster", "--worker-kubeconfig, --worker-context", kubeconfig or hub.kubeconfig, context, FIELD_MANAGER)


async def ensure_definition(client: Client, resource: Resource[Unknown], clock: Clock) -> str:
    """Creates or updates the CRD of one of our kinds; returns what was done. Raises ApiError, CommandFailed."""
    source = f"kubeocean/manifests/{resource.plural}.yaml"
    return await definitions.ensure_definition(
        client, resource, text=definition(resource), installer=_INSTALLER, source=source, clock=clock
    )
