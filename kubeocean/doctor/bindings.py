"""Checks of one ClusterBinding: connection, credentials and the rights behind them, process, addresses of the hub, and policies.

Invariant: messages of the manager and of the process are repeated as they are, because users search for them.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import frozen

from kubeocean.binding.conditions import VALIDATION_FAILED, Failure
from kubeocean.explain.lease import Lease as Terms
from kubeocean.explain.policy import explain_policy
from kubeocean.manager.binding_status import STARTING, process_health, rights_text, unguarded_text
from kubeocean.manager.workloads import deployment_name
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from kubeocean.pods.placement import API_SERVER, DNS
from kubeocean.rbac.permissions import SYNCER
from vkubelet.api.objects import JsonView, Key, Lease, Pod, Unknown
from vkubelet.api.rbac import Check
from vkubelet.api.selectors import match_node_selector
from vkubelet.clock import parse_rfc3339, rfc3339
from vkubelet.commands.findings import Finding, error, warning
from vkubelet.logformat import few

SOON: Final = timedelta(days=7)
RENEWED_WITHIN: Final = timedelta(seconds=40)
"""The grace period after which the hub takes a node for failed."""


MOST_ROLES: Final = 4
"""For more roles than this, one command that creates all of them is proposed."""


@frozen
class Commands:
    """`kubectl` for both clusters, with the flags that select them."""

    hub: str
    worker: str


def connection(binding: ClusterBinding, failure: Failure, *, has_secret: bool, commands: Commands) -> Finding:
    """Returns the finding for why the worker cannot be used."""
    if failure.reason == VALIDATION_FAILED:
        return error(failure.message, f"{commands.hub} edit clusterbinding {binding.name}")
    secret = binding.secret
    if has_secret:
        return error(failure.message, f"kubeocean bind {binding.name} --worker-context CONTEXT")
    make = f"create secret generic {secret.name} -n {secret.namespace} --from-file=kubeconfig=FILE"
    return error(failure.message, f"{commands.hub} {make}", f"kubeocean bind {binding.name} --worker-context CONTEXT")


def credentials(binding: ClusterBinding, expires: datetime | None, *, now: datetime) -> Iterator[Finding]:
    """Checks when the credentials of the kubeconfig expire; None: never, or unknown."""
    if expires is None or expires - now > SOON:
        return
    what = f"spec.secretRef: the credentials in Secret {binding.secret.namespace}/{binding.secret.name}"
    renew = f"kubeocean bind {binding.name} --worker-context CONTEXT"
    if expires <= now:
        yield error(f"{what} expired at {rfc3339(expires)}; put a new kubeconfig there", renew)
    else:
        yield warning(f"{what} expire at {rfc3339(expires)}; put a new kubeconfig there before", renew)


# --- Rights -------------------------------------------------------------------------------------------------------------------------------


def rights(binding: ClusterBinding, missing: Sequence[Check], *, user: str, kubectl: str) -> Iterator[Finding]:
    """Checks the rights of the kubeconfig's user in the worker."""
    if not missing:
        return
    few_roles = len({(each.namespace, each.resource) for each in missing}) <= MOST_ROLES
    if not few_roles or user == f"system:serviceaccount:{binding.mount_namespace}:{SYNCER}":
        commands = [f"kubeocean bind {binding.name} --worker-context CONTEXT --mount-namespace {binding.mount_namespace}"]
    else:
        commands = list(grants(missing, name=f"kubeocean-{binding.name}", user=user, kubectl=kubectl))
    make = error if any(each.essential for each in missing) else warning
    yield make(rights_text(missing), *commands)


def hub_rights(account: Key, missing: Sequence[Check], *, kubectl: str, helm: str) -> Iterator[Finding]:
    """Checks the rights of the process's ServiceAccount in the hub."""
    if missing:
        text = f"ServiceAccount {account} may not {few(map(str, missing), 6)} in the hub; upgrade the chart kubeocean, or grant the rights"
        user = f"system:serviceaccount:{account.namespace}:{account.name}"
        make = error if any(each.essential for each in missing) else warning
        few_roles = len({(each.namespace, each.resource) for each in missing}) <= MOST_ROLES
        one_by_one = grants(missing, name=f"{account.name}-more", user=user, kubectl=kubectl)
        yield make(text, *(one_by_one if few_roles else [f"{helm} upgrade kubeocean deploy/charts/kubeocean --reset-then-reuse-values"]))


def grants(missing: Iterable[Check], *, name: str, user: str, kubectl: str) -> Iterator[str]:
    """Yields the commands that grant rights to a user: a role for each resource, and its binding."""
    verbs: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for check in missing:
        resource = check.resource + (f".{check.group}" if check.group else "") + (f"/{check.subresource}" if check.subresource else "")
        verbs[check.namespace, resource, check.name].append(check.verb)
    for (namespace, resource, one), listed in verbs.items():
        role = "-".join(part.replace("/", "-") for part in (name, resource, one) if part)
        kind, scope = ("role", f" -n {namespace}") if namespace else ("clusterrole", "")
        only = f" --resource-name={shlex.quote(one)}" if one else ""
        yield f"{kubectl} create {kind} {role}{scope} --verb={','.join(listed)} --resource={resource}{only}"
        yield f"{kubectl} create {kind}binding {role}{scope} --{kind}={role} {shlex.quote(f'--user={user}')}"


def guards(binding: ClusterBinding, gains: Sequence[str]) -> Iterator[Finding]:
    """Checks that the worker refuses what is beyond the lease."""
    if gains:
        yield warning(unguarded_text(gains), f"kubeocean bind {binding.name} --worker-context CONTEXT")


# --- The process --------------------------------------------------------------------------------------------------------------------------


def process(
    binding: ClusterBinding, deployment: Unknown | None, pods: Iterable[Pod], *, leases: Sequence[Lease], now: datetime, commands: Commands
) -> Iterator[Finding]:
    """Checks that a process serves the binding: its Deployment if there is one, and the Leases of its nodes."""
    name = deployment_name(binding.cluster_id)
    health = process_health(name, deployment, pods)
    if deployment is not None and health.failure is not None:
        make = warning if health.failure.reason == STARTING else error
        namespace = deployment.metadata.namespace
        where = f"{commands.hub} -n {namespace} describe pods -l k8s-app={name}"
        yield make(f"{health.failure.message}", where, f"kubeocean logs {binding.name}")
        return
    silent = [lease for lease in leases if (renewed := renewed_at(lease)) is not None and now - renewed > RENEWED_WITHIN]
    start = "start the manager (chart kubeocean), or serve the binding yourself"
    run = f"kubeocean run --binding {binding.name}"
    if silent:
        last = max(filter(None, map(renewed_at, silent)))
        which = few(sorted(lease.metadata.name for lease in silent))
        yield error(f"no process renews the Leases of {which} since {rfc3339(last)}: none serves the binding; {start}", run)
    elif deployment is None and not leases and not binding.status.get("conditions"):
        yield error(f"no process serves the binding: it has no conditions, and Deployment {name} does not exist; {start}", run)


def renewed_at(lease: Lease) -> datetime | None:
    """Returns the time of the last renewal."""
    text = lease.spec.get("renewTime")
    return parse_rfc3339(text) if text else None


def conditions(unmet: Iterable[JsonView], known: Iterable[Finding]) -> Iterator[Finding]:
    """Repeats the conditions that are not as desired, unless a finding has their message already."""
    shown = {each.problem for each in known}
    for condition in unmet:
        message = condition.get("message") or ""
        if message and message not in shown:
            shown.add(message)
            yield error(f"{condition.get('type')}={condition.get('status')}, {condition.get('reason')}: {message}")


# --- Addresses of the hub -----------------------------------------------------------------------------------------------------------------


def addresses(binding: ClusterBinding, services: Iterable[Key], *, kubectl: str) -> Iterator[Finding]:
    """Checks that pods in the worker get the addresses of the hub's API server and DNS."""
    found, patch = set(services), f"{kubectl} patch clusterbinding {binding.name} --type=merge -p"
    if binding.api_server is None and API_SERVER not in found:
        text = f"spec.apiServerAccess: pods in the worker cannot reach the hub's API server; set it, or create Service {API_SERVER}"
        yield warning(text, f'{patch} \'{{"spec":{{"apiServerAccess":{{"host":"ADDRESS","port":6443}}}}}}\'')
    if binding.dns is None and DNS not in found:
        text = f"spec.dns: pods in the worker resolve no Services of the hub; set it, or create Service {DNS}"
        yield warning(text, f'{patch} \'{{"spec":{{"dns":{{"servers":["ADDRESS"]}}}}}}\'')


# --- Policies -----------------------------------------------------------------------------------------------------------------------------


def policies(lease: Terms, binding: ClusterBinding, *, instant: datetime, kubectl: str) -> Iterator[Finding]:
    """Checks the policies for one binding; one whose window is closed is no problem."""
    if not lease.policies:
        text = f"no ResourceLeasingPolicy of the worker names ClusterBinding {binding.name} in spec.cluster, so it leases no node"
        yield error(f"{text}; create one", f"{kubectl} apply -f deploy/samples/policy.yaml")
    for policy in lease.policies:
        for problem in explain_policy(lease, policy, instant=instant).problems:
            text = f"ResourceLeasingPolicy {policy.name}: {problem}"
            yield error(text, f"{kubectl} edit resourceleasingpolicy {policy.name}", f"kubeocean explain policy {policy.name}")
    selected = [node for node in lease.nodes if match_node_selector(binding.node_selector, node.facts.labels, node.facts.name)]
    if lease.nodes and not selected:
        text = f"spec.nodeSelector of ClusterBinding {binding.name} selects none of the {len(lease.nodes)} nodes of the worker; correct it"
        yield error(text, f"{kubectl} get nodes --show-labels")


def unknown_bindings(listed: Iterable[ResourceLeasingPolicy], bindings: Sequence[ClusterBinding], *, kubectl: str) -> Iterator[Finding]:
    """Checks for policies of a worker that name a ClusterBinding which the hub does not have; those of another hub are named too."""
    names = {each.name for each in bindings}
    strange = [each for each in listed if each.cluster not in names]
    for policy in strange:
        text = f"ResourceLeasingPolicy {policy.name}: spec.cluster names ClusterBinding {policy.cluster or '(none)'}"
        remedy = f"this hub does not have it, only {few(sorted(names))}; correct it unless it is for another hub"
        yield warning(f"{text}; {remedy}", f"{kubectl} edit resourceleasingpolicy {policy.name}")
