"""The generated roles, judged by the RBAC of two real clusters: they are enough, each verb of them counts, and nothing is beyond them.

That everything works with exactly these roles is shown in test_bind.py, by
`test_bound_by_the_command_everything_works_with_these_rights_alone`, and by every other scene here, whose processes have the roles of
`deploy/samples`, which are made of the same rules.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from attrs import frozen

from kubeocean.rbac.permissions import (
    hub_objects,
    hub_rules,
    manager_objects,
    manager_rules,
    worker_checks,
    worker_objects,
)
from tests.support.bound import FAKE, SYSTEM, Body, apply, delete, roles_for
from tests.support.program import holds
from vkubelet.api.rbac import Check, checks_of
from vkubelet.client.connection import Connection, load_connection
from vkubelet.client.rest import Client
from vkubelet.control.rights import lacking_rights
from vkubelet.testing.cluster import ControlPlane

RBAC = "rbac.authorization.k8s.io"
_numbers = itertools.count(1)


@frozen(kw_only=True)
class Ground:
    """A cluster, and the rights that are to be had there one by one."""

    plane: ControlPlane
    name: str
    checks: Sequence[Check]
    of: str
    """Whose rights they are: `worker`, `hub` or `manager`."""

    def group(self, at: int) -> str:
        """Whoever is in it has the right at this place, and no other by it."""
        return f"{self.name}-{at}"

    async def connection(self, user: str, groups: Sequence[str] = ()) -> Connection:
        return await load_connection(kubeconfig=self.plane.client_config(user, groups))

    async def lacks(self, user: str, groups: Sequence[str], *, of: str = "") -> list[str]:
        """What our own question finds missing, as it is told; only among the rights on one resource, if it is named."""
        checks = [check for check in self.checks if of in ("", check.resource)]
        async with Client(await self.connection(user, groups)) as client:
            return [str(check) for check in await lacking_rights(client, checks)]


def single_rights(ground: Ground) -> list[Body]:
    """A role for each right alone, bound to its own group."""
    out: list[Body] = []
    for at, check in enumerate(ground.checks):
        what = f"{check.resource}/{check.subresource}" if check.subresource else check.resource
        rule: Body = {"apiGroups": [check.group], "resources": [what], "verbs": [check.verb]}
        if check.name:
            rule["resourceNames"] = [check.name]
        kind = "Role" if check.namespace else "ClusterRole"
        metadata: Body = {"name": ground.group(at), "labels": {"test": ground.name}}
        if check.namespace:
            metadata["namespace"] = check.namespace
        subject = {"apiGroup": RBAC, "kind": "Group", "name": ground.group(at)}
        role_ref = {"apiGroup": RBAC, "kind": kind, "name": ground.group(at)}
        out.append({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": [rule]})
        out.append({"apiVersion": f"{RBAC}/v1", "kind": f"{kind}Binding", "metadata": metadata, "roleRef": role_ref, "subjects": [subject]})
    return out


def manager_checks() -> list[Check]:
    """What the manager may do beside that which it grants."""
    granted = checks_of(hub_rules())
    return [check for check in checks_of(manager_rules()) if check not in granted]


RIGHTS: dict[str, Callable[[str], Sequence[Check]]] = {
    "worker": lambda name: worker_checks(name, metrics=True, policy_label=True),
    "hub": lambda name: checks_of(hub_rules(binding=name)),
    "manager": lambda name: manager_checks(),
}
OBJECTS: dict[str, Callable[[str], Sequence[Body]]] = {
    "worker": lambda name: worker_objects(name, metrics=True, policy_label=True),
    "hub": lambda name: hub_objects(binding=name),
    "manager": lambda name: manager_objects(),
}


@pytest.fixture
async def ground(request: pytest.FixtureRequest, hub: ControlPlane, worker: ControlPlane) -> AsyncIterator[Ground]:
    """In the cluster that the parameter names."""
    number = next(_numbers)
    name = f"rights-{number}"
    plane, checks = (worker if request.param == "worker" else hub), RIGHTS[request.param](name)
    made = Ground(plane=plane, name=name, checks=checks, of=request.param)
    spaces = [name] if plane is worker else [SYSTEM, FAKE]
    await apply(plane, *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in spaces))
    yield made
    kinds = "clusterroles,clusterrolebindings"
    await delete(plane, kinds, "-l", f"test={name}", "--wait=false")
    for space in {check.namespace for check in checks if check.namespace}:
        await delete(plane, "roles,rolebindings", "-n", space, "-l", f"test={name}", "--wait=false")
    if plane is worker:
        await delete(plane, "namespace", name, "--wait=false")


@pytest.mark.parametrize("ground", ["worker", "hub", "manager"], indirect=True)
async def test_each_verb_taken_away_is_found_missing_by_its_name_and_no_other_is(ground: Ground) -> None:
    await apply(ground.plane, *single_rights(ground))
    every = [ground.group(at) for at in range(len(ground.checks))]
    await has_all(ground, f"all-{ground.name}", every)
    for at, check in enumerate(ground.checks):
        others = [group for group in every if group != ground.group(at)]
        assert await ground.lacks(f"without-{at}-{ground.name}", others, of=check.resource) == [str(check)]


@pytest.mark.parametrize("ground", ["worker", "hub", "manager"], indirect=True)
async def test_the_roles_as_they_are_applied_grant_all_of_it_and_a_stranger_has_none(ground: Ground) -> None:
    user = f"user-{ground.name}"
    await apply(ground.plane, *for_user(OBJECTS[ground.of](ground.name), user, ground.name))
    await has_all(ground, user)
    stranger = await ground.lacks(f"stranger-{ground.name}", [])
    assert stranger == [str(check) for check in ground.checks]


async def has_all(ground: Ground, user: str, groups: Sequence[str] = (), *, of: str = "") -> None:
    """Wait until nothing is missing: who decides about rights follows a watch of its own."""

    async def nothing_missing() -> None:
        assert await ground.lacks(user, groups, of=of) == []

    await holds(nothing_missing)


def for_user(objects: Sequence[Body], user: str, test: str) -> list[Body]:
    """Roles and bindings of these objects, under names of the test, for a user in the place of the ServiceAccount."""
    out = []
    for body in objects:
        if "rules" not in body and "roleRef" not in body:
            continue
        body = {**body, "metadata": {**body["metadata"], "name": f"{body['metadata']['name']}-{test}", "labels": {"test": test}}}
        if "roleRef" in body:
            own = body["roleRef"]["name"].startswith("kubeocean")
            body["roleRef"] = {**body["roleRef"], "name": body["roleRef"]["name"] + (f"-{test}" if own else "")}
            body["subjects"] = [{"apiGroup": RBAC, "kind": "User", "name": user}]
        out.append(body)
    return out


BEYOND: dict[str, Any] = {
    "worker": [
        ("get", "secrets", "", "kube-system"),
        ("list", "secrets", "", ""),
        ("create", "pods", "", "default"),
        ("create", "pods", "exec", "default"),
        ("get", "pods", "log", "default"),
        ("delete", "nodes", "", ""),
        ("patch", "nodes", "", ""),
        ("get", "nodes", "proxy", ""),
        ("create", "namespaces", "", ""),
        ("delete", "namespaces", "", "MOUNT"),
        ("create", "serviceaccounts", "token", "MOUNT"),
        ("create", "rolebindings", "", "MOUNT"),
        ("impersonate", "users", "", ""),
    ],
    "hub": [
        ("create", "pods", "", "default"),
        ("create", "pods", "exec", "default"),
        ("get", "nodes", "proxy", ""),
        ("delete", "secrets", "", "default"),
        ("create", "secrets", "", "kube-system"),
        ("update", "leases", "", "kube-system"),
        ("delete", "namespaces", "", ""),
        ("create", "clusterrolebindings", "", ""),
        ("impersonate", "users", "", ""),
    ],
}


@pytest.mark.parametrize("ground", ["worker", "hub"], indirect=True)
async def test_an_identity_may_nothing_beyond_its_roles(ground: Ground, worker: ControlPlane) -> None:
    """Asked with the roles of the samples."""
    where = "worker" if ground.plane is worker else "hub"
    user = f"narrow-{ground.name}"
    roles = roles_for(user, f"{where}-rbac.yaml", name=ground.name, namespaces={"kubeocean-worker": ground.name})
    for role in roles:
        role["metadata"]["labels"] = {"test": ground.name}
    await apply(ground.plane, *roles)
    await has_all(ground, user, of="pods")
    beyond = [
        Check(group=_group(resource), resource=resource, subresource=sub, verb=verb, namespace=space.replace("MOUNT", ground.name))
        for verb, resource, sub, space in BEYOND[where]
    ]
    async with Client(await ground.connection(user)) as client:
        assert list(await lacking_rights(client, beyond)) == beyond
        other = Check(group="cloud.tencent.com", resource="clusterbindings", subresource="", verb="delete", namespace="")
        assert list(await lacking_rights(client, [other])) == [other]


def _group(resource: str) -> str:
    return {"rolebindings": RBAC, "clusterrolebindings": RBAC, "leases": "coordination.k8s.io"}.get(resource, "")
