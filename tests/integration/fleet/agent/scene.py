"""Agents of a worker: the real program with the rights that `fleet join` grants it.

Invariant: each agent has a namespace of its own in the worker, and its cluster-wide role is removed with the test.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml
from attrs import define, field
from kubernetes import client as k8s

from fleet.agent.agent_settings import read_agent_settings
from fleet.agent.rights import agent_objects
from tests.support.bound import apply, delete
from tests.support.gate import Gate
from tests.support.program import Program
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

Body = dict[str, Any]


class MakeScene(Protocol):
    """Makes a worker; `settings` are of the section `agent:`."""

    async def __call__(self, *, bootstrap: str | None = None, without: Sequence[str] = (), **settings: Any) -> AgentScene: ...


@define
class AgentScene:
    """One worker with its agent, not started."""

    worker: ControlPlane
    namespace: str
    cluster: str
    directory: Path
    port: int
    settings: Body = field(factory=dict)
    """Laid over the section `agent:`."""

    @property
    def own(self) -> Body:
        return {"cluster": self.cluster, "namespace": self.namespace, **self.settings}

    async def grant(self, *, without: Sequence[str] = ()) -> None:
        """The rights of the agent, but those on the resources `without`."""
        objects = agent_objects(read_agent_settings({"agent": self.own}).agent)
        for body in objects:
            body["rules"] = [each for each in body.get("rules", ()) if not set(each["resources"]) & set(without)]
        await apply(self.worker, *map(_plain, objects))

    async def revoke(self) -> None:
        name = f"fleet-agent-{self.namespace}"
        await delete(self.worker, "clusterrole,clusterrolebinding", name, "--ignore-not-found", "--wait=false")

    @property
    def core(self) -> k8s.CoreV1Api:
        return k8s.CoreV1Api(api_client(self.worker.kubeconfig))

    def deploy(self) -> None:
        """A Deployment of the agent whose pods run nowhere."""
        pod = {"containers": [{"name": "c", "image": "none"}]}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
        spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
        apps = k8s.AppsV1Api(api_client(self.worker.kubeconfig))
        apps.create_namespaced_deployment(self.namespace, {"metadata": {"name": "fleet-agent"}, "spec": spec})

    def secret(self, name: str = "hub-kubeconfig-secret") -> dict[str, str]:
        """The entries of a Secret, as base64."""
        try:
            return dict(self.core.read_namespaced_secret(name, self.namespace).data or {})
        except k8s.ApiException as error:
            if error.status == 404:
                return {}
            raise

    def put_secret(self, entries: dict[str, str], name: str = "bootstrap-hub-kubeconfig") -> None:
        body = {"metadata": {"name": name}, "stringData": entries}
        try:
            self.core.create_namespaced_secret(self.namespace, body)
        except k8s.ApiException as error:
            if error.status != 409:
                raise
            self.core.patch_namespaced_secret(name, self.namespace, body)

    def program(self, name: str = "agent", *, port: int = 0, gate: Gate | None = None, **settings: Any) -> Program:
        """`fleet agent`, not started, as the ServiceAccount of the worker, whose API server it reaches at `port`, or by a gate."""
        review = self.core.create_namespaced_service_account_token("fleet-agent", self.namespace, {"spec": {}})
        kubeconfig = yaml.safe_load(self.worker.kubeconfig.read_text())
        kubeconfig["users"][0]["user"] = {"token": review.status.token}
        if port:
            kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        account = self.directory / f"{name}.kubeconfig"
        account.write_text(yaml.safe_dump(kubeconfig))
        if gate is not None:
            account = gate.lead(self.worker, account)
        health = {"health_address": f"127.0.0.1:{self.port}", "metrics_address": "127.0.0.1:0"}
        file = self.directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"agent": self.own, "health": health, "log": {"level": "DEBUG"}, **settings}))
        arguments = ("agent", "--settings", str(file), "--kubeconfig", str(account))
        return Program("fleet", *arguments, log=self.directory / f"{name}.log")

    def ready(self) -> str:
        """What /readyz answers; "ok" when the cluster is joined."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            return str(error)


def _plain(body: Body) -> Body:
    """Without the rules of what is no role."""
    return body if body["kind"] in ("Role", "ClusterRole") else {key: value for key, value in body.items() if key != "rules"}
