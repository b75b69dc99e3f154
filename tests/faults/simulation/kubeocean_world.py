"""Kubeocean: a hub and a worker, the process of one ClusterBinding between them, and the people who use both.

Invariant: the process is what `kubeocean run` builds; only its network is simulated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from kubeocean.cli import runtime_defaults
from kubeocean.model import crds, keys
from kubeocean.networkpolicies.desired import WITHIN
from kubeocean.provider import KubeoceanProvider
from kubeocean.rbac.tenants import NAME, isolation
from kubeocean.settings import KubeoceanSettings
from tests.faults.simulation.actors import NAMESPACE, ControlPlane, is_closed, path_of, pod_body
from tests.faults.simulation.churn import churn
from tests.faults.simulation.kubelet import EXIT_CODE, RUN_FOR, STOP_DELAY, Kubelets, node_body
from tests.faults.simulation.network import address_of, kubeconfig_of
from tests.faults.simulation.schedule import Kind, Schedule
from tests.faults.simulation.world import LIST_INTERVAL, World
from vkubelet import settings
from vkubelet.api.codec import decode_yaml
from vkubelet.api.names import SERVICE_NAME
from vkubelet.api.objects import Resource
from vkubelet.client.connection import Connection
from vkubelet.process import Runs
from vkubelet.runtime import Runtime
from vkubelet.settings import Settings

Body = dict[str, Any]
BINDING, MOUNT = "demo", "leased"
VIRTUAL_NODES = frozenset({f"vnode-{BINDING}-one", f"vnode-{BINDING}-two"})
_VOLUME: Body = {"name": "settings", "configMap": {"name": "settings"}}
THEIRS = "of-the-owner"
"""A Service of the worker's owner among the mirrors."""
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
_SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
_POLICIES = "/apis/networking.k8s.io/v1/namespaces"
_BINDINGS, POLICIES_PATH = (f"/apis/{crds.GROUP}/{crds.VERSION}/{kind}" for kind in ("clusterbindings", "resourceleasingpolicies"))
_LOCAL: Body = {
    "server": {"node_address": "10.1.1.1", "main_port": False, "certificate": "self-signed"},
    "health": {"health_address": "", "metrics_address": ""},
    "pods": {"list_interval": LIST_INTERVAL},
}


@lru_cache
def definition(resource: Resource[Any]) -> Body:
    """The CustomResourceDefinition of a resource."""
    found: Body = decode_yaml(crds.definition(resource))
    return found


@lru_cache
def settings_of(world: type[KubeoceanWorld], *, leads: bool) -> Settings:
    """The settings of a process."""
    own = settings.merged(settings.merged(_LOCAL, world.local), {"leader": {"enabled": True}} if leads else {})
    return settings.convert(settings.merged(runtime_defaults(BINDING), own), Settings)


class KubeoceanWorld(World):
    """Scenarios of one binding."""

    name = "kubeocean"
    scenarios: ClassVar = {
        "pods": "pods",
        "churn": "churn",
        "window": "window",
        "bindings": "bindings",
        "unbind": "unbind",
        "leaders": "leaders",
        "return": "comes_back",
        "failover": "fails_over",
        "services": "services",
        "tenants": "pods",
        "tenants-unbind": "unbind",
        "tenants-services": "prepared_late",
    }
    replicas: ClassVar = {"leaders": 2}
    local: ClassVar[Body] = {}
    """Further settings of the process."""

    def build(self) -> None:
        self.hub, self.worker = ControlPlane(self, "hub"), ControlPlane(self, "worker")
        self.kubelets = Kubelets(self, self.worker)
        self.hub.publish_client_ca()
        self.hub.model.define(self.defined())
        self.worker.model.define(definition(crds.POLICIES))
        for plane, namespace in ((self.hub, keys.NAMESPACE), (self.hub, keys.FAKE_NAMESPACE), (self.worker, MOUNT)):
            plane.model.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}, user="admin")
        for name in ("one", "two"):
            self.worker.model.call("POST", "/api/v1/nodes", node_body(name), user="kubelet")
            self.worker.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, user="node-controller")
        secret = {"metadata": {"name": "worker"}, "data": {"kubeconfig": kubeconfig_of("worker")}}
        self.hub.model.call("POST", f"/api/v1/namespaces/{keys.NAMESPACE}/secrets", secret, user="admin")
        self.space = MOUNT
        self.policy("all", {})
        if self.scenario.startswith("tenants"):
            self.space = f"{MOUNT}-{NAMESPACE}"
            if self.scenario not in ("tenants-services", "tenants-created"):
                self.prepare()
            self.bind(namespaceMapping=keys.PER_NAMESPACE)
        else:
            self.bind()
        self.history.virtual_uid_key = keys.VIRTUAL_POD_UID
        if self.scenarios[self.scenario] == "unbind":
            self.history.may_be_unready |= VIRTUAL_NODES
        self.hub.run()
        self.every(0.5, self.worker.name, self.worker.schedule)
        self.kubelets.run()
        for number in range(self.replicas.get(self.scenario, 1)):
            self.start(f"kubeocean{number or ''}")

    def defined(self) -> Body:
        """Returns the CustomResourceDefinition of ClusterBindings."""
        return definition(crds.CLUSTERBINDINGS)

    def make(self, role: str) -> Runs:
        own = self.own_settings()
        chosen = settings_of(type(self), leads=self.scenario in self.replicas)
        return Runtime(KubeoceanProvider(own), chosen, connection=Connection(address_of("hub")), clock=self.clock)

    def own_settings(self) -> KubeoceanSettings:
        """Returns the settings of the provider."""
        return KubeoceanSettings(binding=BINDING, time_zone="UTC", unused_copy_after=20.0, pod_network_probe_interval=0.0)

    def is_deployed(self, role: str) -> bool:
        """Whether the binding exists: with it, the manager removes the Deployment of its process."""
        return self.hub.model.get(crds.GROUP, crds.VERSION, "clusterbindings", "", BINDING) is not None

    # --- people ---

    def bind(self, **spec: Any) -> None:
        """Creates the ClusterBinding, or changes its spec."""
        body = {
            "clusterID": BINDING,
            "secretRef": {"name": "worker", "namespace": keys.NAMESPACE},
            "mountNamespace": MOUNT,
            "allowInsecureWorker": True,
            "apiServerAccess": {"host": "192.0.2.1", "port": 6443},
            **spec,
        }
        self.hub.model.apply(f"{_BINDINGS}/{BINDING}", {**_head("ClusterBinding", BINDING), "spec": body}, user="admin")

    def prepare(self) -> None:
        """Creates the worker namespace of the tenant, isolated and with the consent of its owner."""
        body = {"metadata": {"name": self.space, "labels": {keys.TENANT_OF: MOUNT}}}
        self.worker.model.call("POST", "/api/v1/namespaces", body, user="owner")
        self.worker.model.call("POST", f"{_POLICIES}/{self.space}/networkpolicies", isolation(self.space), user="owner")

    def policy(self, name: str, spec: Body) -> None:
        """Creates a ResourceLeasingPolicy in the worker, or changes it."""
        body = {**_head("ResourceLeasingPolicy", name), "spec": {"cluster": BINDING, **spec}}
        self.worker.model.apply(f"{POLICIES_PATH}/{name}", body, user="owner")

    def configure(self, value: str) -> None:
        """Creates the ConfigMap that pods of StatefulSets use, or changes it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/settings"
        self.hub.model.apply(path, {"metadata": {"name": "settings"}, "data": {"value": value}}, user="person")

    def configured(self, value: str) -> str | None:
        """Returns what is wrong with the copy of that ConfigMap."""
        copies = [
            body["data"].get("value")
            for body in self.worker.model.objects("", "v1", "configmaps", self.space)
            if (body["metadata"].get("annotations") or {}).get(keys.VIRTUAL_NAME) == "settings"
        ]
        return None if copies == [value] else f"copies have {copies}, not {value}"

    def serve(self, name: str, port: int, *addresses: str) -> None:
        """Creates a Service with one EndpointSlice, or changes both."""
        spec = {"type": "ClusterIP", "clusterIP": "None", "ports": [{"name": "http", "port": port, "protocol": "TCP"}]}
        self.hub.model.apply(f"{_SERVICES}/{name}", {"metadata": {"name": name}, "spec": spec}, user="person")
        body = {
            "metadata": {"name": name, "labels": {SERVICE_NAME: name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [each], "nodeName": "somewhere"} for each in addresses],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        }
        self.hub.model.apply(f"{_SLICES}/{name}", body, user="endpoint-controller")

    def mirrored(self, **wanted: tuple[int, list[str]]) -> str | None:
        """Returns how the mirrors differ from Services with one port and these addresses."""
        ports = {
            body["metadata"]["name"]: body["spec"]["ports"][0]["port"]
            for body in self.worker.model.objects("", "v1", "services", self.space)
        }
        addresses: dict[str, list[str]] = {}
        for body in self.worker.model.objects("discovery.k8s.io", "v1", "endpointslices", self.space):
            found = [address for each in body.get("endpoints") or () for address in each["addresses"]]
            addresses.setdefault(body["metadata"]["labels"][SERVICE_NAME], []).extend(found)
        seen = {name: (port, addresses.pop(name, [])) for name, port in ports.items()}
        suffix = f"--{NAMESPACE}" if self.space == MOUNT else ""
        expected = {f"{name}{suffix}": each for name, each in wanted.items()} | {THEIRS: (7, [])}
        if addresses:
            return f"EndpointSlices of {sorted(addresses)} have no Service"
        return None if seen == expected else f"mirrors are {seen}, not {expected}"

    def decree(self, name: str, app: str, *peers: str) -> None:
        """Creates a NetworkPolicy, or changes it: pods of an app accept connections of the pods of these apps alone."""
        allowed = [{"from": [{"podSelector": {"matchLabels": {"app": each}}} for each in peers]}] if peers else []
        spec = {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"], "ingress": allowed}
        path = f"{_POLICIES}/{NAMESPACE}/networkpolicies/{name}"
        self.hub.model.apply(path, {"metadata": {"name": name}, "spec": spec}, user="person")

    def decreed(self, **wanted: tuple[str, list[str]]) -> str | None:
        """Returns how the policies of the tenant's worker namespace differ from these, by name, and from what they leave open."""
        if self.space == MOUNT:
            return None
        found: dict[str, Any] = {}
        for body in self.worker.model.objects("networking.k8s.io", "v1", "networkpolicies", self.space):
            meta, spec = body["metadata"], body["spec"]
            name = (meta.get("annotations") or {}).get(keys.VIRTUAL_NAME) or meta["name"]
            peers = [peer["podSelector"].get("matchLabels", {}).get("app") for rule in spec.get("ingress") or () for peer in rule["from"]]
            selector = spec["podSelector"]
            closed = [value for each in selector.get("matchExpressions") or () for value in each["values"]]
            found[name] = (selector.get("matchLabels", {}).get("app") or sorted(closed), peers)
        open_to_all = sorted(app for app, _ in wanted.values())
        expected = {**wanted, NAME: ([], []), WITHIN: (open_to_all, [None])}
        return None if found == expected else f"NetworkPolicies are {found}, not {expected}"

    def vnodes(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.hub.nodes()]

    # --- scenarios ---

    async def pods(self) -> None:
        """Pods of every kind of life: kept, completed, failed, changed, deleted, forced, created again under their name."""
        hub = self.hub
        self.history.finite |= {"job", "bad"}
        await self.pause(5.0)
        self.configure("one")
        self.decree("front", "web", "client")
        hub.stateful("web", replicas=2, annotations={STOP_DELAY: "2"}, volumes=[_VOLUME])
        hub.create_pod(pod_body("job", restart="Never", annotations={RUN_FOR: "4"}))
        hub.create_pod(pod_body("bad", restart="Never", annotations={RUN_FOR: "3", EXIT_CODE: "3"}))
        hub.create_pod(pod_body("long", annotations={STOP_DELAY: "6"}))
        await self.pause(5.0)
        hub.mark_node(f"vnode-{BINDING}-one")
        await self.pause(10.0)
        hub.delete_pod("web-0")
        hub.delete_pod("long", grace=10)
        hub.label_pod("web-1", "step", "two")
        self.configure("two")
        self.decree("front", "web", "client", "other")
        await self.pause(12.0)
        hub.create_pod(pod_body("long", annotations={STOP_DELAY: "6"}))
        hub.delete_pod("job")
        await hub.created("long")
        await self.pause(8.0)
        hub.delete_pod("long", grace=0)
        await self.pause(1.0)
        hub.create_pod(pod_body("long"))
        await hub.created("long")
        self.wish("StatefulSet web", lambda: hub.unready(["web-0", "web-1", "long"]))
        self.wish("copy of a ConfigMap", lambda: self.configured("two"))
        self.wish("NetworkPolicies", lambda: self.decreed(front=("web", ["client", "other"])))
        self.wish("pod bad", lambda: hub.unphased("bad", "Failed"))
        self.wish("pod job", lambda: hub.existing(["job"]))
        self._always()

    async def churn(self) -> None:
        """Pods are created, changed, deleted and created again faster than the process can act."""
        hub, names = self.hub, ("one", "two", "three")
        await self.pause(5.0)
        await churn(
            hub,
            names,
            actions=30,
            body=lambda name: pod_body(name, annotations={STOP_DELAY: "0.5"}),
            change=lambda name, value: hub.label_pod(name, "step", value),
        )
        self.wish("pods", lambda: hub.unready(names))
        self._always()

    async def window(self) -> None:
        """A policy whose window closes: pods leave, the nodes close; then it opens again."""
        hub = self.hub
        self.policy("all", {"timeWindows": [{"start": "08:00", "end": "08:01"}], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 20})
        self.history.may_end |= {"web-0", "web-1"}
        await self.pause(5.0)
        hub.stateful("web", replicas=2)
        await self.pause(135.0)
        self.expect("closed window", self._is_open)
        await self.pause(15.0)
        self.policy("all", {"timeWindows": [{"start": "00:00", "end": "20:00"}], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 20})
        self.wish("StatefulSet web", lambda: hub.unready(["web-0", "web-1"]))
        self._always()

    async def bindings(self) -> None:
        """The binding and its Secret change while pods run, also to something invalid and back."""
        hub = self.hub
        await self.pause(5.0)
        hub.stateful("web", replicas=2)
        await self.pause(8.0)
        self.bind(secretRef={"name": "missing", "namespace": keys.NAMESPACE})
        await self.pause(5.0)
        self.bind(podPriorityClassName="")
        rotated = kubeconfig_of("worker", token="other")
        path = f"/api/v1/namespaces/{keys.NAMESPACE}/secrets/worker"
        self.hub.merge(path, {"data": {"kubeconfig": rotated}}, user="admin")
        await self.pause(8.0)
        hub.delete_pod("web-0")
        self.worker.merge("/api/v1/nodes/one", {"spec": {"unschedulable": True}}, user="owner")
        await self.pause(8.0)
        self.worker.merge("/api/v1/nodes/one", {"spec": {"unschedulable": None}}, user="owner")
        hub.attempt("person", "DELETE", f"/api/v1/nodes/vnode-{BINDING}-two")
        self.wish("StatefulSet web", lambda: hub.unready(["web-0", "web-1"]))
        self._always()

    async def unbind(self) -> None:
        """The binding is deleted: pods end, nodes go, nothing of it is left in the worker."""
        hub = self.hub
        await self.pause(5.0)
        self.configure("one")
        self.decree("front", "web")
        hub.stateful("web", replicas=2, volumes=[_VOLUME])
        await self.pause(10.0)
        hub.stateful("web", replicas=0)
        self.history.may_end |= {"web-0", "web-1"}
        hub.attempt("admin", "DELETE", f"{_BINDINGS}/{BINDING}")
        self.wish("binding", lambda: "still exists" if self.is_deployed("kubeocean") else None)
        self.wish("virtual nodes", lambda: f"still exist: {self.vnodes()}" if self.vnodes() else None)
        self.wish("worker", lambda: self._marked(self.worker))
        self.wish("originals", lambda: self._marked(self.hub))

    async def leaders(self) -> None:
        """Two replicas; pods come and go while one takes over from the other."""
        await self.pods()

    async def comes_back(self) -> None:
        """Pods finish and are deleted on either side; with faults, while the worker is cut off."""
        hub = self.hub
        self.history.finite |= {"job"}
        self.history.may_end |= {"victim"}
        await self.pause(5.0)
        hub.stateful("web", replicas=2)
        hub.create_pod(pod_body("job", restart="Never", annotations={RUN_FOR: "40"}))
        hub.create_pod(pod_body("victim"))
        await self.pause(25.0)
        victims = [pod for pod in self.worker.pods(self.space) if pod["metadata"]["annotations"].get(keys.VIRTUAL_POD_NAME) == "victim"]
        # A process that was killed before its first status leaves nothing in the hub by which the next one knows that the pod ran.
        started = "startTime" in (hub.pod("victim") or {}).get("status", {})
        for pod in victims:
            self.worker.attempt("owner", "DELETE", path_of(pod), {})
        hub.delete_pod("web-0")
        await self.pause(30.0)
        self.wish("StatefulSet web", lambda: hub.unready(["web-0", "web-1"]))
        self.wish("pod job", lambda: hub.unphased("job", "Succeeded"))
        self.wish("pod victim", lambda: hub.unphased("victim", "Failed") if victims and started else None)
        self._always()

    async def fails_over(self) -> None:
        """The binding gives up the pods of a worker that is proven silent for a minute, and not earlier."""
        hub = self.hub
        self.bind(onUnreachable={"mode": "FailOver", "afterSeconds": 60})
        await self.pause(5.0)
        hub.stateful("web", replicas=2)
        hub.create_pod(pod_body("bare"))
        await self.pause(60.0)
        if self.branch.common(_silences_worker):
            self.history.may_end |= {"web-0", "web-1", "bare"}
            self.history.may_be_unready |= {f"vnode-{BINDING}-one", f"vnode-{BINDING}-two"}
        else:
            self.wish("bare pod", lambda: hub.unready(["bare"]))
        self.wish("StatefulSet web", lambda: hub.unready(["web-0", "web-1"]))
        self._always()

    async def services(self) -> None:
        """Services of a leased namespace come, change, get other endpoints, and go, beside one of the worker's owner."""
        hub = self.hub
        theirs = {"metadata": {"name": THEIRS}, "spec": {"ports": [{"port": 7, "protocol": "TCP"}]}}
        self.worker.model.call("POST", f"/api/v1/namespaces/{self.space}/services", theirs, user="owner")
        await self.pause(5.0)
        self.serve("web", 80, "10.8.0.1")
        hub.stateful("web", replicas=1)
        await self.pause(8.0)
        self.serve("db", 5432, "10.8.0.2", "10.8.0.3")
        self.serve("gone", 1, "10.8.0.9")
        self.decree("front", "web", "client")
        self.decree("gone", "db")
        await self.pause(4.0)
        self.serve("web", 80, "10.8.0.1", "10.8.0.4")
        self.serve("db", 5433, "10.8.0.3")
        self.decree("front", "web")
        await self.pause(4.0)
        hub.attempt("person", "DELETE", f"{_POLICIES}/{NAMESPACE}/networkpolicies/gone")
        hub.attempt("person", "DELETE", f"{_SERVICES}/gone")
        hub.attempt("endpoint-controller", "DELETE", f"{_SLICES}/gone")
        self.wish("StatefulSet web", lambda: hub.unready(["web-0"]))
        self.wish("NetworkPolicies", lambda: self.decreed(front=("web", [])))
        self.wish("mirrors", lambda: self.mirrored(web=(80, ["10.8.0.1", "10.8.0.4"]), db=(5433, ["10.8.0.3"])))
        self._always()

    async def prepared_late(self) -> None:
        """As `services`, in the namespace of a tenant that the worker's owner prepares while a pod and a Service wait for it."""
        self.serve("web", 80, "10.8.0.1")
        self.hub.stateful("web", replicas=1)
        await self.pause(12.0)
        self.prepare()
        await self.services()

    def _always(self) -> None:
        self.wish("nodes", lambda: self.hub.unready_nodes(2))
        self.wish("physical pods", self._matched)

    def _is_open(self) -> str | None:
        """Returns which pods or nodes are still in use after the window has closed."""
        pods = [pod["metadata"]["name"] for pod in self.hub.pods() if pod["spec"].get("nodeName")]
        nodes = [node["metadata"]["name"] for node in self.hub.nodes() if not is_closed(node)]
        return f"pods {pods} and nodes {nodes} are still in use" if pods or nodes else None

    def _matched(self) -> str | None:
        """Returns where the pods of the two clusters differ."""
        wanted = {pod["metadata"]["uid"]: pod for pod in self.hub.pods() if pod["spec"].get("nodeName") in self.vnodes()}
        found = {pod["metadata"]["annotations"].get(keys.VIRTUAL_POD_UID): pod for pod in self.worker.pods(self.space)}
        surplus = [uid for uid in found if uid not in wanted]
        if surplus:
            return f"physical pods of {surplus} have no virtual pod"
        unlike = [uid for uid, pod in found.items() if _mirrored(pod) != _mirrored(wanted[uid])]
        return f"physical pods of {unlike} differ from their virtual pods" if unlike else None

    def _marked(self, plane: ControlPlane) -> str | None:
        """Returns what of the binding is left in a cluster."""
        left = []
        for kind, key, body in plane.model.everything():
            meta = body["metadata"]
            marks = [*(meta.get("labels") or {}), *(meta.get("annotations") or {}), *(meta.get("finalizers") or ())]
            ours = [mark for mark in marks if "kubeocean.io" in mark and mark != keys.TENANT_OF]
            if kind.plural not in ("events", "priorityclasses") and ours:
                left.append(f"{kind.plural} {'/'.join(key)}")
        return f"left: {', '.join(left)}" if left else None


def _silences_worker(schedule: Schedule) -> bool:
    """Whether no connection to the worker is answered for a minute."""
    silent = [fault for fault in schedule.faults if fault.kind in (Kind.CUT, Kind.CLOSED) and fault.side == "worker"]
    return sum(fault.value for fault in silent) >= 60.0


def _mirrored(pod: Body) -> tuple[Any, ...]:
    """Returns what is equal in a virtual pod and its physical one."""
    return pod["metadata"].get("labels", {}).get("step"), pod["status"].get("phase"), pod["status"].get("podIP")


def _head(kind: str, name: str) -> Body:
    return {"apiVersion": f"{crds.GROUP}/{crds.VERSION}", "kind": kind, "metadata": {"name": name}}
