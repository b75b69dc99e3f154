"""What makes the process use each of its rights while it runs, as cheaply as that is possible."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from datetime import UTC, datetime

from attrs import define

from tests.faults.cut.node_uses import NodeUses
from tests.faults.cut.object_uses import MIRRORED_WITHIN, ClaimUses, ServiceUses
from tests.faults.cut.rounds import Steps, Use
from tests.support.bound import SYSTEM, Body, apply, delete
from tests.support.objects import Question, objects_of
from tests.support.program import eventually
from vkubelet.clock import rfc3339
from vkubelet.testing.cluster import CommandFailed

_CLAIMS, _VOLUMES = "persistentvolumeclaims", "persistentvolumes"


@define(eq=False, slots=False)
class Workload(NodeUses, ServiceUses, ClaimUses):
    """Rounds, each about one right."""

    def use(self, key: str, namespace: str) -> Steps:
        """Begins a round; `key` is side, verb and resource of the right that it is about."""
        self.number, self.answer = self.number + 1, ""
        uses = uses_of(self)
        return (uses.get(f"{key} {namespace}") or uses.get(key) or self.round_alone)()

    # --- pods ---

    async def pod_of_deployment(self) -> Steps:
        template = self.stage.body(self.guest, labels={"app": self.guest}, terminationGracePeriodSeconds=1)
        template = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": self.guest}}, "template": template}
        metadata = {"name": self.guest, "namespace": self.stage.namespace}
        yield
        await apply(self.hub, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        yield
        await delete(self.hub, "deployment", self.guest, "-n", self.stage.namespace, "--wait=false")

    async def label_from_worker(self) -> Steps:
        yield
        change = {"metadata": {"labels": {"worker.example.com/round": str(self.number)}}}
        name, mount = self.stage.physical_name("stays"), self.scene.bound.mount
        await self.stage.there.patch("pods", name, change, namespace=mount)
        yield

    async def debug(self) -> Steps:
        async for _ in self._with_guest():
            yield
            container = {"name": "debug", "image": "localhost/busybox:dev", "imagePullPolicy": "IfNotPresent"}
            change = {"spec": {"ephemeralContainers": [container]}}
            await self.stage.home.patch("pods", self.guest, change, namespace=self.stage.namespace, subresource="ephemeralcontainers")
            yield

    async def _with_guest(self) -> Steps:
        body = self.stage.body(self.guest, terminationGracePeriodSeconds=1)
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
        await self.stage.home.create("pods", body)
        await self.stage.running(self.guest)
        yield
        await self.stage.home.delete("pods", self.guest, self.stage.namespace)

    def stream(self, *arguments: str) -> Use:
        """A command of kubectl at the pod that stays; what it prints is the answer."""

        async def use() -> Steps:
            yield
            try:
                async with asyncio.timeout(10):
                    self.answer = await self.hub.kubectl("-n", self.stage.namespace, *arguments)
            except CommandFailed as error:
                self.answer = error.stderr
            except TimeoutError:
                self.answer = "no answer"
            yield

        return use

    async def forward(self) -> Steps:
        """A port of the pod is dialed when a client connects."""
        yield
        port, kubectl = self.hub.site.free_port(), (await self.hub.site.binaries.ensure(["kubectl"]))["kubectl"]
        arguments = ("port-forward", "stays", f"{port}:80", "-n", self.stage.namespace, f"--kubeconfig={self.hub.kubeconfig}")
        process = await asyncio.create_subprocess_exec(str(kubectl), *arguments, stdout=PIPE, stderr=STDOUT)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(10):
                await process.stdout.readline()
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"hello")
                while line := await process.stdout.readline():
                    self.answer += line.decode()
        except (TimeoutError, OSError) as error:
            self.answer += f" {error!r}"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        yield

    async def changed_originals(self) -> Steps:
        """What is in a ConfigMap and a Secret that a running pod uses."""
        meta, space = {"name": self.guest, "namespace": self.stage.namespace}, self.stage.namespace
        await self.stage.home.create("configmaps", {"metadata": meta, "data": {"a": "1"}})
        await self.stage.home.create("secrets", {"metadata": meta, "stringData": {"a": "1"}})
        volumes = [{"name": "c", "configMap": {"name": self.guest}}, {"name": "s", "secret": {"secretName": self.guest}}]
        await self.stage.create(self.guest, volumes=volumes, terminationGracePeriodSeconds=1)
        await self.stage.running(self.guest)
        yield
        await self.stage.home.patch("configmaps", self.guest, {"data": {"a": "2"}}, namespace=space)
        await self.stage.home.patch("secrets", self.guest, {"stringData": {"a": "2"}}, namespace=space)
        yield
        await self.stage.home.delete("pods", self.guest, space)

    async def repeated_event(self) -> Steps:
        """After a refusal, Events of the worker are watched again within a minute."""
        await self._event()
        await self.stage.event("stays", f"Round{self.number}", seconds=MIRRORED_WITHIN)
        yield
        change = {"count": 2, "lastTimestamp": rfc3339(datetime.now(UTC))}
        await self.stage.there.patch("events", self.guest, change, namespace=self.scene.bound.mount)
        yield

    async def new_event(self) -> Steps:
        yield
        await self._event()
        yield

    async def _event(self) -> None:
        """An Event of a kubelet of the worker about the pod that stays."""
        physical = await self.stage.physical("stays")
        assert physical is not None
        meta, now = physical["metadata"], rfc3339(datetime.now(UTC))
        body: Body = {
            "metadata": {"name": self.guest, "namespace": meta["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **{key: meta[key] for key in ("name", "namespace", "uid")}},
            **{"type": "Normal", "reason": f"Round{self.number}", "message": "used", "count": 1},
            **{"firstTimestamp": now, "lastTimestamp": now, "source": {"component": "kubelet", "host": self.stage.nodes[0]}},
        }
        await self.stage.there.create("events", body)

    # --- the binding ---

    async def reconnect(self) -> Steps:
        """Another kubeconfig with the same content; without the mark, which the process restores."""
        yield
        change = '{"metadata":{"annotations":{"kubeocean.io/mount-owner":null}}}'
        await self.worker.kubectl("patch", "namespace", self.scene.bound.mount, "--type=merge", "-p", change)
        text = self.scene.bound.way(self.worker, self.scene.bound.user).read_text()
        await self._kubeconfig(f"{text}\n# round {self.number}\n")
        yield

    async def finalizer(self) -> Steps:
        """The process restores it when it connects, and may see late that it is missing: its watch waits after the refusals before."""
        yield
        await self.hub.kubectl("patch", "clusterbinding", self.scene.bound.name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        text = self.scene.bound.way(self.worker, self.scene.bound.user).read_text()
        for attempt in range(4):
            await asyncio.sleep(4.0)
            await self._kubeconfig(f"{text}\n# round {self.number}.{attempt}\n")
        yield

    async def first_pod_of_session(self) -> Steps:
        yield
        before = len(self.scene.program.messages())
        text = self.scene.bound.way(self.worker, self.scene.bound.user).read_text()
        await self._kubeconfig(f"{text}\n# round {self.number}\n")

        def connected() -> bool:
            return any(each["message"] == "connected to the worker cluster" for each in self.scene.program.messages()[before:])

        await eventually(connected, "a new session")
        await self.stage.create(self.guest, terminationGracePeriodSeconds=1)
        yield
        await self.stage.home.delete("pods", self.guest, self.stage.namespace)

    async def broken_kubeconfig(self) -> Steps:
        yield
        await self._kubeconfig("broken")
        yield
        await self._kubeconfig(self.scene.bound.way(self.worker, self.scene.bound.user).read_text())

    async def _kubeconfig(self, text: str) -> None:
        body = self.scene.bound.kubeconfig_secret(text)
        change = {"stringData": body["stringData"]}
        await objects_of(self.hub).patch(Question("secret", self.scene.bound.secret, SYSTEM), change)


def uses_of(work: Workload) -> dict[str, Use]:
    """By cluster, verb and resource, maybe with the namespace; every other right is used by each round."""
    return {**_uses_in_hub(work), **_uses_in_worker(work)}


def _uses_in_hub(work: Workload) -> dict[str, Use]:
    return {
        "hub patch nodes": work.taint_of_node,
        "hub patch nodes/status": work.size_of_lease,
        "hub create nodes": work.node_that_returns,
        "hub create csinodes": work.node_that_returns,
        "hub get csinodes": work.node_that_returns,
        "hub get nodes": work.node_whose_name_is_taken,
        "hub delete nodes": work.node_that_goes,
        "hub delete csinodes": work.node_that_goes,
        "hub patch csinodes": work.drivers_that_change,
        "hub create pods/eviction": work.node_that_goes,
        "hub get clusterbindings": work.node_that_goes,
        "hub patch clusterbindings": work.finalizer,
        "hub patch clusterbindings/status": work.broken_kubeconfig,
        "hub get secrets": work.reconnect,
        "hub patch pods": work.label_from_worker,
        "hub get replicasets": work.pod_of_deployment,
        "hub create events": work.new_event,
        "hub patch events": work.repeated_event,
        "hub get leases kube-node-lease": work.lease_that_is_edited,
        "hub create leases kube-node-lease": work.node_that_returns,
        "hub delete leases kube-node-lease": work.node_that_goes,
        "hub create pods kubeocean-fake": work.host_port,
        "hub get services": work.deleted_service,
        f"hub patch {_CLAIMS}/status": work.used_claim(work.grow_claim),
        **{f"hub {verb} {kind}": work.new_claim for verb in ("get", "patch") for kind in (_CLAIMS, _VOLUMES)},
    }


def _uses_in_worker(work: Workload) -> dict[str, Use]:
    found: dict[str, Use] = {
        **{f"worker {verb} events": work.repeated_event for verb in ("list", "watch")},
        **{f"worker {verb} {kind}": work.new_claim for verb in ("get", "create") for kind in (_CLAIMS, _VOLUMES)},
        **{f"worker delete {kind}": work.used_claim(work.drop_user) for kind in (_CLAIMS, _VOLUMES)},
        f"worker patch {_CLAIMS}": work.used_claim(work.unmark_claim),
        f"worker patch {_VOLUMES}": work.used_claim(work.grow_volume),
        "worker get nodes": work.node_that_goes,
        "worker get csinodes": work.drivers_that_go,
        "worker patch resourceleasingpolicies": work.node_that_returns,
        "worker patch resourceleasingpolicies/status": work.size_of_lease,
        **{f"worker update {kind}": work.changed_originals for kind in ("configmaps", "secrets")},
        "worker get namespaces": work.reconnect,
        "worker patch namespaces": work.reconnect,
        "worker create priorityclasses": work.first_pod_of_session,
        "worker get pods/log": work.stream("logs", "stays"),
        "worker get pods/exec": work.stream("exec", "stays", "--", "true"),
        "worker get pods/attach": work.stream("attach", "stays"),
        "worker get pods/portforward": work.forward,
        "worker patch pods/ephemeralcontainers": work.debug,
    }
    for kind in ("services", "endpointslices"):
        found |= {f"worker create {kind}": work.new_service, f"worker delete {kind}": work.deleted_service}
        found |= {f"worker get {kind}": work.unmarked(kind)}
    found |= {"worker patch services": work.changed_service, "worker update endpointslices": work.changed_service}
    return found
