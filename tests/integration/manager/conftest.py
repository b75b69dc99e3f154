"""A computing cluster with a running manager, shared by all tests of this folder; each test has bindings of its own.

Invariant: the manager acts as a user with exactly the rights of `permissions.manager_rules`; what a test makes ends with the test.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import define, field
from kubernetes import client as k8s

from kubeocean.rbac import permissions
from tests.support.bound import CRDS, FAKE, SYSTEM, Body
from tests.support.program import PATIENCE, Program, eventually
from tests.support.witness import api_client
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import run_apart, running

GROUP, VERSION, PLURAL = "cloud.tencent.com", "v1beta1", "clusterbindings"
USER = "the-manager"
IMAGE = "localhost/kubeocean:dev"
RECHECK = 2.0
RETRY = 4.0
MERGE = "application/merge-patch+json"

_numbers = itertools.count(1)


@define
class Computing:
    """The computing cluster by the official client, and the manager that runs there."""

    hub: ControlPlane
    worker: ControlPlane
    directory: Path
    metrics_port: int
    program: Program = field(init=False)
    api: k8s.ApiClient = field(init=False)
    worker_api: k8s.ApiClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.api, self.worker_api = api_client(self.hub.kubeconfig), api_client(self.worker.kubeconfig)
        self.program = self.manager("first", metrics_port=self.metrics_port)

    # --- The manager ---------------------------------------------------------------------------------------------------------------

    def settings(self, **manager: Any) -> Body:
        own = {"image": IMAGE, "replicas": 1, "recheck_interval": RECHECK, "retry_limit": RETRY, **manager}
        return {"manager": own, "health": {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}}

    def manager(
        self,
        name: str,
        *,
        metrics_port: int = 0,
        kubeconfig: Path | None = None,
        leader: Body | None = None,
        dashboard: Body | None = None,
        **settings: Any,
    ) -> Program:
        """`kubeocean manager`, not started; `settings` are those of the section `manager`."""
        body = {**self.settings(**settings), **({"leader": leader} if leader is not None else {})}
        body |= {"dashboard": dashboard} if dashboard is not None else {}
        body["health"]["metrics_address"] = f"127.0.0.1:{metrics_port}"
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(body))
        way = kubeconfig or self.hub.client_config(USER)
        arguments = ("manager", "--settings", str(path), "--kubeconfig", str(way), "--log-level", "DEBUG")
        return Program("kubeocean", *arguments, log=self.directory / f"{name}.log")

    @contextmanager
    def without_manager(self) -> Iterator[None]:
        """Inside the block none runs; afterwards the usual one does."""
        self.program.terminate()
        try:
            yield
        finally:
            self.program.start()

    @contextmanager
    def with_settings(self, **settings: Any) -> Iterator[Program]:
        """Inside the block a manager with other settings runs instead of the usual one."""
        with self.without_manager(), self.manager(f"other-{next(_numbers)}", metrics_port=self.metrics_port, **settings) as other:
            yield other

    # --- Objects of the hub --------------------------------------------------------------------------------------------------------

    @property
    def core(self) -> k8s.CoreV1Api:
        return k8s.CoreV1Api(self.api)

    @property
    def apps(self) -> k8s.AppsV1Api:
        return k8s.AppsV1Api(self.api)

    @property
    def custom(self) -> k8s.CustomObjectsApi:
        return k8s.CustomObjectsApi(self.api)

    def raw(self, path: str) -> Body | None:
        """GET of any path, None where there is nothing."""
        return self.send("GET", path)

    def send(self, verb: str, path: str, body: Any = None, content_type: str = "application/json") -> Body | None:
        """Any call by the connections of the official client; None for 404. Raises AssertionError with what the server said."""
        pool, host = self.api.rest_client.pool_manager, self.api.configuration.host
        data = None if body is None else json.dumps(body)
        answer = pool.request(verb, host + path, body=data, headers={"Content-Type": content_type})
        if answer.status == 404:
            return None
        assert answer.status < 300, f"{verb} {path}: {answer.status} {answer.data.decode()}"
        found: Body = json.loads(answer.data)
        return found

    def deployment(self, name: str) -> Body | None:
        return self.raw(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{name}")

    def events(self, name: str) -> list[str]:
        """Reasons of the Events about a binding, as they came."""
        return [event.reason for event in self._events(name)]

    def messages(self, name: str, reason: str) -> list[str]:
        return [event.message for event in self._events(name) if event.reason == reason]

    def _events(self, name: str) -> list[Any]:
        selector = f"involvedObject.kind=ClusterBinding,involvedObject.name={name}"
        found = self.core.list_namespaced_event("default", field_selector=selector).items
        return sorted(found, key=lambda event: event.first_timestamp)

    def scrape(self) -> dict[str, float]:
        """The series of the manager; none while it starts."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
                lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
        except urllib.error.URLError:
            return {}
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@define
class Binding:
    """One ClusterBinding; its clusterID is its name unless told otherwise."""

    computing: Computing
    name: str
    spec: Body

    @property
    def cluster_id(self) -> str:
        return str(self.spec["clusterID"])

    @property
    def secret(self) -> str:
        return f"{self.name}-kubeconfig"

    @property
    def deployment_name(self) -> str:
        return f"kubeocean-syncer-{self.cluster_id}"

    def create(self, **metadata: Any) -> Body:
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ClusterBinding", "metadata": {"name": self.name, **metadata}}
        made: Body = self.computing.custom.create_cluster_custom_object(GROUP, VERSION, PLURAL, {**head, "spec": self.spec})
        return made

    def make_secret(self, kubeconfig: str | None = None, *, key: str = "kubeconfig") -> None:
        text = kubeconfig if kubeconfig is not None else self.computing.worker.kubeconfig.read_text()
        body = {"metadata": {"name": self.secret}, "stringData": {key: text}}
        self.computing.core.create_namespaced_secret(SYSTEM, body)

    def make_mount(self) -> None:
        body = {"metadata": {"name": self.spec["mountNamespace"]}}
        k8s.CoreV1Api(self.computing.worker_api).create_namespace(body)

    def body(self) -> Body | None:
        return self.computing.raw(f"/apis/{GROUP}/{VERSION}/{PLURAL}/{self.name}")

    def patch(self, change: Mapping[str, Any]) -> Body | None:
        return self.computing.send("PATCH", f"/apis/{GROUP}/{VERSION}/{PLURAL}/{self.name}", change, MERGE)

    def delete(self) -> None:
        self.computing.send("DELETE", f"/apis/{GROUP}/{VERSION}/{PLURAL}/{self.name}")

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and reason by type."""
        listed = ((self.body() or {}).get("status") or {}).get("conditions") or ()
        return {each["type"]: (each["status"], each["reason"]) for each in listed}

    def message(self, kind: str) -> str:
        listed = ((self.body() or {}).get("status") or {}).get("conditions") or ()
        return next((str(each["message"]) for each in listed if each["type"] == kind), "")

    def phase(self) -> str:
        return str(((self.body() or {}).get("status") or {}).get("phase", ""))

    def deployment(self) -> Body | None:
        return self.computing.deployment(self.deployment_name)

    async def deployed(self) -> Body:
        found: Body = await eventually(self.deployment, f"the Deployment of {self.name}\n{self.body()}")
        return found

    async def gone(self) -> None:
        await eventually(lambda: self.body() is None, f"binding {self.name} is gone: {self.body()}")

    # --- Its process, which no kubelet starts here ------------------------------------------------------------------------------------

    def process(self, name: str = "process", **settings: Any) -> Program:
        """`kubeocean run`, not started, with the settings and as the ServiceAccount that the manager made; `settings` are laid over."""
        computing = self.computing
        path = f"/api/v1/namespaces/{SYSTEM}/configmaps/{self.deployment_name}"
        told = decode_yaml((computing.raw(path) or {})["data"]["settings.yaml"])
        told["health"] = {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}
        told["server"] |= {"node_address": computing.hub.host_address, "main_port": 0, "certificate_directory": ""}
        file = computing.directory / f"{self.name}-{name}.yaml"
        file.write_text(yaml.safe_dump({**told, "log": {"level": "DEBUG"}, **settings}))
        arguments = ("run", "--binding", self.name, "--settings", str(file), "--kubeconfig", str(self._account()))
        return Program("kubeocean", *arguments, log=computing.directory / f"{self.name}-{name}.log")

    def _account(self) -> Path:
        """A kubeconfig of the ServiceAccount."""
        review = self.computing.core.create_namespaced_service_account_token(self.deployment_name, SYSTEM, {"spec": {}})
        body = decode_yaml(self.computing.hub.kubeconfig.read_text())
        body["users"][0]["user"] = {"token": review.status.token}
        path = self.computing.directory / f"{self.name}.kubeconfig"
        path.write_text(yaml.safe_dump(body))
        return path

    # --- Its pods, which no kubelet runs here ----------------------------------------------------------------------------------------

    def pods(self) -> list[str]:
        selector = f"k8s-app={self.deployment_name}"
        listed = self.computing.core.list_namespaced_pod(SYSTEM, label_selector=selector).items
        return [pod.metadata.name for pod in listed if pod.metadata.deletion_timestamp is None]

    async def tell_of_pods(self, *, running: bool, waiting: str = "") -> None:
        """What a kubelet would say of those that are there now."""
        names = await eventually(self.pods, f"pods of {self.deployment_name}: {self.deployment()}")
        state: Body = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if running else {"waiting": {"reason": waiting}}
        container = {"name": "syncer", "ready": running, "restartCount": 0, "image": IMAGE, "imageID": "", "state": state}
        conditions = [{"type": "Ready", "status": "True" if running else "False"}]
        for name in names:
            status = {"phase": "Running" if running else "Pending", "conditions": conditions, "containerStatuses": [container]}
            self.computing.core.patch_namespaced_pod_status(name, SYSTEM, {"status": status})

    async def available(self) -> None:
        """Its process runs, as far as this cluster knows. A pod may be replaced just as it is told of."""

        async def told() -> bool:
            with contextlib.suppress(k8s.ApiException):
                await self.tell_of_pods(running=True)
            return bool(((self.deployment() or {}).get("status") or {}).get("availableReplicas"))

        await eventually(told, f"{self.name} available", every=0.3)


MakeBinding = Callable[..., Binding]


@pytest.fixture(scope="session")
def computing(
    cluster_site: Site, worker: ControlPlane, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Computing]:
    """A cluster of its own, because a manager takes every binding that it sees."""
    with running(ControlPlane("computing", cluster_site, options=Options(scheduler=False)), request) as hub:
        run_apart(_install(hub))
        run_apart(worker.kubectl("apply", "-f", str(CRDS / "resourceleasingpolicies.yaml")))
        made = Computing(hub, worker, tmp_path_factory.mktemp("manager"), cluster_site.free_port())
        with made.program:
            yield made
        made.api.close()
        made.worker_api.close()


async def _install(hub: ControlPlane) -> None:
    await hub.kubectl("apply", "-f", str(CRDS / "clusterbindings.yaml"))
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (SYSTEM, FAKE)]
    # Pods of ours run where this is asked of all.
    namespaces[0]["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    rights = [_for_user(body) for body in permissions.manager_objects() if body["kind"] != "ServiceAccount"]
    await hub.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*namespaces, *rights]}))
    await hub.kubectl("wait", "--for=condition=Established", "-f", str(CRDS / "clusterbindings.yaml"), f"--timeout={PATIENCE:.0f}s")


def _for_user(body: Body) -> Body:
    """The same rights for a user that a client certificate names."""
    if "subjects" in body:
        body = {**body, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]}
    return body


@pytest.fixture
def bind(computing: Computing) -> Iterator[MakeBinding]:
    """`bind()` makes mount namespace, Secret and binding; `secret=False` and the like leave something out, `spec` is laid over."""
    made: list[Binding] = []

    def make(
        name: str = "", *, secret: bool = True, mount: bool = True, create: bool = True, kubeconfig: str | None = None, **spec: Any
    ) -> Binding:
        name = name or f"m{next(_numbers)}"
        reference = {"name": f"{name}-kubeconfig", "namespace": SYSTEM}
        body = {"clusterID": name, "secretRef": reference, "mountNamespace": f"mount-{name}", **spec}
        binding = Binding(computing, name, body)
        if mount:
            binding.make_mount()
        if secret:
            binding.make_secret(kubeconfig)
        made.append(binding)
        if create:
            binding.create()
        return binding

    yield make
    for binding in made:
        _undo(binding)


def _undo(binding: Binding) -> None:
    """Out of the way of the next test, whatever state this one left it in; the manager takes away the rest."""
    with contextlib.suppress(k8s.ApiException):
        k8s.CoreV1Api(binding.computing.worker_api).delete_collection_namespaced_pod(binding.spec["mountNamespace"], grace_period_seconds=0)
    if binding.body() is None:
        return
    if not ((binding.body() or {})["metadata"].get("deletionTimestamp")):
        binding.delete()
    left = (binding.body() or {}).get("metadata", {}).get("finalizers") or []
    if left:
        binding.patch({"metadata": {"finalizers": [each for each in left if each != "kubeocean.io/clusterbinding-syncer"]}})
