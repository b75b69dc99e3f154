"""Checks of virtual nodes and the pods on them: state, kubelet port and its certificate, pod networks, pods that wait.

Invariant: an answer of the kubelet server, also a refusal, proves that its port is reached; pods with the same cause are one finding.
"""

import base64
import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen
from cryptography import x509

from kubeocean.doctor.bindings import Commands
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import daemonset_allowed, leaves_home, why_pending
from vkubelet.api.objects import JsonView, Key, Node, Pod, Unknown, get_condition
from vkubelet.api.podspec import waiting_containers
from vkubelet.commands.findings import Finding, error, warning
from vkubelet.errors import ApiError
from vkubelet.logformat import few

SERVING: Final = "kubernetes.io/kubelet-serving"
PROBED_PORT: Final = 9
"""Port `discard`: that a pod refuses a connection to it proves that the network leads to the pod."""
_CERTIFICATE: Final = ("x509", "certificate", "tls:")
_NO_ROUTE: Final = ("no route to host", "timeout", "timed out", "network is unreachable", "did not respond")
_OFF: Final = (
    '{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":'
    '[{"matchExpressions":[{"key":"type","operator":"NotIn","values":["virtual-kubelet"]}]}]}}}}}}}'
)
_LASTING: Final = frozenset({"CrashLoopBackOff", "CreateContainerConfigError", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff"})
"""Reasons of a kubelet that do not pass by themselves; those of the process of the binding are explained by its events."""


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def ready(nodes: Iterable[Node], *, kubectl: str) -> Iterator[Finding]:
    """Checks the condition Ready of virtual nodes."""
    for node in nodes:
        condition = get_condition(node.status.get("conditions") or (), "Ready") or {}
        if condition.get("status") != "True":
            why = condition.get("message") or condition.get("reason") or "no condition Ready is set"
            yield error(f"Node {node.metadata.name} is not Ready: {why}", f"{kubectl} describe node {node.metadata.name}")


def kubelet_port(node: Node, failure: ApiError | None, *, kubectl: str) -> Iterator[Finding]:
    """Checks the answer to a request that the API server has proxied to the kubelet port of a node; None: it was answered."""
    if failure is None or failure.status in (401, 403, 404):
        return
    name, port = node.metadata.name, node.kubelet_port
    address = next((each["address"] for each in node.status.get("addresses") or () if each.get("type") == "InternalIP"), "no InternalIP")
    what = f"Node {name}: the hub's API server cannot use the kubelet port {address}:{port}, so logs, exec and top fail: {failure.message}"
    try_it = f"{kubectl} get --raw /api/v1/nodes/{name}/proxy/healthz"
    if any(each in failure.message for each in _CERTIFICATE):
        remedy = "let the cluster's signer issue the certificate (server.certificate: csr), or correct --kubelet-certificate-authority"
        yield error(f"{what}; {remedy}", f"{kubectl} get csr --field-selector spec.signerName={SERVING}", try_it)
        return
    remedy = "open this port from the API server to the process of the binding, or set server.node_address to an address that it reaches"
    yield error(f"{what}; {remedy}", try_it)


def certificates(requests: Iterable[Unknown], nodes: Iterable[Node], *, kubectl: str) -> Iterator[Finding]:
    """Checks the latest requests for certificates of the nodes' addresses: they are not approved, or were denied."""
    addresses = {each["address"] for node in nodes for each in node.status.get("addresses") or ()}
    latest: dict[str, Unknown] = {}
    for request in sorted(requests, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
        spec = request.body.get("spec") or {}
        if spec.get("signerName") == SERVING:
            latest |= dict.fromkeys(addresses & set(_requested(spec.get("request") or "")), request)
    for request in {each.metadata.name: each for each in latest.values()}.values():
        yield from _undecided(request, kubectl=kubectl)


def _undecided(request: Unknown, *, kubectl: str) -> Iterator[Finding]:
    name, status = request.metadata.name, request.body.get("status") or {}
    if status.get("certificate"):
        return
    what = (
        f"CertificateSigningRequest {name} of the kubelet port, requested by {request.body['spec'].get('username') or 'an unknown user'},"
    )
    decided: dict[str, JsonView] = {each["type"]: each for each in status.get("conditions") or ()}
    if refused := decided.get("Denied") or decided.get("Failed"):
        why = refused.get("message") or "no reason is given"
        yield error(f"{what} was refused: {why}", f"{kubectl} describe csr {name}")
    elif "Approved" not in decided:
        yield error(f"{what} waits for approval; until then logs, exec and top fail", f"{kubectl} certificate approve {name}")


def _requested(encoded: str) -> Iterator[str]:
    """Yields the IP addresses of a certificate request; none for one that cannot be read."""
    try:
        request = x509.load_pem_x509_csr(base64.b64decode(encoded))
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return
    yield from map(str, names.get_values_for_type(x509.IPAddress))


# --- Pod networks -------------------------------------------------------------------------------------------------------------------------


def networks(hub: Iterable[Node], worker: Iterable[Node]) -> Iterator[Finding]:
    """Checks that no real node of the hub has addresses of pods that a node of the worker has too."""
    widest: dict[tuple[int, bool], tuple[Network, Node]] = {}
    listed = [(network, node, in_hub) for nodes, in_hub in ((hub, True), (worker, False)) for node in nodes for network in _networks(node)]
    # In this order a network comes after those that contain it, and two overlap only if one contains the other.
    for network, node, in_hub in sorted(listed, key=lambda each: (each[0].version, int(each[0].network_address), each[0].prefixlen)):
        other = widest.get((network.version, not in_hub))
        if other is not None and other[0].overlaps(network):
            ours, theirs = ((network, node), other) if in_hub else (other, (network, node))
            text = (
                f"spec.podCIDR {ours[0]} of Node {ours[1].metadata.name} in the hub overlaps {theirs[0]} of Node {theirs[1].metadata.name}"
            )
            yield warning(f"{text} in the worker: pods of one cluster cannot reach those of the other; give one cluster other pod networks")
            return
        before = widest.get((network.version, in_hub))
        if before is None or int(network.broadcast_address) > int(before[0].broadcast_address):
            widest[network.version, in_hub] = network, node


def _networks(node: Node) -> list[Network]:
    spec = node.spec
    listed: Sequence[str] = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else ())
    return [ipaddress.ip_network(each, strict=False) for each in listed]


def routed(pod: Pod, failure: ApiError | None, *, binding: str) -> Iterator[Finding]:
    """Checks the answer to a request that the API server has sent to the address of a pod in the worker; None: it was answered."""
    if failure is None or not any(each in failure.message for each in _NO_ROUTE):
        return
    address = pod.status.get("podIP")
    text = f"the hub's API server cannot reach pod {pod.key} at {address}: {failure.message}"
    remedy = f"Services of the hub do not reach pods of ClusterBinding {binding}; route the worker's pod network to the hub"
    yield warning(f"{text}; {remedy}", f"ip route get {address}")


# --- Pods that wait -----------------------------------------------------------------------------------------------------------------------


def daemonsets(pods: Iterable[Pod], binding: ClusterBinding, *, kubectl: str) -> Iterator[Finding]:
    """Checks for pods of DaemonSets that virtual nodes never start, which stop the next rollout on real nodes."""
    stalled: dict[Key, list[Pod]] = defaultdict(list)
    for pod in pods:
        owner = next((each.name for each in pod.metadata.owner_references if each.kind == "DaemonSet"), "")
        starts = leaves_home(pod.metadata) and daemonset_allowed(pod.metadata, binding)
        if owner and not starts and pod.phase in ("", "Pending") and not pod.terminating:
            stalled[Key(pod.metadata.namespace, owner)].append(pod)
    for key, waiting in stalled.items():
        why = why_pending(waiting[0].metadata, binding)
        text = f"DaemonSet {key}: {len(waiting)} pods stay Pending on virtual nodes, so its next rollout stops on real nodes too: {why}"
        yield error(text, f"{kubectl} -n {key.namespace} patch daemonset {key.name} --type=merge -p '{_OFF}'")


# --- Refused pods -------------------------------------------------------------------------------------------------------------------------


@frozen
class Refusal:
    """A kind of refusal: text of the worker's message, and the remedy with its command."""

    text: str
    remedy: str
    command: str


_REFUSALS: Final = (
    Refusal("exceeded quota", "raise the ResourceQuota of the mount namespace, or lower the requests", "-n {mount} describe resourcequota"),
    Refusal("violates PodSecurity", "change the pod, or the level of the mount namespace", "get namespace {mount} --show-labels"),
    Refusal("forbidden", "let the admission of the worker accept the pod, or change the pod", "-n {mount} get events"),
    Refusal("denied the request", "let the webhook of the worker accept the pod, or change the pod", "get validatingwebhookconfigurations"),
)
_OTHER: Final = Refusal("", "see the events of the pod", "-n {mount} get pods")


def refused(events: Iterable[JsonView], pods: Mapping[str, Pod], binding: ClusterBinding, *, commands: Commands) -> Iterator[Finding]:
    """Checks the warnings about pods that wait on virtual nodes; `pods` are those that wait, by UID."""
    latest: dict[str, JsonView] = {}
    for event in events:
        uid = (event.get("involvedObject") or {}).get("uid", "")
        if uid in pods and event.get("type") == "Warning" and str(event.get("reason", "")).startswith("Failed"):
            latest[uid] = max(latest.get(uid, event), event, key=_time)
    causes: dict[str, list[str]] = defaultdict(list)
    for uid, event in latest.items():
        causes[str(event.get("message") or event.get("reason"))].append(uid)
    for message, uids in causes.items():
        kind = next((each for each in _REFUSALS if each.text in message), _OTHER)
        first = pods[uids[0]].key
        text = f"pods {few(str(pods[uid].key) for uid in uids)} wait: {message}; {kind.remedy}"
        worker = f"{commands.worker} {kind.command.format(mount=binding.identity.namespace_of(first.namespace))}"
        yield error(text, worker, f"kubeocean explain pod {first}")


def _time(event: JsonView) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or (event.get("metadata") or {}).get("creationTimestamp") or "")


def images(pods: Iterable[Pod]) -> Iterator[Finding]:
    """Checks for containers that wait for a reason that does not pass by itself, such as ImagePullBackOff."""
    causes: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        for reason in waiting(pod.status):
            causes[reason].append(pod)
    for reason, found in causes.items():
        names = few(str(pod.key) for pod in found)
        yield warning(f"pods {names} do not start: {reason}", f"kubeocean explain pod {found[0].key}")


def waiting(status: JsonView) -> Iterator[str]:
    """Yields why containers wait: `ErrImagePull: image a:1 not found`."""
    for each, found in waiting_containers(status):
        if found["reason"] in _LASTING:
            message = f": {found['message']}" if found.get("message") else ""
            yield f"image {each.get('image') or 'unknown'}: {found['reason']}{message}"
