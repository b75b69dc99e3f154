"""What keeps a binding from being served is named in conditions and events, and mending it is enough."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import yaml
from kubernetes import client as k8s

from kubeocean.rbac import permissions
from tests.integration.manager.conftest import Computing, MakeBinding
from tests.support.program import eventually, holds
from vkubelet.api.codec import decode_yaml

FAILED = ("False", "ConnectivityFailed")


async def test_missing_secret_and_missing_key_are_named_and_mending_them_is_enough(computing: Computing, bind: MakeBinding) -> None:
    """Line 17 of kubeocean-behaviour.md."""
    without, keyless = bind(secret=False), bind(secret=False, create=False)
    keyless.make_secret(key="config")
    keyless.create()
    for binding, text in ((without, "does not exist"), (keyless, "has nothing under the key `kubeconfig`")):
        await eventually(lambda binding=binding: binding.phase() == "Failed", f"{binding.body()}")
        assert binding.conditions()["Ready"] == binding.conditions()["Connected"] == FAILED
        assert text in binding.message("Ready") and "spec.secretRef" in binding.message("Ready")
        await eventually(lambda binding=binding: "ConnectivityFailed" in computing.events(binding.name), "event")
        assert binding.deployment() is None
    without.make_secret()
    await without.deployed()
    assert await eventually(lambda: without.conditions()["Connected"] == ("True", "ConnectivityPassed"), f"{without.body()}")


@asynccontextmanager
async def hanging_up() -> AsyncIterator[tuple[int, list[float]]]:
    """A server that hangs up on everybody, and when somebody came."""
    came: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()


def leading_to(computing: Computing, port: int) -> str:
    return computing.worker.kubeconfig.read_text().replace(f":{computing.worker.port}", f":{port}")


async def test_cluster_that_does_not_answer_is_told_and_asked_again_with_backoff(computing: Computing, bind: MakeBinding) -> None:
    """Line 18 of kubeocean-behaviour.md."""
    async with hanging_up() as (port, came):
        binding = bind(kubeconfig=leading_to(computing, port))
        await eventually(lambda: binding.phase() == "Failed", f"{binding.body()}")
        body = binding.body() or {}
        (told,) = [each["lastTransitionTime"] for each in body["status"]["conditions"] if each["type"] == "Connected"]
        assert datetime.fromisoformat(told) - datetime.fromisoformat(body["metadata"]["creationTimestamp"]) < timedelta(seconds=30)
        assert binding.conditions()["Ready"] == binding.conditions()["Connected"] == FAILED
        await eventually(lambda: "ConnectivityFailed" in computing.events(binding.name), "event")

        def waits() -> list[float]:
            return [later - earlier for earlier, later in zip(came, came[1:], strict=False) if later - earlier > 0.5]

        # It begins with a second, and goes up to the two after which everything is asked again; of that a tenth may be taken off.
        await eventually(lambda: sum(wait > 1.7 for wait in waits()) >= 2, f"asked again ever later: {came}")
    assert computing.events(binding.name).count("ConnectivityFailed") == 1


async def test_missing_rights_are_named_one_by_one_and_essential_ones_block_the_binding(computing: Computing, bind: MakeBinding) -> None:
    """By SelfSubjectAccessReviews."""
    binding = bind(secret=False)
    rbac = k8s.RbacAuthorizationV1Api(computing.worker_api)
    user, mount = f"weak-{binding.name}", binding.spec["mountNamespace"]
    roles = [body for body in permissions.worker_objects(mount, name=user) if "Role" in body["kind"]]
    for body in roles:
        if "subjects" in body:
            body["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
        for rule in body.get("rules", []):
            if rule["resources"] == ["pods"]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb != "create"]
            if "pods/log" in rule["resources"]:
                rule["verbs"] = ["list"]
        create(rbac, body)
    binding.make_secret(computing.worker.client_config(user).read_text())
    try:
        text = f"create pods in namespace {mount}, get pods/log in namespace {mount}"

        def lacks_two() -> None:
            """Once the worker has heard of the other rights, too."""
            assert binding.conditions().get("Permitted") == ("False", "RightsMissing"), binding.body()
            assert text in binding.message("Permitted") and binding.phase() == "Failed" and binding.deployment() is None

        await holds(lacks_two)
        # The first may be of a worker that has not heard of any rights yet; of many it names a few.
        lacking = f"create pods in namespace {mount}"
        await eventually(lambda: any(lacking in each for each in computing.messages(binding.name, "RightsMissing")), "event")
        role = rbac.read_namespaced_role(user, mount)
        next(rule for rule in role.rules if rule.resources == ["pods"]).verbs.append("create")
        rbac.replace_namespaced_role(user, mount, role)
        await binding.deployed()
        await eventually(lambda: "create pods in" not in binding.message("Permitted"), f"{binding.body()}")
        assert binding.conditions()["Permitted"] == ("False", "RightsMissing") and "get pods/log" in binding.message("Permitted")
    finally:
        for body in roles:
            if body["kind"] == "ClusterRole":
                rbac.delete_cluster_role(body["metadata"]["name"])
            elif body["kind"] == "ClusterRoleBinding":
                rbac.delete_cluster_role_binding(body["metadata"]["name"])


def create(rbac: k8s.RbacAuthorizationV1Api, body: dict[str, object]) -> None:
    calls = {
        "ClusterRole": rbac.create_cluster_role,
        "ClusterRoleBinding": rbac.create_cluster_role_binding,
        "Role": rbac.create_namespaced_role,
        "RoleBinding": rbac.create_namespaced_role_binding,
    }
    kind, metadata = str(body["kind"]), body["metadata"]
    assert isinstance(metadata, dict)
    namespace = metadata.get("namespace")
    calls[kind](namespace, body) if namespace else calls[kind](body)


async def test_mount_namespace_that_is_missing_or_belongs_to_another_is_refused(computing: Computing, bind: MakeBinding) -> None:
    missing, taken = bind(mount=False), bind(create=False)
    core = k8s.CoreV1Api(computing.worker_api)
    core.patch_namespace(taken.spec["mountNamespace"], {"metadata": {"annotations": {"kubeocean.io/mount-owner": "somebody-else"}}})
    taken.create()
    for binding, text in ((missing, "has no namespace"), (taken, "somebody-else")):
        await eventually(lambda binding=binding: binding.conditions().get("Ready") == ("False", "ValidationFailed"), f"{binding.body()}")
        assert text in binding.message("Ready") and "spec.mountNamespace" in binding.message("Ready")
        assert binding.conditions()["Stalled"] == ("True", "ValidationFailed") and binding.deployment() is None


async def test_kubeconfig_that_verifies_nobody_is_refused(computing: Computing, bind: MakeBinding) -> None:
    body = decode_yaml(computing.worker.kubeconfig.read_text())
    cluster = body["clusters"][0]["cluster"]
    cluster.pop("certificate-authority-data")
    cluster["insecure-skip-tls-verify"] = True
    refused = bind(kubeconfig=yaml.safe_dump(body))
    allowed = bind(kubeconfig=yaml.safe_dump(body), allowInsecureWorker=True)
    await eventually(lambda: refused.conditions().get("Ready") == ("False", "ValidationFailed"), f"{refused.body()}")
    await allowed.deployed()


async def test_a_worker_without_admission_policies_is_reported_as_not_guarded(bind: MakeBinding) -> None:
    binding = bind()
    await eventually(lambda: binding.conditions().get("Guarded") == ("False", "NotRefused"), f"{binding.body()}")
    assert "run privileged pods" in binding.message("Guarded") and "install the admission policies" in binding.message("Guarded")
