"""Pods that use each field of the API once: each arrives in the worker with that field, or the user reads why it does not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from kubernetes import client as k8s

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.support.bound import apply, delete
from tests.support.core import Body
from tests.support.pod_schema import NAME, Field, PodSchema
from tests.support.program import LONG, eventually
from tests.support.stage import Stage, physical_name, uid_of, virtual_uid

T = TypeVar("T")
AT_ONCE = 16
"""Requests of the test."""
LEAST = 500
"""Fields that API servers of all versions accept."""
NOT_ACCEPTED = (
    r"^schedulingGates\[\]",  # Not in a pod that has a node.
    r"^resources\.claims\[\]",
    r"readinessProbe\.terminationGracePeriodSeconds$",
    r"volumeClaimTemplate\.metadata\.(?!labels$|annotations$)",
    # What a version has no code for, or has it disabled.
    r"fileKeyRef\.|stopSignal$|restartPolicyRules\[\]|^containers\[\]\.restartPolicy$|^hostnameOverride$",
    r"^volumes\[\]\.image\.|clusterTrustBundle\.|podCertificate\.|dataSourceRef\.namespace$",
)
"""Fields that the API server of the hub may refuse or drop with every value."""
RENAMED = (
    r"(configMapKeyRef|secretKeyRef|configMapRef|secretRef|nodePublishSecretRef|imagePullSecrets\[\])\.name$",
    r"^volumes\[\]\.(projected\.sources\[\]\.)?(configMap|secret)\.name$",
    r"^volumes\[\]\.(azureFile|secret)\.secretName$",
)
"""References to objects, which are those of the copies."""
REPLACED = (
    r"^(affinity|nodeSelector|topologySpreadConstraints|schedulerName|readinessGates|overhead)\b",  # The hub has evaluated them.
    r"^(automountServiceAccountToken|enableServiceLinks|priority|priorityClassName|setHostnameAsFQDN|subdomain)$",
    r"fieldRef\.fieldPath$",  # Of the virtual pod, by annotations.
    r"serviceAccountToken\.",  # Tokens of the hub, in a Secret.
)
"""Fields that mean something else in the worker, and are translated or dropped."""
REFUSED: Mapping[str, str] = {
    r"(^resourceClaims|resources\.claims)\[\]": "spec.resourceClaims: this reference is not supported on virtual nodes",
    r"windowsOptions\.gmsaCredentialSpec|cephfs\.secretFile$": "this reference is not supported on virtual nodes; remove it",
    r"^volumes\[\]\.(flocker|glusterfs|photonPersistentDisk|quobyte|scaleIO|storageos)\.": "this volume type is not supported",
    r"^volumes\[\]\.persistentVolumeClaim\.|volumeDevices\[\]": f"/{NAME} does not exist; create it",
    r"^volumes\[\]\.ephemeral\.": "is not bound to a volume yet",
}
"""Fields with which a pod does not start, and what its user reads."""


def matches(field: Field, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, str(field)) for pattern in patterns)


@pytest.mark.timeout(300)
async def test_each_field_of_a_pod_arrives_or_its_user_reads_why_not(scene: MakeScene) -> None:
    made = await scene()
    pid = made.program.process.pid
    stage = await Stage.of(made.bound, made.nodes)
    async with _referred_to(made, stage):
        bodies = await _bodies(stage)
        names = {f"p{number}": field for number, field in enumerate(bodies)}
        created = dict(zip(names, await _some(_create(stage, name, bodies[field]) for name, field in names.items()), strict=True))
        below, read = await _settled(made, stage, created)
    problems: list[str] = []
    for name, field in names.items():
        physical = below.get(uid_of(created[name]))
        problems += _refusal(field, read.get(name, "")) if physical is None else _arrival(field, created[name], physical)
    assert not problems, "\n".join(problems)
    assert made.program.alive and made.program.process.pid == pid
    assert not [line for line in made.program.messages() if line["level"] == "ERROR"]


def _refusal(field: Field, message: str) -> list[str]:
    expected = [text for pattern, text in REFUSED.items() if re.search(pattern, str(field))]
    return [] if any(text in message for text in expected) else [f"{field}: refused: {message}"]


def _arrival(field: Field, virtual: Body, physical: Body) -> list[str]:
    """The problem of a field whose pod is in the worker."""
    wanted, found = field.values(virtual["spec"])[0], field.values(physical["spec"])
    if matches(field, REFUSED):
        return [f"{field}: the pod was created in the worker"]
    if matches(field, RENAMED):
        name = physical_name(virtual["metadata"]["namespace"], wanted)
        return [] if name in found and wanted not in found else [f"{field}: {wanted} has to be {name}: {found}"]
    return [] if wanted in found or matches(field, REPLACED) else [f"{field}: {wanted!r} became {found}"]


@asynccontextmanager
async def _referred_to(made: Scene, stage: Stage) -> AsyncIterator[None]:
    """What pods refer to by `NAME`."""
    for kind in ("configmaps", "secrets"):
        await stage.home.create(kind, {"metadata": {"name": NAME, "namespace": stage.namespace}, "data": {NAME: "dg=="}})
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": NAME}, "handler": "runc"}
    try:
        for cluster in (made.bound.hub, made.bound.worker):
            await apply(cluster, {**runtime, "overhead": {"podFixed": {"cpu": "1"}}})
        yield
    finally:
        for cluster in (made.bound.hub, made.bound.worker):
            await delete(cluster, "runtimeclass", NAME)


async def _bodies(stage: Stage) -> dict[Field, Body]:
    """A pod for each field that the hub accepts."""
    schema = PodSchema.of(await stage.home.document())
    fields = schema.fields()
    found = dict(zip(fields, await _some(_accepted(stage, schema, field) for field in fields), strict=True))
    unused = [str(field) for field, body in found.items() if body is None and not matches(field, NOT_ACCEPTED)]
    assert not unused, f"the hub accepts none of these values: {unused}"
    accepted = {field: body for field, body in found.items() if body is not None}
    print(f"\n{len(accepted)} of {len(fields)} fields")
    assert len(accepted) >= LEAST
    return accepted


async def _accepted(stage: Stage, schema: PodSchema, field: Field) -> Body | None:
    """The first pod with the field that the hub's API server accepts and keeps."""
    for spec in schema.specs(field):
        spec |= {"nodeName": stage.vnode, "tolerations": [*spec.get("tolerations", []), {"operator": "Exists"}]}
        body = {"metadata": {"name": "p", "namespace": stage.namespace}, "spec": {"terminationGracePeriodSeconds": 0, **spec}}
        try:
            kept = await stage.home.create("pods", body, dry_run=True)
        except k8s.ApiException as error:
            if error.status not in (400, 403, 422):
                raise
            continue
        if field.values(kept["spec"]):
            return body
    return None


async def _create(stage: Stage, name: str, body: Body) -> Body:
    return await stage.home.create("pods", {**body, "metadata": {**body["metadata"], "name": name}})


async def _settled(made: Scene, stage: Stage, created: Mapping[str, Body]) -> tuple[dict[str, Body], dict[str, str]]:
    """The physical pods by the UID of their virtual pods, and what users read about the pods that have none."""
    below: dict[str, Body] = {}
    read: dict[str, str] = {}

    async def done() -> bool:
        below.update({virtual_uid(body): body for body in await stage.there.list("pods", made.bound.mount)})
        read.update(await _messages(stage))
        return all(uid_of(body) in below or name in read for name, body in created.items())

    await eventually(done, "each pod is in the worker, or has a message", seconds=LONG, every=1.0, by=[made.program])
    return below, read


async def _messages(stage: Stage) -> dict[str, str]:
    """What a user reads about each pod."""
    found: dict[str, str] = {}
    for body in await stage.home.list("pods", stage.namespace):
        status = body["status"]
        waiting = [each["state"].get("waiting", {}).get("message", "") for each in status.get("containerStatuses", ())]
        if message := status.get("message") or next(filter(None, waiting), ""):
            found[body["metadata"]["name"]] = message
    for event in await stage.home.list("events", stage.namespace, fields="type=Warning"):
        found.setdefault(event["involvedObject"]["name"], event["message"])
    return found


async def _some(tasks: Iterable[Awaitable[T]]) -> Sequence[T]:
    """Awaits all, `AT_ONCE` at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(task: Awaitable[T]) -> T:
        async with gate:
            return await task

    return await asyncio.gather(*(one(task) for task in tasks))
