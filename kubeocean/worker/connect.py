"""Verifies the connection from a ClusterBinding to its worker cluster.

Invariant: a connection is used only after the worker accepted it and the mount namespace is ours; failures never contain data of a Secret.
"""

import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from attrs import evolve, field, frozen

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, SYNCER_FAILED, VALIDATION_FAILED, Failure
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.model.ownership import Mark, Ownership, classify
from kubeocean.worker.cluster import Mount
from vkubelet.api.names import SYSTEM_NAMESPACE
from vkubelet.api.objects import NAMESPACES, NODES, SECRETS, Key, ObjectMeta, Unknown
from vkubelet.client.connection import Connection, connection_from_kubeconfig
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.control.contact import Outcome, outcome_of
from vkubelet.control.rights import may
from vkubelet.errors import ApiError, Conflict, Forbidden, NotFound, SettingsError, Unauthorized, VKubeletError

log = logging.getLogger(__name__)

KUBECONFIG = "kubeconfig"
"""Key of the kubeconfig in the Secret."""


@frozen
class Target:
    """A worker cluster as described by a binding; two with the same fingerprint are connected to in the same way."""

    connection: Connection = field(repr=False)
    mount: Mount
    fingerprint: str


async def read_hub_uid(hub: Client, clock: Clock) -> str:
    """Reads the UID that identifies the hub, with which everything created in a worker is marked; retries until that succeeds."""
    backoff = Backoff(limit=30.0)
    while True:
        try:
            return (await hub.get(NAMESPACES, SYSTEM_NAMESPACE)).metadata.uid
        except VKubeletError as error:
            log.debug("cannot read the UID of Namespace %s, which identifies this cluster; retrying: %s", SYSTEM_NAMESPACE, error)
            await clock.sleep(backoff.next())


async def find_target(hub: Client, binding: ClusterBinding, hub_uid: str) -> Target | Failure:
    """Builds the target from binding and Secret, without a request to the worker. Raises ApiError when a request to the hub fails."""
    problems = binding.validate()
    if problems:
        return Failure(VALIDATION_FAILED, "; ".join(str(problem) for problem in problems))
    changed = changed_identity(binding)
    if changed is not None:
        return changed
    bindings = (await hub.list(CLUSTERBINDINGS)).items
    overlapping = older_that_overlaps(binding, bindings)
    if overlapping:
        text = (
            f"spec.mountNamespace: under {keys.PER_NAMESPACE}, {binding.mount_namespace} and that of the older ClusterBinding {overlapping}"
        )
        return Failure(VALIDATION_FAILED, f"{text} lead to the same namespaces: one is the beginning of the other; name another namespace")
    other = older_of_like_id(binding, bindings)
    if other:
        text = f"spec.clusterID: {binding.cluster_id} conflicts with the clusterID of the older ClusterBinding {other}"
        return Failure(VALIDATION_FAILED, f"{text}; delete this ClusterBinding and create it with another clusterID")
    kubeconfig = await _kubeconfig(hub, binding)
    if isinstance(kubeconfig, Failure):
        return kubeconfig
    where = f"spec.secretRef: key `{KUBECONFIG}` of Secret {_secret(binding)}"
    try:
        connection = connection_from_kubeconfig(kubeconfig)
    except SettingsError as error:
        return Failure(CONNECTIVITY_FAILED, f"{where} is no usable kubeconfig: {error}; put a new one there")
    if connection.insecure and not binding.allow_insecure_worker:
        remedy = "add certificate-authority-data to it, or set spec.allowInsecureWorker: true"
        return Failure(VALIDATION_FAILED, f"{where} does not verify the worker's certificate; {remedy}")
    mount = Mount.of(binding, hub_uid)
    parts = (mount.owner.mark, mount.namespace, *(() if mount.is_shared else (mount.mapping,)))
    fingerprint = hashlib.sha256(b"\0".join((kubeconfig, *(part.encode() for part in parts)))).hexdigest()
    return Target(connection, mount, fingerprint)


Hold = Callable[[], Awaitable[None]]
"""Puts the finalizer on the binding, before anything of it is created in the worker."""


async def prove(worker: Client, mount: Mount, *, hold: Hold | None, nodes: Collection[str] = ()) -> Failure | None:
    """Verifies that the worker responds and authenticates us, and claims the mount namespace; returns None on success.

    `nodes` are the UIDs of the physical nodes behind virtual ones. A cluster that has no mark of ours and none of these nodes is another
    one, in which none of the running pods would be found. Without `hold` nothing is claimed: the binding is being deleted.
    """
    failure = await answers(worker)
    if failure is not None:
        return failure
    return await (_claim(worker, mount, nodes, hold=hold) if hold is not None else _recognise(worker, mount, nodes))


async def answers(worker: Client) -> Failure | None:
    """Verifies that the worker responds and authenticates us; writes nothing. Returns None on success."""
    try:
        await worker.request("GET", "/version")
    except Unauthorized:
        text = "spec.secretRef: the worker cluster rejects the credentials of the kubeconfig; put a valid kubeconfig into the Secret"
        return Failure(CONNECTIVITY_FAILED, text, Outcome.UNSERVED)
    except SettingsError as error:
        text = f"spec.secretRef: the kubeconfig is not usable: {error}; put a new one into the Secret"
        return Failure(CONNECTIVITY_FAILED, text, Outcome.UNSERVED)
    except ApiError as error:
        text = f"spec.secretRef: requests to the worker cluster fail ({error}); check the server of the kubeconfig and the network"
        return Failure(CONNECTIVITY_FAILED, text, outcome_of(error))
    return None


def changed_identity(binding: ClusterBinding) -> Failure | None:
    """Rejects a changed clusterID or namespace, which a CRD of Kubeocean (Go) allows; pods are found by the accepted ones (pure)."""
    if evolve(binding.asked, mapping=binding.mapping) == binding.identity:
        return None
    found = f"nodes and pods are found by {binding.cluster_id} in namespace {binding.mount_namespace}"
    text = f"spec.clusterID and spec.mountNamespace cannot be changed: {found}; restore them, or create a new ClusterBinding"
    return Failure(VALIDATION_FAILED, text)


def older_of_like_id(binding: ClusterBinding, listed: Sequence[Unknown]) -> str:
    """Returns the name of an older binding whose clusterID is the same, or leads to the same names of nodes: `vnode-a-b-c` (pure).

    A served binding counts as older than one that is not.
    """
    return next((obj.metadata.name for obj in _older(binding, listed) if any(_alike(binding.cluster_id, each) for each in _ids(obj))), "")


def older_that_overlaps(binding: ClusterBinding, listed: Sequence[Unknown]) -> str:
    """Returns the name of an older binding with whose namespaces in the worker those of this binding could be the same (pure)."""
    found = ((obj.metadata.name, ClusterBinding.parse(obj)) for obj in _older(binding, listed))
    own = (binding.identity, binding.asked)
    return next(
        (name for name, other in found if any(each.overlaps(theirs) for each in own for theirs in (other.identity, other.asked))), ""
    )


def _older(binding: ClusterBinding, listed: Sequence[Unknown]) -> list[Unknown]:
    own = next((obj for obj in listed if obj.metadata.uid == binding.uid), None)
    return [] if own is None else [obj for obj in sorted(listed, key=_age) if _age(obj) < _age(own)]


def _age(obj: Unknown) -> tuple[bool, str, str]:
    meta = obj.metadata
    return (keys.Identity.accepted(meta) is None, meta.creation_timestamp, meta.name)


def _ids(obj: Unknown) -> set[str]:
    """Returns the requested clusterID, and the accepted one, by which its pods are found even if it requests another by now."""
    binding = ClusterBinding.parse(obj)
    return {binding.cluster_id, binding.asked.cluster_id} - {""}


def _alike(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}-") or other.startswith(f"{one}-")


async def _kubeconfig(hub: Client, binding: ClusterBinding) -> bytes | Failure:
    name = _secret(binding)
    try:
        secret = await hub.get(SECRETS, Key(binding.secret.namespace, binding.secret.name))
    except NotFound:
        text = f"spec.secretRef: Secret {name} does not exist; create it with the worker's kubeconfig under the key `{KUBECONFIG}`"
        return Failure(CONNECTIVITY_FAILED, text)
    except Forbidden:
        return Failure(CONNECTIVITY_FAILED, f"spec.secretRef: this process may not read Secret {name}; grant it `get` on the Secret")
    return _content(secret, name)


def _content(secret: Unknown, name: str) -> bytes | Failure:
    try:
        content = base64.b64decode((secret.body.get("data") or {}).get(KUBECONFIG) or "", validate=True)
    except binascii.Error:
        content = b""
    if not content.strip():
        return Failure(
            CONNECTIVITY_FAILED, f"spec.secretRef: Secret {name} has nothing under the key `{KUBECONFIG}`; put the kubeconfig there"
        )
    return content


async def _recognise(worker: Client, mount: Mount, nodes: Collection[str]) -> Failure | None:
    """Accepts a mount namespace that is deleted or belongs to another binding by now, as unbinding can proceed; rejects another cluster."""
    try:
        namespace = await worker.get(NAMESPACES, mount.namespace)
        if classify(namespace.metadata, mount.owner, mark=Mark.MOUNT) is Ownership.OURS:
            return None
    except (NotFound, Forbidden):
        return await _another_cluster(worker, mount, nodes)
    except ApiError as error:
        return _unread(mount, error)
    return await _another_cluster(worker, mount, nodes)


async def _claim(worker: Client, mount: Mount, nodes: Collection[str], *, hold: Hold) -> Failure | None:
    """Claims the namespace; the first binding that uses one owns it."""
    try:
        namespace = await worker.get(NAMESPACES, mount.namespace)
        if tenant_of := namespace.metadata.labels.get(keys.TENANT_OF, ""):
            text = f"spec.mountNamespace: namespace {mount.namespace} of the worker cluster is that of a tenant of {tenant_of}"
            return Failure(VALIDATION_FAILED, f"{text}; name another namespace")
        ownership = classify(namespace.metadata, mount.owner, mark=Mark.MOUNT)
        if ownership is Ownership.UNMARKED and (failure := await _another_cluster(worker, mount, nodes)):
            return failure
        if ownership is not Ownership.ANOTHERS:
            await hold()
        if ownership is Ownership.UNMARKED:
            metadata = {"annotations": {keys.MOUNT_OWNER: mount.owner.mark}, "resourceVersion": namespace.metadata.resource_version}
            namespace = await worker.patch(NAMESPACES, mount.namespace, {"metadata": metadata}, kind=PatchKind.MERGE)
    except NotFound:
        text = f"spec.mountNamespace: the worker cluster has no namespace {mount.namespace}; create it, or name another namespace"
        return Failure(VALIDATION_FAILED, text)
    except Forbidden:
        return await _unclaimed(worker, mount, nodes, hold=hold)
    except Conflict:
        return Failure(
            CONNECTIVITY_FAILED, f"spec.mountNamespace: another client changes namespace {mount.namespace}; the claim is retried"
        )
    except ApiError as error:
        return _unread(mount, error)
    claimed = classify(namespace.metadata, mount.owner, mark=Mark.MOUNT) is Ownership.OURS
    return None if claimed else taken_mount(namespace.metadata)


def _unread(mount: Mount, error: ApiError) -> Failure:
    text = f"spec.mountNamespace: cannot read namespace {mount.namespace} of the worker cluster: {error}; check its API server"
    return Failure(CONNECTIVITY_FAILED, text, Outcome.UNSERVED)


def taken_mount(namespace: ObjectMeta) -> Failure:
    """Returns the failure of a binding whose mount namespace another binding uses."""
    owner = namespace.annotations.get(keys.MOUNT_OWNER, "")
    text = f"spec.mountNamespace: namespace {namespace.name} of the worker cluster belongs to binding {owner}; name another namespace"
    return Failure(VALIDATION_FAILED, text)


async def _unclaimed(worker: Client, mount: Mount, nodes: Collection[str], *, hold: Hold) -> Failure | None:
    """Checks a namespace that we may not read: roles for Kubeocean (Go) allow to create pods in it, unless it does not exist.

    Every object names its owner nevertheless.
    """
    wanted = {"namespace": mount.namespace, "verb": "create", "resource": "pods"}
    try:
        granted = await may(worker, wanted)
    except Forbidden:
        # Every known user may create this review.
        text = "spec.secretRef: the worker cluster treats the kubeconfig's user as anonymous; put valid credentials into the Secret"
        return Failure(CONNECTIVITY_FAILED, text)
    except ApiError as error:
        text = f"spec.mountNamespace: cannot check the rights in namespace {mount.namespace} of the worker cluster: {error}"
        return Failure(CONNECTIVITY_FAILED, f"{text}; check its API server", Outcome.UNSERVED)
    if granted:
        failure = await _another_cluster(worker, mount, nodes)
        if failure is None:
            await hold()
        return failure
    text = f"spec.mountNamespace: the user of the kubeconfig may not create pods in namespace {mount.namespace} of the worker cluster"
    return Failure(SYNCER_FAILED, f"{text}; create the namespace if it is missing and grant the rights in it, or name another namespace")


async def _another_cluster(worker: Client, mount: Mount, nodes: Collection[str]) -> Failure | None:
    """Checks that this cluster has the nodes of the binding; a refused list leaves that open, which is a failure too."""
    if not nodes:
        return None
    try:
        listed = (await worker.list(NODES)).items
    except Forbidden:
        return Failure(
            SYNCER_FAILED, "spec.secretRef: the kubeconfig's user may not list nodes, which identify the cluster; grant that right"
        )
    except ApiError as error:
        text = f"spec.secretRef: cannot list the nodes of the worker cluster, which identify it: {error}; check its API server"
        return Failure(CONNECTIVITY_FAILED, text, Outcome.UNSERVED)
    if any(node.metadata.uid in nodes for node in listed):
        return None
    text = f"the kubeconfig leads to another cluster: it has none of this binding's nodes, and no mark of it on namespace {mount.namespace}"
    remedy = f"restore the earlier one, or annotate the ClusterBinding with {keys.CONFIRM_RETIRE}=true to give up the pods of that cluster"
    return Failure(VALIDATION_FAILED, f"spec.secretRef: {text}; {remedy}")


def _secret(binding: ClusterBinding) -> str:
    return f"{binding.secret.namespace}/{binding.secret.name}"
