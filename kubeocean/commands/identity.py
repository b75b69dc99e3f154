"""The narrow identity in a worker cluster: creation, repair, checks of its rights, and removal; and our CRDs in both clusters.

Invariant: objects that another client manages (a Helm release) are never written; a token is written to a Secret and nowhere else.
"""

import base64
import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import yaml
from attrs import evolve, field, frozen

from kubeocean.manager.checks import unguarded
from kubeocean.model import keys
from kubeocean.model.crds import definition
from kubeocean.rbac import permissions, tenants
from vkubelet.api import objects
from vkubelet.api.objects import Json, JsonView, Key, ObjectMeta, Resource, Unknown
from vkubelet.api.rbac import Check, Rule, checks_of
from vkubelet.client.connection import Connection, connection_from_kubeconfig
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock
from vkubelet.commands import clusters
from vkubelet.control.rights import lacking_rights
from vkubelet.errors import Forbidden, NotFound

OURS: Final = "kubeocean-bind"
"""Field manager, and value of the label of what the command creates."""
LABELS: Final[Json] = {clusters.MANAGED_BY: OURS}
_INSTALLER: Final = clusters.Installer(name=OURS, content=keys.APPLIED, version=keys.VERSION)
POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"

_TOKEN_WITHIN = 30.0
_GRANTED_WITHIN = 5.0
_GUARDED_WITHIN = 10.0
_RESOURCES: Final = {
    each.kind: each
    for each in (
        objects.NAMESPACES,
        objects.SERVICEACCOUNTS,
        objects.SECRETS,
        objects.CLUSTERROLES,
        objects.CLUSTERROLEBINDINGS,
        objects.ROLES,
        objects.ROLEBINDINGS,
        objects.NETWORKPOLICIES,
        tenants.RESOURCEQUOTAS,
        objects.ADMISSIONPOLICIES,
        objects.ADMISSIONPOLICYBINDINGS,
    )
}


@frozen(kw_only=True)
class Identity:
    """The rights of the identity, and their namespace."""

    mount_namespace: str
    metrics: bool = False
    policy_label: bool = False
    per_namespace: bool = False
    tenants: Sequence[str] = ()
    """Hub namespaces for which a namespace is prepared."""
    creates: bool = False
    """Whether it may create the namespaces of tenants."""

    @property
    def objects(self) -> list[Json]:
        made = permissions.worker_objects(self.mount_namespace, metrics=self.metrics, policy_label=self.policy_label, labels=LABELS)
        if not self.per_namespace:
            return made
        made += tenants.wide_objects(self.mount_namespace, creates=self.creates, labels=LABELS)
        return made + [body for each in self.tenants for body in tenants.tenant_objects(self.mount_namespace, each, labels=LABELS)]

    @property
    def guards(self) -> list[Json]:
        made = permissions.worker_guards(self.mount_namespace, policy_label=self.policy_label, tenants=self.per_namespace, labels=LABELS)
        return made + (tenants.tenant_guards(self.mount_namespace, creates=self.creates, labels=LABELS) if self.per_namespace else [])

    @property
    def rules(self) -> tuple[Rule, ...]:
        return permissions.worker_rules(self.mount_namespace, metrics=self.metrics, policy_label=self.policy_label) + self._wide

    @property
    def checks(self) -> tuple[Check, ...]:
        checks = permissions.worker_checks(self.mount_namespace, metrics=self.metrics, policy_label=self.policy_label)
        return checks + checks_of(self._wide)

    @property
    def _wide(self) -> tuple[Rule, ...]:
        return tenants.wide_rules(self.mount_namespace, creates=self.creates) if self.per_namespace else ()

    @property
    def token(self) -> Key:
        return Key(self.mount_namespace, permissions.token_name())


@frozen
class Credentials:
    """The token of the identity, and the cluster's own CA."""

    token: str = field(repr=False)
    authority: bytes = field(repr=False)


def title(body: JsonView) -> str:
    """Formats the title of an object: `Role kubeocean-worker/kubeocean-syncer`."""
    metadata = body["metadata"]
    return f"{body['kind']} " + "/".join(part for part in (metadata.get("namespace", ""), metadata["name"]) if part)


def resource_of(body: JsonView) -> Resource[Unknown]:
    return _RESOURCES[body["kind"]]


# --- Definitions --------------------------------------------------------------------------------------------------------------------------


async def ensure_definition(client: Client, resource: Resource[Unknown], clock: Clock) -> str:
    """Creates or updates the CRD of one of our kinds; returns what was done. Raises ApiError, CommandFailed."""
    source = f"kubeocean/manifests/{resource.plural}.yaml"
    return await clusters.ensure_definition(client, resource, text=definition(resource), installer=_INSTALLER, source=source, clock=clock)


# --- Creation -----------------------------------------------------------------------------------------------------------------------------


async def apply(worker: Client, body: Json) -> str:
    """Creates or repairs one object; returns what was done. Raises ApiError."""
    resource, found = resource_of(body), await clusters.find(worker, resource_of(body), body)
    if found is None:
        await worker.apply(resource, body)
        return "created"
    manager = found.metadata.labels.get(clusters.MANAGED_BY, OURS)
    if manager != OURS:
        return f"kept, {manager} manages it"
    if resource is objects.NAMESPACES:
        return await _namespace(worker, body, found)
    after = await worker.apply(resource, body)
    return "unchanged" if after.metadata.resource_version == found.metadata.resource_version else "repaired"


async def apply_where_allowed(worker: Client, body: Json) -> str:
    """Applies an optional object: it is left out when this user may not write it, or the API server does not serve the kind."""
    try:
        return await apply(worker, body)
    except (Forbidden, NotFound) as error:
        return f"skipped: {error}"


async def _namespace(worker: Client, body: Json, found: Unknown) -> str:
    """Keeps the labels of an existing namespace, whose owner may demand more of its pods; adds our level only when it has none."""
    if POD_SECURITY in found.metadata.labels:
        return "unchanged"
    labels = {POD_SECURITY: body["metadata"]["labels"][POD_SECURITY]}
    await worker.patch(objects.NAMESPACES, found.metadata.name, {"metadata": {"labels": labels}}, kind=PatchKind.MERGE)
    return f"unchanged, but now with {POD_SECURITY}={labels[POD_SECURITY]}"


async def credentials(worker: Client, secret: Key, clock: Clock) -> Credentials:
    """Waits until the controller manager has filled the token's Secret. Raises CommandFailed after `_TOKEN_WITHIN` seconds."""
    deadline = clock.monotonic() + _TOKEN_WITHIN
    while True:
        found = await clusters.find_named(worker, objects.SECRETS, secret.name, namespace=secret.namespace)
        data = (found.body.get("data") or {}) if found else {}
        if data.get("token"):
            return Credentials(base64.b64decode(data["token"]).decode(), base64.b64decode(data.get("ca.crt") or ""))
        if clock.monotonic() > deadline:
            remedy = "check that its kube-controller-manager runs and that the ServiceAccount of the Secret exists"
            raise clusters.CommandFailed(
                f"Secret {secret} did not get a token from the worker cluster within {_TOKEN_WITHIN:g} s; {remedy}"
            )
        await clock.sleep(0.3)


# --- The kubeconfig -----------------------------------------------------------------------------------------------------------------------


def kubeconfig_of(admin: Connection, made: Credentials, *, namespace: str, server: str = "") -> Json:
    """Builds a kubeconfig with one context, all inline; its CA is the one that the owner verifies this server with, else the cluster's."""
    source = admin.tls.source if admin.tls else None
    authority = source.authority.read() if source and source.authority else made.authority
    cluster: Json = {"server": server or admin.url}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    if admin.server_name and not server:
        cluster["tls-server-name"] = admin.server_name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "worker", "cluster": cluster}],
        "users": [{"name": permissions.SYNCER, "user": {"token": made.token}}],
        "contexts": [{"name": "worker", "context": {"cluster": "worker", "user": permissions.SYNCER, "namespace": namespace}}],
        "current-context": "worker",
    }


def text_of(kubeconfig: Json) -> str:
    return yaml.safe_dump(kubeconfig, sort_keys=False)


def connection_from_here(admin: Connection, made: Credentials, *, namespace: str) -> Connection:
    """Returns the new identity's connection over the address of its owner: other clusters may need another one."""
    return evolve(connection_from_kubeconfig(kubeconfig_of(admin, made, namespace=namespace)), proxy=admin.proxy)


def is_local(server: str) -> bool:
    """Checks for an address of the machine that uses it."""
    host = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- Its rights ---------------------------------------------------------------------------------------------------------------------------


async def missing_rights(client: Client, checks: Sequence[Check], clock: Clock) -> Sequence[Check]:
    """Returns the rights that this user does not have, even after the time that API servers take to notice new roles."""
    deadline = clock.monotonic() + _GRANTED_WITHIN
    missing = await lacking_rights(client, checks)
    while missing and clock.monotonic() < deadline:
        await clock.sleep(0.5)
        missing = await lacking_rights(client, missing)
    return missing


async def gains(client: Client, mount_namespace: str, clock: Clock) -> Sequence[str]:
    """Returns what this user gains beyond the lease, even after the time that API servers take to notice new admission policies."""
    deadline = clock.monotonic() + _GUARDED_WITHIN
    while gained := await unguarded(client, mount_namespace):
        if clock.monotonic() >= deadline:
            return gained
        await clock.sleep(0.5)
    return ()


# --- Removal ------------------------------------------------------------------------------------------------------------------------------


async def remove(worker: Client, body: Json) -> str:
    """Deletes one object of ours; returns what was done. Raises ApiError."""
    found = await clusters.find(worker, resource_of(body), body)
    if found is None:
        return "does not exist"
    manager = found.metadata.labels.get(clusters.MANAGED_BY, "another client")
    if manager != OURS:
        return f"kept, {manager} created it"
    return await _delete(worker, resource_of(body), found)


async def remove_priority_class(worker: Client) -> str:
    """Deletes the class that was created with the first pod, unless another binding may need it; returns what was done. Raises ApiError."""
    found = await clusters.find_named(worker, objects.PRIORITYCLASSES, keys.DEFAULT_PRIORITY_CLASS)
    if found is None:
        return "does not exist"
    ours = Selection(labels=f"{keys.MANAGED_BY}={keys.MANAGED}")
    namespaces, pods = await worker.list(objects.NAMESPACES), await worker.list(objects.PODS, ours)
    kept = why_kept(found.metadata, [each.metadata for each in namespaces.items], [each.metadata for each in pods.items])
    if kept:
        return f"kept, {kept}"
    return await _delete(worker, objects.PRIORITYCLASSES, found)


async def _delete(worker: Client, resource: Resource[Unknown], found: Unknown) -> str:
    try:
        await worker.delete(resource, found.metadata, uid=found.metadata.uid, propagation="Background")
    except NotFound:
        return "does not exist"
    return "deleted"


def why_kept(found: ObjectMeta, namespaces: Sequence[ObjectMeta], pods: Sequence[ObjectMeta]) -> str:
    """Returns why the class that all bindings share is kept, "" when it need not be; `pods` are those of all bindings (pure)."""
    if found.labels.get(keys.MANAGED_BY) != keys.MANAGED or clusters.MANAGED_BY in found.labels:
        return f"{found.labels.get(clusters.MANAGED_BY, 'another client')} created it"
    bound = sorted(each.name for each in namespaces if keys.MOUNT_OWNER in each.annotations)
    if bound:
        return f"it is shared with the binding of namespace {bound[0]}"
    return f"pod {pods[0].key} uses it" if pods else ""
