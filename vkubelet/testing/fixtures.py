"""pytest fixtures for tests that need a real cluster: `pytest_plugins = ["vkubelet.testing.fixtures"]`.

Invariant: a cluster is started for the first test that uses it, shared by the entire session, and removed afterwards, even if pytest is
killed.

The fixtures are synchronous and bound to no event loop, so tests of every type can use them. Tests share the clusters: each creates its own
namespaces, and removes cluster-scoped objects it created.
"""

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from vkubelet.testing.cluster import ControlPlane, MetricsServer, Options, Site, WorkerNode

T = TypeVar("T")
LOGS = Path(os.environ.get("VKUBELET_CLUSTER_LOGS") or "build/cluster-logs")
"""Below pytest's root; when several pytest processes run, each gets a separate one."""
SHOWS_USAGE = "usage=shown"
"""Label of the nodes that `metrics_server` scrapes."""


class Lasting(Protocol):
    """A site, a control plane or a node: it has a directory, and is started and stopped."""

    @property
    def directory(self) -> Path: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


Part = TypeVar("Part", bound=Lasting)


def run_apart(work: Coroutine[object, object, T]) -> T:
    """Runs a coroutine in a separate thread and loop, whatever the caller's thread does with its loop."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="clusters") as pool:
        return pool.submit(asyncio.run, work).result()


@contextmanager
def running(part: Part, request: pytest.FixtureRequest) -> Iterator[Part]:
    """Starts a part and stops it afterwards, also when the start failed halfway; after failed tests its logs are kept first."""
    with ExitStack() as stack:
        stack.callback(lambda: run_apart(part.stop()))
        run_apart(part.start())
        yield part
        if request.session.testsfailed:
            keep_logs(part.directory, request.config.rootpath / LOGS)


@pytest.fixture(scope="session")
def cluster_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Provides one run's directory, bridge and guard. After failed tests the logs of its clusters are kept in `LOGS`."""
    shutil.rmtree(request.config.rootpath / LOGS, ignore_errors=True)
    with running(Site(say=print), request) as site:
        yield site


@pytest.fixture(scope="session")
def hub(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Provides a full control plane; it verifies kubelet certificates with its CA. It serves aggregated APIs if a test has
    `metrics_server`."""
    options = Options(aggregation=any("metrics_server" in getattr(item, "fixturenames", ()) for item in request.session.items))
    with running(ControlPlane("hub", cluster_site, options=options), request) as plane:
        yield plane


@pytest.fixture(scope="session")
def worker(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Provides a second one, independent of `hub`: other CA, other service range. It serves no aggregated APIs."""
    with running(ControlPlane("worker", cluster_site, options=Options(aggregation=False)), request) as plane:
        yield plane


@pytest.fixture(scope="session")
def worker_node(worker: ControlPlane, request: pytest.FixtureRequest) -> Iterator[WorkerNode]:
    """Provides a real node with containers in `worker`; needs root."""
    with running(WorkerNode("node-1", worker), request) as node:
        yield node


@pytest.fixture(scope="session")
def bare_hub(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Provides a control plane that does not verify kubelet certificates, without scheduler."""
    options = Options(scheduler=False, verify_kubelets=False, aggregation=False)
    with running(ControlPlane("bare", cluster_site, options=options), request) as plane:
        yield plane


@pytest.fixture(scope="session")
def metrics_server(hub: ControlPlane) -> Iterator[MetricsServer]:
    """Provides the real metrics-server for those Nodes of `hub` that have the label `SHOWS_USAGE`; it ignores all others of the session."""
    server = MetricsServer(hub, nodes=SHOWS_USAGE)
    with ExitStack() as stack:
        stack.callback(lambda: run_apart(server.stop()))
        run_apart(server.start())
        yield server


def keep_logs(part: Path, target: Path) -> None:
    """Copies every program's log of a running part: folders may be deleted during the copy."""
    for directory, _, files in os.walk(part):
        for log in (Path(directory) / name for name in files if directory.endswith("/log") and name.endswith(".log")):
            copy = target / part.name / log.relative_to(part)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, copy)
