"""Checks of virtual nodes: their state, their kubelet port as the API server reaches it, its certificate, and the pod networks.

Invariant: an answer of the kubelet server, also a refusal, proves that its port is reached.
"""

import base64
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final

from cryptography import x509

from kubeocean.doctor.findings import Finding, error, warning
from vkubelet.api.objects import JsonView, Node, Pod, Unknown, get_condition
from vkubelet.errors import ApiError

SERVING: Final = "kubernetes.io/kubelet-serving"
PROBED_PORT: Final = 9
"""Port `discard`: that a pod refuses a connection to it proves that the network leads to the pod."""
_CERTIFICATE: Final = ("x509", "certificate", "tls:")
_NO_ROUTE: Final = ("no route to host", "timeout", "timed out", "network is unreachable", "did not respond")


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
    """Checks requests for certificates of the nodes' addresses that are not approved, or were denied."""
    addresses = {each["address"] for node in nodes for each in node.status.get("addresses") or ()}
    for request in requests:
        spec, status = request.body.get("spec") or {}, request.body.get("status") or {}
        if spec.get("signerName") != SERVING or status.get("certificate") or not addresses & set(_requested(spec.get("request") or "")):
            continue
        name = request.metadata.name
        decided: dict[str, JsonView] = {each["type"]: each for each in status.get("conditions") or ()}
        if refused := decided.get("Denied") or decided.get("Failed"):
            why = refused.get("message") or "no reason is given"
            yield error(f"CertificateSigningRequest {name} of the kubelet port was refused: {why}", f"{kubectl} describe csr {name}")
        elif "Approved" not in decided:
            text = f"CertificateSigningRequest {name} of the kubelet port waits for approval; until then logs, exec and top fail"
            yield error(text, f"{kubectl} certificate approve {name}")


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
    both = [
        (here.metadata.name, first, there.metadata.name, second)
        for here, there in product(hub, worker)
        for first, second in product(_networks(here), _networks(there))
        if first.version == second.version and first.overlaps(second)
    ]
    for one, first, other, second in both[:1]:
        text = f"spec.podCIDR {first} of Node {one} in the hub overlaps {second} of Node {other} in the worker"
        yield warning(f"{text}: pods of one cluster cannot reach those of the other; give one cluster other pod networks")


def _networks(node: Node) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
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
