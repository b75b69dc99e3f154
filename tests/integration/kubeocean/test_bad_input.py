"""Whatever is wrong with a binding, its Secret or its worker: condition and event name field and remedy, and mending it is enough."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import field, frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, Scene, only_simulated, undo
from tests.support.audit import Audit, Call
from tests.support.bound import SYSTEM, Body, Bound, apply, condition, get, items, pod, roles_for, running
from tests.support.program import Program, eventually, holds
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import ControlPlane

SELDOM, OFTEN = 60.0, 2.0
"""Seconds between two attempts at a connection: what is noticed in spite of the first is noticed at once."""
CALLS_OF_A_START = 60
"""With its first attempt at a connection."""
CALLS_OF_AN_ATTEMPT = 8
ASKED_AGAIN_EVERY = 3.0

_numbers = itertools.count(1)

Step = Callable[[Bound], Awaitable[None]]
MakeBound = Callable[..., Awaitable[Bound]]


@pytest.fixture
async def bind(common: Scene, tmp_path: Path) -> AsyncIterator[MakeBound]:
    """`await bind(**spec)` binds the physical node of the scene once more; no process runs for it yet. NAME is its name."""
    async with AsyncExitStack() as stack:

        async def make(*, settings: Body | None = None, **spec: Any) -> Bound:
            name = f"b{next(_numbers)}"
            spec = {"nodeSelector": only_simulated(common.nodes[0]), **{key: _named(value, name) for key, value in spec.items()}}
            bound = Bound(
                hub=common.bound.hub, worker=common.bound.worker, name=name, directory=tmp_path, spec=spec, settings=settings or {}
            )
            stack.push_async_callback(undo, bound)
            await bound.install()
            return bound

        yield make


def _named(value: Any, name: str) -> Any:
    return value.replace("NAME", name) if isinstance(value, str) else value


async def replace_kubeconfig(bound: Bound, text: str) -> None:
    await bound.hub.kubectl("replace", "-f", "-", stdin=json.dumps(bound.kubeconfig_secret(text)))


async def put_right(bound: Bound) -> None:
    await bound.hub.kubectl("replace", "-f", "-", stdin=json.dumps(bound.kubeconfig_secret()))


def changed_kubeconfig(bound: Bound, change: Callable[[Body, Body], None]) -> str:
    """The good kubeconfig after `change(its cluster, its user)`."""
    body = decode_yaml(bound.worker.client_config(bound.user).read_text())
    change(body["clusters"][0]["cluster"], body["users"][0]["user"])
    return str(yaml.safe_dump(body))


async def no_secret(bound: Bound) -> None:
    await bound.hub.kubectl("delete", "secret", bound.secret, "-n", SYSTEM)


async def make_secret(bound: Bound) -> None:
    await apply(bound.hub, bound.kubeconfig_secret())


async def secret_without_the_key(bound: Bound) -> None:
    body = bound.kubeconfig_secret()
    body["stringData"] = {"config": body["stringData"]["kubeconfig"]}
    await bound.hub.kubectl("replace", "-f", "-", stdin=json.dumps(body))


async def no_yaml(bound: Bound) -> None:
    await replace_kubeconfig(bound, "clusters: [\n  {name: x")


async def no_cluster(bound: Bound) -> None:
    await replace_kubeconfig(bound, "apiVersion: v1\nkind: Config\ncurrent-context: gone\n")


async def nobody_listens(bound: Bound) -> None:
    await replace_kubeconfig(bound, changed_kubeconfig(bound, lambda cluster, user: cluster.update(server="https://127.0.0.1:9")))


async def another_ca(bound: Bound) -> None:
    other = decode_yaml(bound.hub.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    await replace_kubeconfig(bound, changed_kubeconfig(bound, lambda cluster, user: cluster.update({"certificate-authority-data": other})))


async def unknown_token(bound: Bound) -> None:
    def change(cluster: Body, user: Body) -> None:
        user.clear()
        user["token"] = "nobody-knows-this-token"

    await replace_kubeconfig(bound, changed_kubeconfig(bound, change))


async def user_without_rights(bound: Bound) -> None:
    await replace_kubeconfig(bound, bound.worker.client_config(f"stranger-{bound.name}").read_text())


async def unverified_worker(bound: Bound) -> None:
    def change(cluster: Body, user: Body) -> None:
        del cluster["certificate-authority-data"]
        cluster["insecure-skip-tls-verify"] = True

    await replace_kubeconfig(bound, changed_kubeconfig(bound, change))


async def patch_binding(bound: Bound, spec: Body) -> None:
    await bound.hub.kubectl("patch", "clusterbinding", bound.name, "--type=merge", "-p", json.dumps({"spec": spec}))


async def nothing(bound: Bound) -> None:
    """The binding is wrong as it was made."""


async def allow_insecure(bound: Bound) -> None:
    await patch_binding(bound, {"allowInsecureWorker": True})


async def make_namespace(bound: Bound) -> None:
    name = bound.spec["mountNamespace"]
    await apply(bound.worker, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    roles = roles_for(bound.user, "worker-rbac.yaml", name=bound.name, namespaces={"kubeocean-worker": name})
    await apply(bound.worker, *(role for role in roles if role["metadata"].get("namespace") == name))


async def strangers_namespace(bound: Bound) -> None:
    await bound.worker.kubectl("annotate", "namespace", bound.mount, "kubeocean.io/mount-owner=stranger-0")


async def disown_namespace(bound: Bound) -> None:
    await bound.worker.kubectl("annotate", "namespace", bound.mount, "kubeocean.io/mount-owner-")


async def name_mount(bound: Bound) -> None:
    await patch_binding(bound, {"mountNamespace": bound.mount})


async def name_zone(bound: Bound) -> None:
    await patch_binding(bound, {"timeZone": "Europe/Berlin"})


@frozen(kw_only=True)
class Case:
    """Something wrong, what is said about it, and how it is mended."""

    spoil: Step = nothing
    mend: Step
    reason: str = "ConnectivityFailed"
    says: tuple[str, ...]
    spec: Body = field(factory=dict)
    asks_every: float = SELDOM


CASES = {
    "missing secret": Case(spoil=no_secret, mend=make_secret, says=("spec.secretRef", "does not exist; create it")),
    "secret without the key": Case(
        spoil=secret_without_the_key, mend=put_right, says=("spec.secretRef", "`kubeconfig`", "put the kubeconfig")
    ),
    "kubeconfig is no YAML": Case(spoil=no_yaml, mend=put_right, says=("spec.secretRef", "no usable kubeconfig", "put a new one")),
    "kubeconfig without cluster": Case(spoil=no_cluster, mend=put_right, says=("spec.secretRef", "no usable kubeconfig", "put a new one")),
    "nobody listens": Case(
        spoil=nobody_listens, mend=put_right, says=("spec.secretRef", "requests to the worker cluster fail", "check the server")
    ),
    "another certificate authority": Case(spoil=another_ca, mend=put_right, says=("spec.secretRef", "check the server")),
    "unknown token": Case(
        spoil=unknown_token, mend=put_right, says=("spec.secretRef", "rejects the credentials", "put a valid kubeconfig")
    ),
    "user without rights": Case(
        spoil=user_without_rights, mend=put_right, reason="SyncerFailed", says=("spec.mountNamespace", "grant the rights")
    ),
    "unverified worker": Case(
        spoil=unverified_worker, mend=allow_insecure, reason="ValidationFailed", says=("spec.secretRef", "spec.allowInsecureWorker")
    ),
    "missing mount namespace": Case(
        spec={"mountNamespace": "late-NAME"},
        mend=make_namespace,
        reason="SyncerFailed",
        says=("spec.mountNamespace", "in namespace late-", "create the namespace"),
        asks_every=OFTEN,
    ),
    "mount namespace of somebody else": Case(
        spoil=strangers_namespace,
        mend=disown_namespace,
        reason="ValidationFailed",
        says=("spec.mountNamespace", "belongs to binding stranger-0", "name another"),
        asks_every=OFTEN,
    ),
    "no mount namespace": Case(
        spec={"mountNamespace": ""}, mend=name_mount, reason="ValidationFailed", says=("spec.mountNamespace", "is empty; name")
    ),
    "unknown time zone": Case(
        spec={"timeZone": "Europe/Atlantis"}, mend=name_zone, reason="ValidationFailed", says=("spec.timeZone", "IANA")
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_what_is_wrong_is_said_with_its_remedy_and_mending_it_is_enough(case: Case, common: Scene, bind: MakeBound) -> None:
    bound = await bind(settings={"provider": {"reconnect_interval": case.asks_every}}, **case.spec)
    await case.spoil(bound)
    hub = Audit(bound.hub, bound.user)
    with bound.program() as program:
        await told(bound, case.reason, *case.says, program=program)
        _is_few(hub.calls(), case.asks_every)
        assert await get(bound.hub, "node", bound.vnode(common.nodes[0])) is None
        await case.mend(bound)
        await served(bound, common.nodes[0], program=program)


def _is_few(calls: list[Call], asks_every: float) -> None:
    """For a start, and for the attempts that may have followed before what is wrong was told."""
    span = (max(call.at for call in calls) - min(call.at for call in calls)).total_seconds()
    assert len(calls) < CALLS_OF_A_START + CALLS_OF_AN_ATTEMPT * (span / asks_every), [str(call) for call in calls]


async def told(bound: Bound, reason: str, *words: str, program: Program) -> None:
    """Wait until condition Ready is False and an event has been written, both with this reason and these words; the process is up."""

    async def says() -> bool:
        found = await get(bound.hub, "clusterbinding", bound.name)
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        ready = conditions.get("Ready", {"status": ""})
        return ready["status"] == "False" and ready["reason"] == reason and all(word in ready["message"] for word in words)

    async def noted() -> bool:
        found = await items(bound.hub, "events", "-n", "default", "--field-selector", f"involvedObject.name={bound.name},type=Warning")
        return any(event["reason"] == reason and all(word in event["message"] for word in words) for event in found)

    try:
        await eventually(says, f"condition Ready=False of {bound.name} says {words}", seconds=STARTS_WITHIN, every=0.2)
        await eventually(noted, f"an event about {bound.name} says {words}", every=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await get(bound.hub, 'clusterbinding', bound.name)}\n{program.tail()}") from None
    assert program.alive


async def served(bound: Bound, node: str, *, program: Program) -> None:
    """Wait until the virtual node is Ready and the binding says so."""

    async def ready() -> bool:
        return condition(await get(bound.hub, "clusterbinding", bound.name), "Ready") == "True"

    try:
        await bound.node_ready(node)
        await eventually(ready, f"condition Ready=True of {bound.name}", every=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await get(bound.hub, 'clusterbinding', bound.name)}\n{program.tail()}") from None


async def test_list_that_is_refused_is_named_until_it_is_granted(common: Scene, bind: MakeBound) -> None:
    bound = await bind(settings={"provider": {"reconnect_interval": OFTEN}})
    role = f"kubeocean-syncer-{bound.name}"
    rules = (await get(bound.worker, "clusterrole", role))["rules"]
    fewer = [rule for rule in rules if "resourceleasingpolicies" not in rule["resources"]]
    await _set_rules(bound, role, fewer)
    with bound.program() as program:
        await told(bound, "SyncerFailed", "spec.secretRef", "resourceleasingpolicies", "grant the rights", program=program)
        assert await get(bound.hub, "node", bound.vnode(common.nodes[0])) is None
        await _set_rules(bound, role, rules)
        await served(bound, common.nodes[0], program=program)


async def _set_rules(bound: Bound, role: str, rules: list[Body]) -> None:
    await bound.worker.kubectl("patch", "clusterrole", role, "--type=merge", "-p", json.dumps({"rules": rules}))


@pytest.mark.parametrize("suffix", ["", "-x"], ids=["the same", "one that begins with it"])
async def test_cluster_id_of_another_binding_is_refused_until_it_is_free(suffix: str, common: Scene, bind: MakeBound) -> None:
    """`vnode-a-b-c` would be node `b-c` of `a` and node `c` of `a-b`."""
    taken = f"{common.bound.name}{suffix}"
    bound = await bind(settings={"provider": {"reconnect_interval": SELDOM}}, clusterID=taken)
    healthy = await get(common.bound.hub, "node", common.vnodes[0])
    worker = Audit(bound.worker, bound.user)
    with bound.program() as program:
        await told(bound, "ValidationFailed", "spec.clusterID", f"ClusterBinding {common.bound.name}", "another clusterID", program=program)
        program.kill()
        again = Audit(bound.hub, bound.user)
        program.start()
        looked = "the new process has looked at the other bindings"
        await eventually(lambda: _lists(again, "clusterbindings") > 1, looked, seconds=STARTS_WITHIN)
        await bound.hub.kubectl("delete", "clusterbinding", bound.name)
        assert worker.calls() == []
        own = {**bound.binding(), "spec": {**bound.binding()["spec"], "clusterID": bound.name}}
        await apply(bound.hub, own)
        await served(bound, common.nodes[0], program=program)
    same = await get(common.bound.hub, "node", common.vnodes[0])
    assert same["metadata"]["uid"] == healthy["metadata"]["uid"] and same["metadata"]["labels"] == healthy["metadata"]["labels"]
    assert condition(await get(common.bound.hub, "clusterbinding", common.bound.name), "Ready") == "True"


def _lists(audit: Audit, what: str) -> int:
    return sum(call.verb == "list" and call.what == what for call in audit.calls())


async def test_namespace_of_another_binding_stays_its_own(common: Scene, bind: MakeBound) -> None:
    bound = await bind(mountNamespace=common.bound.mount)
    await apply(
        bound.worker, *roles_for(bound.user, "worker-rbac.yaml", name=bound.name, namespaces={"kubeocean-worker": common.bound.mount})
    )
    before = (await get(bound.worker, "namespace", common.bound.mount))["metadata"]["annotations"]
    worker = Audit(bound.worker, bound.user)
    with bound.program() as program:
        owner = before["kubeocean.io/mount-owner"]
        await told(bound, "ValidationFailed", "spec.mountNamespace", f"belongs to binding {owner}", "name another", program=program)
        assert worker.writes() == []
    assert (await get(bound.worker, "namespace", common.bound.mount))["metadata"]["annotations"] == before


async def test_process_that_can_not_connect_asks_again_calmly_and_says_the_same_once(bind: MakeBound) -> None:
    """Judged between two attempts, by the audit log: the hub is read, and nothing is written. Once everything is said, that is."""
    spoils = (no_secret, nobody_listens, unknown_token, strangers_namespace)
    spoilt = [await bind(settings={"provider": {"reconnect_interval": ASKED_AGAIN_EVERY}}) for _ in spoils]
    for bound, spoil in zip(spoilt, spoils, strict=True):
        await spoil(bound)
    audits = [Audit(bound.hub, bound.user) for bound in spoilt]
    async with AsyncExitStack() as stack:
        for bound in spoilt:
            stack.enter_context(bound.program())
        for audit in audits:
            await holds(lambda audit=audit: _is_calm(audit), seconds=STARTS_WITHIN, every=0.5)


def _is_calm(audit: Audit) -> None:
    """From the attempt before the last one to the last one; the first belongs to the start, when everything is said."""
    attempts = [call.at for call in _attempts(audit)]
    assert len(attempts) >= 3, "three attempts"
    before, last = attempts[-2:]
    between = [call for call in audit.calls() if before < call.at <= last]
    assert len(between) <= CALLS_OF_AN_ATTEMPT, [str(call) for call in between]
    assert [str(call) for call in between if call.is_write] == []
    print(f"{len(between)} calls in the {(last - before).total_seconds():.1f} s between two attempts")


def _attempts(audit: Audit) -> list[Call]:
    """Reads of the Secret that are not close together, as they are when a status write wakes the process."""
    out: list[Call] = []
    for call in audit.calls():
        if call.verb == "get" and call.what == "secrets" and (not out or (call.at - out[-1].at).total_seconds() > ASKED_AGAIN_EVERY / 2):
            out.append(call)
    return out


async def test_kubeconfig_spoilt_under_a_running_process_changes_nothing_but_the_binding(common: Scene, bind: MakeBound) -> None:
    bound = await bind(settings={"provider": {"reconnect_interval": SELDOM}})
    with bound.program() as program:
        await served(bound, common.nodes[0], program=program)
        namespace, node = await bound.hub.namespace(), bound.vnode(common.nodes[0])
        await no_yaml(bound)
        await told(bound, "ConnectivityFailed", "spec.secretRef", "until then the earlier connection is used", program=program)
        await apply(bound.hub, pod("meanwhile", namespace, node=node))
        await running(bound, namespace, "meanwhile")
        assert condition(await get(bound.hub, "node", node), "Ready") == "True"
        await put_right(bound)
        await served(bound, common.nodes[0], program=program)
        await apply(bound.hub, pod("afterwards", namespace, node=node))
        await running(bound, namespace, "afterwards")
        await bound.hub.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=1")


async def test_binding_that_does_not_exist_ends_the_process(hub: ControlPlane, bind: MakeBound) -> None:
    bound = await bind()
    await hub.kubectl("delete", "clusterbinding", bound.name)
    program = bound.program()
    with program:
        await eventually(lambda: not program.alive, "the process ended", seconds=STARTS_WITHIN)
        assert program.process.returncode != 0
        last = program.tail(1)
    assert "ClusterBinding" in last and bound.name in last and "create it" in last


async def test_process_outlives_its_binding_and_serves_the_next_of_its_name(common: Scene, bind: MakeBound) -> None:
    bound = await bind(settings={"provider": {"reconnect_interval": SELDOM}})
    with bound.program() as program:
        await served(bound, common.nodes[0], program=program)
        node = bound.vnode(common.nodes[0])
        await bound.hub.kubectl("delete", "clusterbinding", bound.name)
        await eventually(lambda: _gone(bound, node), "the virtual node went with its binding", every=0.2)
        await apply(bound.hub, bound.binding())
        await served(bound, common.nodes[0], program=program)


async def _gone(bound: Bound, node: str) -> bool:
    return await get(bound.hub, "node", node) is None
