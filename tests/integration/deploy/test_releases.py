"""The charts as releases of helm on a real API server: install, upgrade, rollback, uninstall, and install again.

Invariant: the control plane is only for this module, because the charts have objects that a cluster has once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bound import SYSTEM
from tests.support.installed import CHARTS, Helm
from tests.support.pages import Shell, block
from tests.support.program import KUBECTL_TIMEOUT, eventually
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import running

HUB, WORKER = "kubeocean", "kubeocean-worker"
POLICY = "resourceleasingpolicies.cloud.tencent.com"
ESTABLISHED = ("--for=condition=Established", KUBECTL_TIMEOUT)


@pytest.fixture(scope="module")
def plane(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    options = Options(scheduler=False, verify_kubelets=False, aggregation=False)
    with running(ControlPlane("releases", cluster_site, options=options), request) as made:
        yield made


async def names(plane: ControlPlane, kinds: str, *options: str) -> list[str]:
    return (await plane.kubectl("get", kinds, "--output=name", *options)).split()


async def deployment(plane: ControlPlane) -> dict[str, Any]:
    """The pod template's spec of the manager."""
    made = json.loads(await plane.kubectl("get", "deployment", "kubeocean-manager", "-n", SYSTEM, "--output=json"))
    spec: dict[str, Any] = made["spec"]["template"]["spec"]
    return spec


@pytest.mark.timeout(600)
async def test_the_worker_chart_is_upgraded_rolled_back_and_leaves_what_is_not_its_own(plane: ControlPlane, tmp_path: Path) -> None:
    helm, chart = Helm(plane, tmp_path), str(CHARTS / WORKER)
    notes = await helm("install", WORKER, chart)
    assert "kubectl apply --filename -" in notes and "networkPolicy.allowedCIDRs" in notes
    await plane.kubectl("wait", f"crd/{POLICY}", *ESTABLISHED)
    # What the notes print is a policy that the API server accepts.
    printed = notes.partition("<<EOF\n")[2].partition("  EOF")[0].replace("NAME", "demo")
    await plane.kubectl("apply", "--filename", "-", stdin="\n".join(line[2:] for line in printed.splitlines()))
    await plane.kubectl("create", "configmap", "of-a-pod", "-n", WORKER)

    await helm("upgrade", WORKER, chart, quota__enabled="true", quota__preset="small")
    assert await names(plane, "resourcequota", "-n", WORKER) == ["resourcequota/kubeocean"]
    await helm("rollback", WORKER, "1")
    assert await names(plane, "resourcequota", "-n", WORKER) == []

    await helm("uninstall", WORKER)
    assert await names(plane, POLICY) == [f"resourceleasingpolicy.{POLICY.partition('.')[2]}/demo"]
    assert "configmap/of-a-pod" in await names(plane, "configmap,networkpolicy", "-n", WORKER)
    assert "networkpolicy.networking.k8s.io/kubeocean" not in await names(plane, "networkpolicy", "-n", WORKER)
    # The release of the same name adopts what remained.
    await helm("install", WORKER, chart)
    assert await names(plane, "serviceaccount", "-n", WORKER, "--field-selector=metadata.name=kubeocean-syncer")
    # A release for another hub.
    shell = await Shell.of(tmp_path / "shell", {"worker": plane})
    await shell.run(block("lease/install.md", 2))
    assert await names(plane, "serviceaccount", "-n", "kubeocean-other", "--field-selector=metadata.name=kubeocean-syncer")


@pytest.mark.timeout(600)
async def test_the_hub_chart_takes_former_values_and_is_upgraded_and_rolled_back(plane: ControlPlane, tmp_path: Path) -> None:
    helm, chart = Helm(plane, tmp_path), str(CHARTS / HUB)
    image = {"image__repository": "registry.invalid/kubeocean", "image__tag": "v1"}
    notes = await helm("install", HUB, chart, "--set=manager.priorityClass=,image.pullSecrets={registry}", **image)
    assert "- manager.priorityClass: use manager.priorityClassName" in notes and "- image.pullSecrets: use imagePullSecrets" in notes
    spec = await deployment(plane)
    assert spec["imagePullSecrets"] == [{"name": "registry"}] and "priorityClassName" not in spec
    await plane.kubectl("create", "secret", "generic", "demo-kubeconfig", "-n", SYSTEM)

    notes = await helm("upgrade", HUB, chart, **{**image, "image__tag": "v2"})
    assert "former" not in notes
    spec = await deployment(plane)
    assert spec["priorityClassName"] == "system-cluster-critical" and spec["containers"][0]["image"].endswith(":v2")
    # The class exists, and the quota of the chart covers its pods.
    await eventually(lambda: created(plane), "a pod of the manager is created")

    shell = await Shell.of(tmp_path / "shell", {"hub": plane})
    await shell.run(block("operate/upgrade.md", 1))
    rolled_back = await deployment(plane)
    await shell.run(block("operate/dashboard.md", 1))
    assert "priorityClassName" not in rolled_back and rolled_back["containers"][0]["image"].endswith(":v1")
    await helm("uninstall", HUB)
    assert await names(plane, "secret", "-n", SYSTEM) == ["secret/demo-kubeconfig"], "helm's own records are in its namespace"
    assert "customresourcedefinition.apiextensions.k8s.io/clusterbindings.cloud.tencent.com" in await names(plane, "crd")


async def created(plane: ControlPlane) -> bool:
    pods = json.loads(await plane.kubectl("get", "pods", "-n", SYSTEM, "--output=json"))["items"]
    return any(pod["spec"].get("priorityClassName") == "system-cluster-critical" for pod in pods)
