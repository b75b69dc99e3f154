"""One binding of a real worker node, served by one kubeocean process, for all end-to-end tests.

Invariant: tests share the process and never stop it; each makes a namespace of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bound import CLUSTER_BINDING, Bound, items
from tests.support.environments import HOST_FILE
from tests.support.process_node import ProcessNode, telling_as
from tests.support.program import Program
from tests.support.simulated import all_ready
from vkubelet.settings import merged
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.fixtures import run_apart

SHARED = "e2e"
"""The binding of all tests."""


@pytest.fixture(scope="module", autouse=True)
def no_node_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A module removes the Nodes that it makes in the hub: pods of the next one would be scheduled to them, and never run."""
    mine = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    if not any("hub" in getattr(item, "fixturenames", ()) for item in mine):
        yield
        return
    hub: ControlPlane = request.getfixturevalue("hub")
    yield
    nodes = [node["metadata"] for node in run_apart(items(hub, "nodes"))]
    assert not [node["name"] for node in nodes if node.get("labels", {}).get(CLUSTER_BINDING) != SHARED]


@pytest.fixture(scope="session")
def leased(served: tuple[Bound, Program]) -> Bound:
    """The binding `SHARED`: its virtual node of the real worker node is Ready."""
    return served[0]


@pytest.fixture(scope="session")
def served(
    hub: ControlPlane, worker: ControlPlane, worker_node: WorkerNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Bound, Program]]:
    """The binding and the process that serves it."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [worker_node.name]}]}
    bound = Bound(
        hub=hub,
        worker=worker,
        name=SHARED,
        directory=tmp_path_factory.mktemp("e2e"),
        spec={"nodeSelector": {"nodeSelectorTerms": [term]}},
        settings={"provider": {"pod_network_probe_interval": 2.0}},
        shows_usage=True,
    )
    run_apart(bound.install())
    with bound.served(worker_node.name) as program:
        yield bound, program


@pytest.fixture(scope="session")
def process_node(worker: ControlPlane, worker_node: WorkerNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessNode]:
    """A node beside the real one whose pods are processes of this machine; they may be root."""
    settings = merged(run_apart(telling_as(worker_node)), {"provider": {"host_paths": [HOST_FILE]}})
    node = ProcessNode("process-1", worker, tmp_path_factory.mktemp("process-node"), settings)
    program = node.program()
    try:
        with program:
            try:
                run_apart(all_ready(worker, [node.name]))
            except AssertionError as error:
                raise AssertionError(f"{error}\n{program.tail(60)}") from None
            yield node
            run_apart(node.emptied())
    finally:
        run_apart(node.removed())
