"""Uses of the rights on mirrored Services and on copied claims and volumes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from attrs import define

from tests.faults.cut.rounds import DRIVER, LABEL, Rounds, Steps, Use
from tests.support.bound import Body, delete
from tests.support.program import eventually
from vkubelet.clock import rfc3339

MIRRORED_WITHIN = 100.0
"""Seconds: a mirror that was refused is tried again after 60."""
BOUND_WITHIN = 60.0
"""Seconds: the binders of both clusters look at everything every 15."""


@define(eq=False, slots=False)
class ServiceUses(Rounds):
    """Services of the hub that come, change and go."""

    async def new_service(self) -> Steps:
        yield
        await self.serve(self.guest, "10.1.0.2")
        yield
        await delete(self.hub, "service", self.guest, "-n", self.stage.namespace, "--wait=false")

    async def changed_service(self) -> Steps:
        for kind in ("services", "endpointslices"):
            await eventually(partial(self.mirror, kind), "the mirror exists", seconds=MIRRORED_WITHIN)
        yield
        space = ("-n", self.stage.namespace)
        ports = {"spec": {"ports": [{"name": "http", "port": 1000 + self.number}]}}
        await self.hub.kubectl("patch", "service", "web", *space, "--type=merge", "-p", json.dumps(ports))
        endpoints = self.endpoints_of("web", f"10.1.1.{self.number % 250 + 1}")["endpoints"]
        await self.hub.kubectl("patch", "endpointslice", "web", *space, "--type=merge", "-p", json.dumps({"endpoints": endpoints}))
        yield

    async def deleted_service(self) -> Steps:
        await self.serve(self.guest, "10.1.0.3")
        await eventually(lambda: self.mirror("services", self.guest), "the Service is mirrored")
        await eventually(lambda: self.mirror("endpointslices", self.guest), "the EndpointSlice is mirrored")
        yield
        await delete(self.hub, "endpointslice", self.guest, "-n", self.stage.namespace, "--wait=false")
        await delete(self.hub, "service", self.guest, "-n", self.stage.namespace, "--wait=false")
        yield

    def unmarked(self, kind: str) -> Use:
        """A mirror without the label by which it is watched is found by its name alone."""

        async def use() -> Steps:
            await eventually(lambda: self.mirror(kind), "the mirror exists", seconds=MIRRORED_WITHIN)
            yield
            name, mount = await self.mirror(kind), self.scene.bound.mount
            await self.worker.kubectl("label", kind, name, "-n", mount, f"{LABEL}-")
            yield
            await delete(self.worker, kind, name, "-n", mount, "--ignore-not-found", "--wait=false")

        return use


@define(eq=False, slots=False)
class ClaimUses(Rounds):
    """Claims of the hub, with their volumes and the pods that use them."""

    @property
    def volume(self) -> str:
        return f"{self.stage.namespace}-{self.guest}"

    async def _claimed(self) -> None:
        """A volume and its claim, bound."""
        space, size = self.stage.namespace, {"storage": "1Gi"}
        spec: Body = {"capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain"}
        spec |= {"csi": {"driver": DRIVER, "volumeHandle": self.volume}, "claimRef": {"namespace": space, "name": self.guest}}
        claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": self.volume, "resources": {"requests": size}}
        await self.stage.home.create("persistentvolumes", {"metadata": {"name": self.volume}, "spec": spec})
        await self.stage.home.create("persistentvolumeclaims", {"metadata": {"name": self.guest, "namespace": space}, "spec": claim})

        async def bound() -> bool:
            found = await self.stage.home.get("persistentvolumeclaims", self.guest, space)
            return found is not None and found["status"]["phase"] == "Bound"

        await eventually(bound, "the claim is bound", seconds=BOUND_WITHIN)

    async def _user(self) -> None:
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": self.guest}}]
        await self.stage.create(self.guest, volumes=volumes, terminationGracePeriodSeconds=1)

    async def _unclaimed(self) -> None:
        await self.stage.home.delete("pods", self.guest, self.stage.namespace)
        await self.stage.home.delete("persistentvolumeclaims", self.guest, self.stage.namespace)
        await self.stage.home.delete("persistentvolumes", self.volume)

    async def new_claim(self) -> Steps:
        await self._claimed()
        yield
        await self._user()
        yield
        await self._unclaimed()

    def used_claim(self, change: Callable[[], Awaitable[None]]) -> Use:
        """A claim that a pod uses already."""

        async def use() -> Steps:
            await self._claimed()
            await self._user()
            await self.stage.running(self.guest, seconds=BOUND_WITHIN)
            yield
            await change()
            yield
            await self._unclaimed()

        return use

    async def drop_user(self) -> None:
        await self.stage.home.delete("pods", self.guest, self.stage.namespace)

    async def unmark_claim(self) -> None:
        name = self.stage.physical_name(self.guest)
        await self.worker.kubectl("label", "pvc", name, "-n", self.scene.bound.mount, f"{LABEL}-")

    async def grow_volume(self) -> None:
        await self.stage.home.patch("persistentvolumes", self.volume, {"spec": {"capacity": {"storage": "2Gi"}}})

    async def grow_claim(self) -> None:
        """As the controllers of a driver report it in the hub, and the kubelet in the worker."""
        pending = [{"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": rfc3339(datetime.now(UTC))}]
        status = {"status": {"conditions": pending}}
        await self.stage.home.patch("persistentvolumeclaims", self.guest, status, namespace=self.stage.namespace, subresource="status")
        grown = {"status": {"capacity": {"storage": "2Gi"}}}
        await self.stage.there.patch(
            "persistentvolumeclaims",
            self.stage.physical_name(self.guest),
            grown,
            namespace=self.scene.bound.mount,
            subresource="status",
        )
