"""How the providers of this project are made ready for the suite.

Invariant: the settings are those of an ordinary process, but for ports that are free and a node address that is known.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from kubeocean.cli import runtime_defaults
from kubeocean.provider import KubeoceanProvider
from kubeocean.settings import KubeoceanSettings
from tests.integration.process.conftest import clear, remove_groups
from tests.support.bound import Bound, delete
from tests.support.simulated import all_ready, simulated_nodes
from vkubelet import settings
from vkubelet.settings import Settings
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.conformance import Kubectl, Subject
from vkubelet_providers.minimal import Minimal
from vkubelet_providers.mock import Mock
from vkubelet_providers.process import Process


def judge_of(plane: ControlPlane, cache: Path) -> Kubectl:
    """kubectl as the administrator of that cluster."""
    with closing(asyncio.new_event_loop()) as loop:
        program = loop.run_until_complete(plane.site.binaries.ensure(["kubectl"]))["kubectl"]
    return Kubectl(program=program, kubeconfig=plane.kubeconfig, cache=cache)


def runtime_settings(plane: ControlPlane, instance: str, **sections: Any) -> Settings:
    """Certificates are signed by the cluster where it verifies them."""
    certificate = {"approve_own_csr": True} if plane.options.verify_kubelets else {"certificate": "self-signed"}
    data = {
        "instance": instance,
        "server": {"node_address": plane.host_address, "main_port": 0, **certificate},
        "health": {"health_address": "", "metrics_address": ""},
        **sections,
    }
    return settings.convert(data, Settings)


def minimal(plane: ControlPlane, judge: Kubectl) -> Subject:
    made = runtime_settings(plane, "conformance-minimal")
    return Subject(make=lambda: Minimal(Minimal.Settings("c-minimal")), settings=made, kubeconfig=plane.kubeconfig, judge=judge)


def mock(plane: ControlPlane, judge: Kubectl) -> Subject:
    """Polled, so that it has every capability there is."""
    made = runtime_settings(plane, "conformance-mock")
    own = Mock.Settings(node="c-mock", poll_interval=0.5)
    return Subject(make=lambda: Mock(own), settings=made, kubeconfig=plane.kubeconfig, judge=judge)


@contextmanager
def process(plane: ControlPlane, judge: Kubectl, *, directory: Path) -> Iterator[Subject]:
    """With a directory and control groups of its own; pods are processes of this host."""
    directory.chmod(0o711)
    group = f"vkubelet-test-{uuid.uuid4().hex[:8]}"
    own = Process.Settings(node="c-process", address=plane.host_address, directory=str(directory), allow_root=True, cgroup=group)
    try:
        made = runtime_settings(plane, "conformance-process")
        yield Subject(make=lambda: Process(own), settings=made, kubeconfig=plane.kubeconfig, judge=judge)
    finally:
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(clear(own))
        remove_groups(own.cgroup)


@contextmanager
def kubeocean(hub: ControlPlane, worker: ControlPlane, *, directory: Path, judge: Kubectl) -> Iterator[Subject]:
    """A binding to a worker whose only leased node is one of our own runtime with the mock provider."""
    name, node = "conformance", "sim-conformance"
    stack = AsyncExitStack()
    with closing(asyncio.new_event_loop()) as loop:
        try:
            stack.enter_context(simulated_nodes(worker, node, nodes=1, directory=directory))
            stack.push_async_callback(worker.kubectl, "delete", "node", node, "--ignore-not-found", "--wait=false")
            terms = [{"matchExpressions": [{"key": "simulated", "operator": "In", "values": [node]}]}]
            spec = {"nodeSelector": {"nodeSelectorTerms": terms}}
            bound = Bound(hub=hub, worker=worker, name=name, directory=directory, spec=spec, shows_usage=True)
            stack.push_async_callback(_undo, bound)
            loop.run_until_complete(bound.install())
            loop.run_until_complete(all_ready(worker, [node]))
            yield Subject(
                make=lambda: KubeoceanProvider(KubeoceanSettings(binding=name)),
                settings=runtime_settings(hub, **runtime_defaults(name)),
                kubeconfig=hub.client_config(bound.user),
                judge=judge,
            )
        finally:
            loop.run_until_complete(stack.aclose())


async def _undo(bound: Bound) -> None:
    await bound.remove()
    await delete(bound.worker, "namespace", bound.mount, "--ignore-not-found", "--wait=false")
