"""Two computing clusters lease from one worker: neither touches the other's, neither lends twice, and one may leave without the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene, undo
from tests.integration.kubeocean.test_dependents import configmap, secret, volumes
from tests.integration.kubeocean.test_unbinding import QUICK, delete_binding, gone, traces
from tests.support.audit import Audit
from tests.support.bound import Body, Bound, apply, condition, get, roles_for
from tests.support.program import Program, eventually
from tests.support.stage import Stage, uid_of
from tests.support.witness import Record, Seen, watching
from vkubelet.testing.cluster import ControlPlane

NAMES = ("same", "other")


@frozen
class Two:
    """Both bindings have one physical node; `here` and `there` are their stages, of equal names."""

    one: Scene
    second: Bound
    program: Program
    here: Stage
    there: Stage


@pytest.fixture
async def two(scene: MakeScene, bare_hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Two]:
    one = await scene(settings=QUICK)
    first = one.bound
    second = Bound(
        hub=bare_hub, worker=first.worker, name=f"{first.name}too", directory=tmp_path, spec=dict(first.spec), settings=dict(first.settings)
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(undo, second)
        await second.install()
        program = stack.enter_context(second.program())
        await second.node_ready(one.nodes[0])
        here = await Stage.of(first, one.nodes)
        await second.hub.kubectl("create", "namespace", here.namespace)
        await eventually(lambda: _has_account(second.hub, here.namespace), "the other namespace has its account")
        yield Two(one, second, program, here, await Stage.of(second, one.nodes, namespace=here.namespace))


async def _has_account(hub: ControlPlane, namespace: str) -> bool:
    return bool((await hub.kubectl("get", "serviceaccount", "default", "-n", namespace, "--ignore-not-found", "-o", "name")).strip())


def cpu(amount: str) -> float:
    """Cores of an amount such as "64" or "300m"."""
    return float(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)


def requested(body: Body) -> float:
    return sum(cpu(c.get("resources", {}).get("requests", {}).get("cpu", "0")) for c in body["spec"]["containers"])


def most_at_once(records: list[Record], node: str) -> float:
    """The largest sum of requests of living pods bound to a node, over all that was watched."""

    def revision(event: Seen) -> int:
        return int(event.object["metadata"]["resourceVersion"])

    # Two watches tell in their own time; the order of things is that of the API server.
    events = sorted((event for record in records for event in record.events), key=revision)
    now: dict[str, float] = {}
    most = 0.0
    for event in events:
        lives = event.kind != "DELETED" and event.phase not in ("Succeeded", "Failed") and event.object["spec"].get("nodeName") == node
        now[event.uid] = requested(event.object) if lives else 0.0
        most = max(most, sum(now.values()))
    return most


async def offered(stage: Stage) -> float:
    node = await get(stage.bound.hub, "node", stage.vnode)
    return cpu(node["status"]["allocatable"]["cpu"])


async def test_two_hubs_share_a_worker_and_one_leaves_the_other_whole(two: Two, tmp_path: Path) -> None:
    await _rival_is_refused_by_the_owners_name(two, tmp_path)
    node = two.one.nodes[0]
    audits = {
        two.second.mount: Audit(two.second.worker, two.here.bound.user),
        two.here.bound.mount: Audit(two.second.worker, two.second.user),
    }
    physical = await get(two.second.worker, "node", node)
    whole = cpu(physical["status"]["allocatable"]["cpu"])
    with (
        watching(two.here.bound.worker.kubeconfig, namespace=two.here.bound.mount) as ours,
        watching(two.here.bound.worker.kubeconfig, namespace=two.there.bound.mount) as theirs,
    ):
        for stage in (two.here, two.there):
            await stage.home.create("configmaps", configmap(stage, "settings", of=stage.bound.name))
            await stage.home.create("secrets", secret(stage, "keys", of=stage.bound.name))
        # Both ask for more than half at the same time, past every scheduler of their own: the worker has room for three of four.
        share = {"resources": {"requests": {"cpu": f"{whole * 1000 * 0.3:.0f}m"}}}
        for name in NAMES:
            for stage in (two.here, two.there):
                body = stage.body(name, terminationGracePeriodSeconds=2, volumes=volumes(("configMap", "settings"), ("secret", "keys")))
                body["spec"]["containers"][0] |= share
                await stage.home.create("pods", body)
        await eventually(lambda: _three_run(two), "three of four run, one waits for room")
        await eventually(lambda: _lent_once(two, whole), "each offers what the other does not use")
        for stage in (two.here, two.there):
            copy = await stage.until_physical("settings", bool, "there", kind="configmaps")
            assert copy["data"] == {"of": stage.bound.name}
        kept = {uid_of(pod) for pod in await two.there.there.list("pods", two.second.mount)}
        await delete_binding(two.one)
        await gone(two.one)
        assert await traces(two.here.bound.hub, two.one) == [] and await traces(two.here.bound.worker, two.one) == []
        for name in NAMES:
            await two.there.running(name)
        await eventually(lambda: _offers(two.there, whole), "what was leased to the first is free for the second")
    assert most_at_once([ours, theirs], node) <= whole
    for foreign, audit in audits.items():
        written = audit.writes()
        assert written and not [str(call) for call in written if foreign in (call.namespace, call.name)]
    assert not theirs.where(lambda event: event.deleting or event.kind == "DELETED" or event.restarts > 0)
    assert {uid_of(pod) for pod in await two.there.there.list("pods", two.second.mount)} == kept
    for kind, name in (("configmaps", "settings"), ("secrets", "keys")):
        assert await two.there.physical(name, kind)
    assert condition(await get(two.second.hub, "clusterbinding", two.second.name), "Ready") == "True"
    mount = await get(two.second.worker, "namespace", two.second.mount)
    assert mount["metadata"]["annotations"]["kubeocean.io/mount-owner"].startswith(f"{two.second.name}-")


async def _three_run(two: Two) -> bool:
    pods = [pod for stage in (two.here, two.there) for pod in await stage.there.list("pods", stage.bound.mount)]
    return sum(pod["status"]["phase"] == "Running" for pod in pods) == 3 and len(pods) == 4


async def _lent_once(two: Two, whole: float) -> bool:
    """A virtual node offers the physical one less what others use: here the pods of the other hub."""
    for stage, other in ((two.here, two.there), (two.there, two.here)):
        pods = [p for p in await other.there.list("pods", other.bound.mount) if p["spec"].get("nodeName")]
        if abs(await offered(stage) - (whole - sum(map(requested, pods)))) > 0.001:
            return False
    return True


async def _offers(stage: Stage, amount: float) -> bool:
    return abs(await offered(stage) - amount) < 0.001


async def _rival_is_refused_by_the_owners_name(two: Two, tmp_path: Path) -> None:
    """A binding of the other hub that names the mount namespace of the first."""
    first = two.here.bound
    spec = {**first.spec, "mountNamespace": first.mount}
    rival = Bound(hub=two.second.hub, worker=first.worker, name=f"{first.name}rival", directory=tmp_path, spec=spec)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(undo, rival)
        await rival.install()
        rights = roles_for(rival.user, "worker-rbac.yaml", name=rival.name, namespaces={"kubeocean-worker": first.mount})
        await apply(first.worker, *rights)
        before = await get(first.worker, "namespace", first.mount)
        owner = before["metadata"]["annotations"]["kubeocean.io/mount-owner"]
        stack.enter_context(rival.program())
        await eventually(lambda: _refused(rival, owner), "the owner is named", seconds=STARTS_WITHIN)
        assert (await get(first.worker, "namespace", first.mount))["metadata"] == before["metadata"]
        found = await get(rival.hub, "clusterbinding", rival.name)
        assert not found["metadata"].get("finalizers")
        await rival.hub.kubectl("delete", "clusterbinding", rival.name, "--timeout=60s")
        assert (await get(first.worker, "namespace", first.mount))["metadata"] == before["metadata"]


async def _refused(bound: Bound, owner: str) -> bool:
    found = json.dumps((await get(bound.hub, "clusterbinding", bound.name)).get("status", {}))
    return "ValidationFailed" in found and owner in found
