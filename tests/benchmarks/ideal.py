"""`python -m tests.benchmarks.ideal HUB WORKER NAMESPACE`: the ideal pipeline, what leasing a pod takes at the very least and nothing more.

For each pod that appears in a namespace of the hub: a token, its Secret in the worker, a physical pod there, and, when that runs, one
status in the hub. No retry, no check, nothing is looked up: whatever does leasing has to do this much. `ideal_deleter` removes them.

Invariant: nothing of the code that is compared with it is used.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
from pathlib import Path

from attrs import define, field

from tests.benchmarks.bare import IN_FLIGHT, Api, Body

MOUNT = "ideal"
HOME = "ideal/home"
"""Annotation of a physical pod: NAMESPACE/NAME/UID of the pod at home."""
MERGE = "application/strategic-merge-patch+json"


@define
class Pipeline:
    """Follows one namespace of the hub."""

    hub: Api
    worker: Api
    namespace: str
    _slots: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(IN_FLIGHT))
    _begun: set[str] = field(factory=set)
    _told: set[str] = field(factory=set)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_home(group))
            group.create_task(self._follow_worker(group))
            print("ready", flush=True)

    async def _follow_home(self, group: asyncio.TaskGroup) -> None:
        async for kind, pod in self.hub.watch(f"/api/v1/namespaces/{self.namespace}/pods"):
            uid = pod["metadata"]["uid"]
            if kind == "ADDED" and uid not in self._begun:
                self._begun.add(uid)
                group.create_task(self._lease(pod))

    async def _follow_worker(self, group: asyncio.TaskGroup) -> None:
        async for kind, pod in self.worker.watch(f"/api/v1/namespaces/{MOUNT}/pods", "&fieldSelector=status.phase%3DRunning"):
            home = pod["metadata"]["annotations"][HOME]
            if kind == "ADDED" and home not in self._told:
                self._told.add(home)
                group.create_task(self._tell(home, pod["status"]))

    async def _lease(self, pod: Body) -> None:
        meta = pod["metadata"]
        name = physical_name(meta["uid"])
        async with self._slots:
            bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            request = {"spec": {"audiences": [], "expirationSeconds": 3607, "boundObjectRef": bound}}
            account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token"
            token = (await self.hub.write("POST", account, request))["status"]["token"]
            secret = {"metadata": {"name": name}, "data": {"token": base64.b64encode(token.encode()).decode()}}
            await self.worker.write("POST", f"/api/v1/namespaces/{MOUNT}/secrets", secret)
            await self.worker.write("POST", f"/api/v1/namespaces/{MOUNT}/pods", _physical(pod, name))

    async def _tell(self, home: str, status: Body) -> None:
        namespace, name, uid = home.split("/")
        told = {key: value for key, value in status.items() if key != "qosClass"}
        body = {"metadata": {"uid": uid}, "status": told}
        async with self._slots:
            await self.hub.write("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", body, kind=MERGE)


def physical_name(uid: str) -> str:
    """The physical pod and its Secret, for the UID of the pod in the hub."""
    return hashlib.md5(uid.encode(), usedforsecurity=False).hexdigest()


def _physical(pod: Body, name: str) -> Body:
    """On the physical node that the virtual one is named after, by the worker's scheduler."""
    meta, spec = pod["metadata"], pod["spec"]
    token = {"name": "token", "secret": {"secretName": name}}
    containers = [{"name": each["name"], "image": each["image"]} for each in spec["containers"]]
    mounts = [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
    return {
        "metadata": {"name": name, "annotations": {HOME: f"{meta['namespace']}/{meta['name']}/{meta['uid']}"}},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": spec["nodeName"].removeprefix("ideal-")},
            "containers": [{**each, "volumeMounts": mounts} for each in containers],
            "volumes": [token],
            "terminationGracePeriodSeconds": 1,
        },
    }


async def main(hub: str, worker: str, namespace: str) -> None:
    await Pipeline(Api(Path(hub)), Api(Path(worker)), namespace).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
