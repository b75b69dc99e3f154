"""A running installation of Kubeocean (Go) is taken over: nothing is restarted or deleted, and everything of it is ours afterwards."""

from __future__ import annotations

import base64
import json
import uuid

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.leases import CLOSED, taints, vnode
from tests.integration.kubeocean.outages import events_of
from tests.integration.kubeocean.test_unbinding import delete_binding, gone, traces
from tests.support.bound import Body, apply, condition, get
from tests.support.kubectl import Kubectl
from tests.support.kubeocean_go import BINDING_FINALIZERS, MANAGED, Go
from tests.support.program import eventually, holds
from tests.support.stage import Stage, physical_name, uid_of
from tests.support.witness import watching

SETTINGS = {"pods": {"list_interval": 1.0}, "lease": {"renew_every": 2}, "provider": {"unused_copy_after": 2.0}}
TOKEN = {"name": "identity", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "https://x.example"}}]}}
VOLUME: Body = {
    "accessModes": ["ReadWriteOnce"],
    "capacity": {"storage": "1Gi"},
    "csi": {"driver": "disk.example.com", "volumeHandle": "v1"},
}


class Installation:
    """Two virtual nodes, of which one has lost its policy; a pod with everything it may refer to; and what belongs to nobody."""

    def __init__(self, scene: Scene, stage: Stage) -> None:
        self.scene, self.stage, self.go, self.port = scene, stage, Go(stage), scene.bound.hub.site.free_port()
        self.role = f"labels-nodes-{scene.bound.name}"
        self.before: dict[str, str] = {}
        self.nobodys: list[Body] = []

    async def make(self) -> None:
        await self._bind()
        closed = {"key": CLOSED, "value": "true", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
        policy = f"all-of-{self.stage.bound.name}"
        # Where their kubelet servers listened is outside of the range in which we would look.
        for number, port in ((0, self.port), (1, self.scene.bound.hub.site.free_port())):
            node = await self.go.node(self.stage.nodes[number], port=port, policy=policy, extra_taints=[closed])
            self.before[f"node {number}"] = uid_of(node)
        users = {"metadata": {"labels": {"team": "blue"}, "annotations": {"note": "kept"}}}
        await self.stage.home.patch("nodes", self.scene.vnodes[0], users)
        await self.go.csinode(self.stage.nodes[0])
        await self.go.priority_class()
        await self._objects()
        await self._pods()
        await self._what_is_nobodys()

    async def _bind(self) -> None:
        bound = self.stage.bound
        binding = {"metadata": {"finalizers": BINDING_FINALIZERS}}
        await bound.hub.kubectl("patch", "clusterbinding", bound.name, "--type=merge", "-p", json.dumps(binding))
        policy = {"metadata": {"finalizers": ["policy.kubeocean.io/finalizer"]}}
        await bound.worker.kubectl("patch", "rlp", f"all-of-{bound.name}", "--type=merge", "-p", json.dumps(policy))
        # The old roles let it label nodes; ours do only if the worker's owner likes to see that.
        for command in (
            ("clusterrole", "--verb=patch", "--resource=nodes"),
            ("clusterrolebinding", f"--clusterrole={self.role}", f"--user={bound.user}"),
        ):
            await bound.worker.kubectl("create", command[0], self.role, *command[1:])
        applied = {"metadata": {"labels": {"kubeocean.io/policy-applied": f"all-of-{bound.name}"}}}
        await self.stage.there.patch("nodes", self.stage.nodes[0], applied)

    async def _objects(self) -> None:
        go = self.go
        for kind, name, content in (
            ("configmaps", "settings", {"data": {"color": "red"}}),
            ("secrets", "keys", {"type": "Opaque", "data": {"one": "MQ=="}}),
        ):
            await go.original(kind, name, content)
            self.before[name] = uid_of(await go.copy(kind, name, content))
        await go.mark("configmaps", "kube-root-ca.crt")
        root = await self.stage.home.get("configmaps", "kube-root-ca.crt", self.stage.namespace)
        assert root is not None
        self.before["kube-root-ca.crt"] = uid_of(await go.copy("configmaps", "kube-root-ca.crt", {"data": root["data"]}))
        await self._volume()

    async def _volume(self) -> None:
        """A claim that is bound at home, and copies of claim and volume."""
        go, stage = self.go, self.stage
        self.volume = f"volume-{stage.namespace}"
        claim: Body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": self.volume}
        home = VOLUME | {"claimRef": {"name": "disk", "namespace": stage.namespace}, "persistentVolumeReclaimPolicy": "Retain"}
        await stage.home.create("persistentvolumes", {"metadata": {"name": self.volume, **go.marks("", self.volume)}, "spec": home})
        await go.original("persistentvolumeclaims", "disk", {"spec": claim | {"storageClassName": ""}})
        await eventually(self._is_bound, "the claim is bound at home")
        there = VOLUME | {"persistentVolumeReclaimPolicy": "Retain"}
        self.before["volume"] = uid_of(await go.copy("persistentvolumes", self.volume, {"spec": there}, namespace=""))
        claim |= {"volumeName": physical_name("", self.volume), "storageClassName": ""}
        self.before["disk"] = uid_of(await go.copy("persistentvolumeclaims", "disk", {"spec": claim}))

    async def _is_bound(self) -> bool:
        claim = await self.stage.home.get("persistentvolumeclaims", "disk", self.stage.namespace)
        return claim is not None and claim["status"]["phase"] == "Bound"

    async def _pods(self) -> None:
        volumes: list[Body] = [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
            TOKEN,
        ]
        virtual = await self.stage.create("web", volumes=volumes, labels={"app": "web"})
        projected = [volume["name"] for volume in virtual["spec"]["volumes"] if "projected" in volume]
        for volume in projected:
            self.before[f"token {volume}"] = uid_of(await self.go.token(virtual, volume))
        self.tokens = {volume: self.go.token_name(virtual, volume) for volume in projected}
        made = await self.go.pod(virtual, self.stage.nodes[0])
        self.before |= {"web": uid_of(virtual), "web there": uid_of(made)}
        running = await self.stage.until_physical("web", lambda p: p["status"]["phase"] == "Running", "Running")
        parts = ("phase", "conditions", "podIP", "podIPs", "startTime", "containerStatuses")
        status = {part: running["status"][part] for part in parts if part in running["status"]}
        await self.stage.home.patch("pods", "web", {"status": status}, namespace=self.stage.namespace, subresource="status")

    async def _what_is_nobodys(self) -> None:
        stage = self.stage
        self.nobodys = [
            await self.go.copy("configmaps", "of-another-time", {"data": {"a": "b"}}),
            await stage.there.create("pods", stage.twin("nobodys", str(uuid.uuid4()), labels=MANAGED, annotations={})),
        ]

    # --- afterwards ---

    async def there(self, kind: str, name: str, *, namespaced: bool = True) -> Body | None:
        return await self.stage.there.get(kind, name, self.stage.bound.mount if namespaced else "")

    async def copies(self) -> dict[str, Body | None]:
        """What was in the worker, by the names in `before`."""
        out = {key: await self.stage.physical(name, kind) for key, (kind, name) in _COPIES.items()}
        out["volume"] = await self.there("persistentvolumes", physical_name("", self.volume), namespaced=False)
        for volume, name in self.tokens.items():
            out[f"token {volume}"] = await self.there("secrets", name)
        return out

    async def all_marked(self) -> bool:
        labels, annotations = await self.stage.marks()
        metas = [body["metadata"] for body in (await self.copies()).values() if body is not None]
        marked = [m for m in metas if labels.items() <= m["labels"].items() and annotations.items() <= m["annotations"].items()]
        return len(marked) == len(_COPIES) + 1 + len(self.tokens)


PORTS = range(15000, 30000)
_COPIES = {
    "settings": ("configmaps", "settings"),
    "kube-root-ca.crt": ("configmaps", "kube-root-ca.crt"),
    "keys": ("secrets", "keys"),
    "disk": ("persistentvolumeclaims", "disk"),
    "web there": ("pods", "web"),
}


async def _fresh(installation: Installation) -> bool:
    """Every token that was mounted is one that the hub issued for this pod."""
    for name in installation.tokens.values():
        secret = await installation.there("secrets", name)
        assert secret is not None
        _, dot, rest = base64.b64decode(secret["data"]["token"]).decode().partition(".")
        if not dot:
            return False
        claims = json.loads(base64.urlsafe_b64decode(rest.partition(".")[0] + "=="))
        assert claims["kubernetes.io"]["pod"]["uid"] == installation.before["web"]
    return True


async def _is_ours(scene: Scene) -> None:
    """The first node: no finalizer, our kubelet server, closed no more."""
    node = await vnode(scene)
    assert node is not None
    assert CLOSED not in taints(node) and not node["metadata"].get("finalizers")
    addresses = {address["type"]: address["address"] for address in node["status"]["addresses"]}
    assert addresses == {"InternalIP": scene.bound.hub.host_address}
    assert condition(node, "Ready") == "True", node["status"]["conditions"]


async def _logs(made: Scene, stage: Stage) -> bool:
    return (await Kubectl(made.bound.hub, stage.namespace).run("logs", "web")).code == 0


async def _first_alone(scene: Scene) -> bool:
    return await vnode(scene, 1) is None


async def test_running_installation_is_taken_over_without_a_restart_and_can_be_unbound(scene: MakeScene) -> None:
    made = await scene(nodes=2, start=False, settings=SETTINGS)
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    only_first = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [made.nodes[0]]}]}]}
    await apply(bound.worker, bound.policy(nodeSelector=only_first))
    was = Installation(made, stage)
    await was.make()
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, namespace=stage.namespace) as above,
    ):
        made.program.start()
        await holds(lambda: _is_ours(made), seconds=STARTS_WITHIN)
        await eventually(was.all_marked, "everything of it bears our mark")
        await eventually(lambda: _fresh(was), "tokens are renewed where they are mounted")
        await eventually(lambda: _first_alone(made), "the node that lost its policy is gone, finalizer and all")
        await stage.until("web", lambda p: condition(p, "Ready") == "True", "Ready")
        await eventually(lambda: _logs(made, stage), "the kubelet server serves the pod, once its certificate is signed", every=0.5)
    await _is_as_it_was(made, was)
    assert not below.where(lambda event: event.kind != "MODIFIED" or event.deleting or event.restarts > 0)
    assert not above.where(lambda event: event.kind != "MODIFIED" or event.deleting or event.phase != "Running")
    await holds(lambda: _left_alone_is_told(made, was))
    await _works_on(stage, was)
    await delete_binding(made)
    await _manager_lets_go(made)
    await gone(made)
    # What names no owner is nobody's, also at the end.
    for kind, body in zip(("configmaps", "pods"), was.nobodys, strict=True):
        left = await was.there(kind, body["metadata"]["name"])
        assert left is not None and uid_of(left) == uid_of(body) and left["metadata"]["labels"] == body["metadata"]["labels"]
        await stage.there.patch(kind, body["metadata"]["name"], {"metadata": {"labels": None, "annotations": None}}, namespace=bound.mount)
    assert await traces(bound.hub, made) == [] and await traces(bound.worker, made) == []
    await bound.worker.kubectl("delete", "clusterrole,clusterrolebinding", was.role)


async def _left_alone_is_told(made: Scene, was: Installation) -> None:
    told = [event["message"] for event in await events_of(made, "LeftAlone")]
    assert len(told) == 1 and told[0].startswith("2 objects") and all(body["metadata"]["name"] in told[0] for body in was.nobodys)


async def _is_as_it_was(made: Scene, was: Installation) -> None:
    stage = was.stage
    node, web = await vnode(made), await stage.virtual("web")
    assert node is not None and web is not None
    assert (uid_of(node), uid_of(web)) == (was.before["node 0"], was.before["web"])
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    assert port == was.port if was.port in PORTS else port in PORTS, "one outside of the configured range is replaced"
    assert node["metadata"]["labels"]["team"] == "blue" and node["metadata"]["annotations"]["note"] == "kept"
    found = {name: uid_of(body) for name, body in (await was.copies()).items() if body is not None}
    assert found == {name: was.before[name] for name in found} and len(found) == len(_COPIES) + 1 + len(was.tokens)
    assert len(await stage.there.list("pods", stage.bound.mount)) == 2
    csinode = await get(stage.bound.hub, "csinode", made.vnodes[0])
    assert csinode is not None and csinode["spec"]["drivers"][0]["name"] == "disk.example.com"


async def _works_on(stage: Stage, was: Installation) -> None:
    """Changes arrive, and with the pod goes what it alone used."""
    await stage.home.patch("configmaps", "settings", {"data": {"color": "blue"}}, namespace=stage.namespace)
    await stage.until_physical("settings", lambda c: c["data"] == {"color": "blue"}, "is current", kind="configmaps")
    await stage.home.delete("pods", "web", stage.namespace, grace=1)
    await stage.absent("web")
    await stage.no_physical("web")
    for name in was.tokens.values():
        await eventually(lambda name=name: _absent(was, name), "its tokens are gone")


async def _absent(was: Installation, name: str) -> bool:
    return await was.there("secrets", name) is None


async def _manager_lets_go(made: Scene) -> None:
    """The manager waits for us, and nobody plays it here."""

    async def only_its_own() -> bool:
        found = await get(made.bound.hub, "clusterbinding", made.bound.name)
        return list(found["metadata"]["finalizers"]) == BINDING_FINALIZERS[:1]

    await eventually(only_its_own, "only the manager's finalizer is left", seconds=60)
    await made.bound.hub.kubectl("patch", "clusterbinding", made.bound.name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
