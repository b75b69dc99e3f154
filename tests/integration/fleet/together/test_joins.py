"""Our hub and our agent together: a worker behind NAT joins with the printed line, is denied, accepted again, and leaves."""

from __future__ import annotations

import re

from tests.integration.fleet.player import (
    CLUSTERS,
    CSRS,
    RBAC,
    Body,
    Caller,
    accept,
    addon,
    addons,
    answers,
    approve,
    conditions,
    gone,
    lease,
    work,
    works,
)
from tests.integration.fleet.together.scene import Fleet, Laptop
from tests.support.ahead import ahead
from tests.support.audit import Audit
from tests.support.program import Program, eventually

JOINED = {
    "HubAcceptedManagedCluster": "True",
    "ManagedClusterJoined": "True",
    "ManagedClusterConditionAvailable": "True",
}
CONSENT_SECONDS = 15.0
DENIAL_SECONDS = 5.0
GROUP = "/apis/cluster.kubernetes-fleet.io/v1beta1"


async def status_of(owner: Caller, name: str) -> dict[str, str]:
    return {type_: status for type_, (status, _) in conditions(await owner.get(f"{CLUSTERS}/{name}")).items()}


async def has_joined(owner: Caller, name: str, *programs: Program, seconds: float = CONSENT_SECONDS) -> None:
    """Waits for the three conditions."""

    async def check() -> bool:
        found = await status_of(owner, name)
        return found.items() >= JOINED.items()

    try:
        await eventually(check, f"{name} has joined", seconds=seconds)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(each.tail() for each in programs)])) from error


async def request_of(owner: Caller, name: str) -> str:
    """Waits for a request of a worker that is not decided; its name."""

    async def found() -> str:
        listed = await owner.items(f"{CSRS}?labelSelector=open-cluster-management.io/cluster-name={name}")
        return next((str(each["metadata"]["name"]) for each in listed if not (each.get("status") or {}).get("conditions")), "")

    return str(await eventually(found, f"a request of {name}"))


async def everything(fleet: Fleet) -> str:
    """All objects of the hub, of every kind that can be listed."""
    kinds = (await fleet.hub.kubectl("api-resources", "--verbs=list", "-o", "name")).split()
    # These are aliases of others, or derived.
    listed = ",".join(each for each in kinds if each not in ("componentstatuses", "events.events.k8s.io"))
    return await fleet.hub.kubectl("get", listed, "--all-namespaces", "-o", "json")


async def names_of(owner: Caller, name: str) -> list[str]:
    """Paths of what names a cluster on the hub, but its namespace and the requests that its agent posted."""
    paths = (
        *(f"{RBAC}/{each}" for each in ("clusterroles", "clusterrolebindings", "roles", "rolebindings")),
        "/apis/coordination.k8s.io/v1/leases",
        "/apis/multicluster.x-k8s.io/v1alpha1/clusterprofiles",
        *(f"{GROUP}/{each}" for each in ("memberclusters", "internalmemberclusters")),
        "/apis/work.open-cluster-management.io/v1/manifestworks",
        "/apis/addon.open-cluster-management.io/v1alpha1/managedclusteraddons",
        CLUSTERS,
    )

    def names(body: Body) -> bool:
        metadata = body["metadata"]
        of_cluster = re.search(rf"(^|[:-]){name}($|:)", metadata["name"])
        return of_cluster is not None or metadata.get("namespace", "") in (name, f"fleet-member-{name}")

    return [f"{path}/{each['metadata']['name']}" for path in paths for each in await owner.items(path) if names(each)]


async def test_f_107_a_worker_behind_nat_joins_within_15_s_of_consent(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    # F-2, F-12, F-13, F-14, F-16, F-55, F-154, F-156, F-157
    name = laptop.name
    with laptop.joining() as join, await laptop.agent(join) as agent:
        await eventually(lambda: f"on the hub run: fleet accept {name}" in join.text(), "unapproved", by=[join, agent])
        assert "ManagedClusterJoined" not in await status_of(owner, name)
        await fleet.done("accept", name, "--yes")
        await has_joined(owner, name, join, agent, fleet.process)
        await eventually(lambda: not join.alive, "the line ends", by=[join])
        assert join.process.poll() == 0 and f"cluster {name} joined the hub" in join.text()

        await no_secret_of(laptop, await everything(fleet))
        for host in ("127.0.0.1", fleet.worker.host_address):
            assert not await fleet.hub.can_dial(host, fleet.worker.port)

        issued = await laptop.issued()
        assert await issued.own.status_of("GET", lease(name)) == 200
        await fleet.done("deny", name, "--yes")

        async def refused() -> bool:
            return await issued.own.status_of("GET", lease(name)) == 403

        await eventually(refused, f"the certificate of {name} has no rights", seconds=DENIAL_SECONDS)
        assert await issued.own.status_of("GET", f"{CLUSTERS}/{name}") == 200
        await fleet.done("accept", name, "--yes")
        await answers(issued, "GET", lease(name), 200)
        await eventually(lambda: agent.text().count(f"the hub accepts cluster {name}") == 2, "the agent goes on")
        await has_joined(owner, name, agent, fleet.process)

        deleting = [Audit(fleet.hub, user) for user in ("fresh-admin", "system:serviceaccount:fleet-system:fleet-hub")]
        await owner.create(addons(name), addon(name, "a"))
        await owner.create(works(name), work(name, "w"))
        left = await fleet.done("leave", name, "--yes")
        assert f"Namespace {name} stays" in left and await owner.get(f"{CLUSTERS}/{name}") is None
        await eventually(lambda: f"no ManagedCluster {name} any more" in agent.text(), "the agent reports it", by=[agent])
    await nothing_left(owner, name)
    deletions = [call for audit in deleting for call in audit.calls() if call.verb == "delete"]
    assert {f"managedclusters {name}", "manifestworks w"} <= {f"{call.what} {call.name}" for call in deletions}
    assert not [str(call) for call in deletions if not call.body.get("preconditions", {}).get("uid")]
    here = await laptop.run("leave", "--here", *laptop.here)
    assert here.code == 0 and f"Namespace {laptop.namespace} stays" in here.stdout.decode(), here.stderr
    # What `fleet init` grants is enough.
    assert fleet.process.alive and not [each for each in fleet.process.messages() if "forbidden" in str(each).lower()]


async def no_secret_of(laptop: Laptop, objects: str) -> None:
    """No object of the hub has the key of the worker, or the token of its agent."""
    entries = await laptop.secret()
    key = [line for line in entries["tls.key"].decode().splitlines() if line and "-----" not in line]
    token = next(line.split()[-1] for line in (laptop.directory / "agent.kubeconfig").read_text().splitlines() if "token:" in line)
    assert len(key) >= 2 and len(token) > 100 and laptop.name in objects
    assert not [text for text in (*key, token) if text in objects]


async def nothing_left(owner: Caller, name: str) -> None:
    """No object of ours names a removed cluster but its namespace, which is not being deleted."""

    async def removed() -> bool:
        return not await names_of(owner, name)

    try:
        await eventually(removed, f"all of {name} is removed")
    except AssertionError as error:
        raise AssertionError(f"{error}: {await names_of(owner, name)}") from error
    assert (await owner.call("GET", f"/api/v1/namespaces/{name}"))["status"]["phase"] == "Active"


@ahead("laptop")
async def test_f_107_the_hub_may_accept_before_it_approves(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    # F-156: its agent is gone for ever when it leaves.
    name = laptop.name
    with laptop.joining() as join, await laptop.agent(join) as agent:
        request = await request_of(owner, name)
        await accept(owner, name)
        await approve(owner, request)
        await has_joined(owner, name, join, agent, fleet.process)
    await owner.create(works(name), work(name, "w", finalizers=["tests/held"]))
    ran = await fleet.on_hub("leave", name, "--yes", "--timeout", "2")
    assert ran.code == 1 and f"fleet leave {name} --force-after" in ran.stderr and "1 ManifestWorks" in ran.stderr
    await fleet.done("leave", name, "--yes", "--force-after", "1")
    await gone(owner, works(name, "w"))
    await nothing_left(owner, name)


@ahead("laptop")
async def test_f_26_a_worker_that_left_joins_again_by_the_same_line(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    # F-16
    name = laptop.name
    for _ in range(2):
        with laptop.joining() as join, await laptop.agent(join) as agent:
            await request_of(owner, name)
            await fleet.done("accept", name, "--yes")
            await has_joined(owner, name, join, agent, fleet.process)
        await owner.delete(f"{CLUSTERS}/{name}")
        await gone(owner, f"{CLUSTERS}/{name}")
        assert (await laptop.run("leave", "--here", *laptop.here)).code == 0


async def test_f_153_namespaces_of_a_set_are_made_in_its_clusters(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    # F-51: the one that is not prescribed any more stays. Agents of other clusters would take the labels of these away: it runs alone.
    name, sets = laptop.name, "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"
    spaces = [f"{name}-a", f"{name}-b"]
    spec = {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"}, "managedNamespaces": [{"name": each} for each in spaces]}
    kind = {"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": "ManagedClusterSet"}
    await owner.create(sets, {**kind, "metadata": {"name": name}, "spec": spec})
    await laptop.worker.kubectl("create", "namespace", spaces[1])
    with laptop.joining() as join, await laptop.agent(join) as agent:
        await request_of(owner, name)
        await fleet.done("accept", name, "--yes")
        await has_joined(owner, name, join, agent, fleet.process)
        await owner.merge(f"{CLUSTERS}/{name}", {"metadata": {"labels": {"cluster.open-cluster-management.io/clusterset": name}}})

        async def reported() -> dict[str, tuple[str, str]]:
            found = (await owner.call("GET", f"{CLUSTERS}/{name}"))["status"].get("managedNamespaces") or ()
            return {each["name"]: conditions({"status": each}).get("NamespaceAvailable", ("", "")) for each in found}

        async def applied() -> bool:
            return await reported() == dict.fromkeys(spaces, ("True", "NamespaceApplied"))

        await eventually(applied, "the namespaces are reported", by=[agent])
        (label,) = [
            each
            for each in (await laptop.namespace_of(spaces[0]))["metadata"]["labels"]
            if each.startswith("clusterset.open-cluster-management.io/")
        ]
        assert (await laptop.namespace_of(spaces[1]))["metadata"]["labels"][label] == "true"
        await owner.merge(f"{sets}/{name}", {"spec": {"managedNamespaces": [{"name": spaces[0]}]}})

        async def released() -> bool:
            return label not in (await laptop.namespace_of(spaces[1]))["metadata"]["labels"]

        await eventually(released, "the label is removed", every=0.5, by=[agent])
        assert (await laptop.namespace_of(spaces[1]))["status"]["phase"] == "Active"
        assert (await reported()).keys() == {spaces[0]}
    await owner.delete(f"{CLUSTERS}/{name}")
    await owner.delete(f"{sets}/{name}")
