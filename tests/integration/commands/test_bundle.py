"""What `kubeocean support-bundle` writes where something is missing, which is when people need it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kubeocean.commands.bundle import Bundle
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.output import Format
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, definition
from tests.faults.model.server import ApiModel
from tests.support.served_model import ServedModel, served
from vkubelet.api.codec import decode_yaml
from vkubelet.commands.clusters import Choice, CommandFailed
from vkubelet.commands.terminal import Terminal
from vkubelet.testing.clock import ManualClock

USER = "operator"


@asynccontextmanager
async def hub() -> AsyncIterator[ServedModel]:
    """A hub in which the chart was installed and nothing was bound yet."""
    model = ApiModel(now=ManualClock().now)
    model.define(decode_yaml(definition(CLUSTERBINDINGS)))
    model.apply(f"/api/v1/namespaces/{keys.NAMESPACE}", {"metadata": {"name": keys.NAMESPACE}}, user=USER)
    async with served(model) as made:
        yield made


async def bundle(api: ServedModel, folder: Path, *, name: str = "", worker: ServedModel | None = None) -> dict[str, str]:
    """The files of the archive, by name."""
    choice = Choice("computing cluster", "--kubeconfig", api.write_kubeconfig(folder / "kubeconfig", USER))
    there = Choice("worker cluster", "--worker-kubeconfig", worker.write_kubeconfig(folder / "worker", USER)) if worker else None
    doctor = Doctor(hub=choice, worker=there, binding=name, terminal=Terminal(io.StringIO()), output=Format.JSON)
    await Bundle(doctor, folder / "made.tar.gz").run()
    with tarfile.open(folder / "made.tar.gz") as archive:
        found = {entry.name: (archive.extractfile(entry) or io.BytesIO()).read().decode() for entry in archive}
    return {name.removeprefix("made/"): text for name, text in found.items()}


async def test_a_hub_without_bindings_gives_a_bundle(tmp_path: Path) -> None:
    async with hub() as api:
        files = await bundle(api, tmp_path)
    assert {"hub/nodes.json", "hub/deployments.json", "doctor.json", "status.json"} <= files.keys()


@pytest.mark.parametrize("resource", ["nodes", "clusterbindings"])
async def test_what_may_not_be_read_is_listed_and_does_not_prevent_the_bundle(tmp_path: Path, resource: str) -> None:
    async with hub() as api:
        path = "/apis/cloud.tencent.com/v1beta1/clusterbindings/demo"
        spec = {"clusterID": "demo", "mountNamespace": "mnt", "secretRef": {"name": "s", "namespace": keys.NAMESPACE}}
        api.model.apply(path, {"metadata": {"name": "demo"}, "spec": spec}, user=USER)
        api.refused[USER] = {resource}
        files = await bundle(api, tmp_path)
    assert resource in files["missing.txt"] and "hub/deployments.json" in files


async def test_pods_of_every_tenant_are_in_the_bundle(tmp_path: Path) -> None:
    worker = ApiModel(now=ManualClock().now)
    worker.define(decode_yaml(definition(POLICIES)))
    for space, labels in (("mnt", {}), ("mnt-red", {keys.TENANT_OF: "mnt"}), ("mnt-foreign", {})):
        worker.apply(f"/api/v1/namespaces/{space}", {"metadata": {"name": space, "labels": labels}}, user=USER)
        body = {"metadata": {"name": f"pod-{space}"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        worker.apply(f"/api/v1/namespaces/{space}/pods/pod-{space}", body, user=USER)
    async with hub() as api, served(worker) as there:
        path = "/apis/cloud.tencent.com/v1beta1/clusterbindings/demo"
        spec = {"clusterID": "demo", "mountNamespace": "mnt", "secretRef": {"name": "s", "namespace": keys.NAMESPACE}}
        api.model.apply(path, {"metadata": {"name": "demo"}, "spec": {**spec, "namespaceMapping": keys.PER_NAMESPACE}}, user=USER)
        api.model.apply("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system"}}, user=USER)
        files = await bundle(api, tmp_path, worker=there)
    names = [each["metadata"]["name"] for each in json.loads(files["worker-demo/pods.json"])]
    assert names == ["pod-mnt", "pod-mnt-red"], files["missing.txt"]


async def test_an_unknown_binding_is_named(tmp_path: Path) -> None:
    async with hub() as api:
        with pytest.raises(CommandFailed, match="has no ClusterBinding absent"):
            await bundle(api, tmp_path, name="absent")
