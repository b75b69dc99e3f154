"""Checks of the ResourceLeasingPolicies of a worker: that there is one, and the problems of each as `explain policy` names them.

Invariant: a policy whose window is closed is no problem.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from kubeocean.doctor.findings import Finding, error, few, warning
from kubeocean.explain.lease import Lease
from kubeocean.explain.policy import explain_policy
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from vkubelet.api.selectors import match_node_selector


def policies(lease: Lease, binding: ClusterBinding, *, instant: datetime, kubectl: str) -> Iterator[Finding]:
    """Checks the policies for one binding."""
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
