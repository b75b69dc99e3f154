"""An independent hub, and workers whose agents join it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.api.resources import CLUSTERCLAIMS, MANAGEDCLUSTERS, definition
from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.support.ahead import Crowd, crowd_of
from tests.support.bound import established
from tests.support.peer import PeerHub
from tests.support.program import eventually
from vkubelet.api.objects import Resource, Unknown
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import run_apart, running

_numbers = itertools.count(1)


async def define(kinds: Sequence[tuple[ControlPlane, Resource[Unknown]]]) -> None:
    for cluster, resource in kinds:
        await cluster.kubectl("apply", "-f", "-", stdin=definition(resource))
        await eventually(partial(established, cluster, f"crd/{resource.plural}.{resource.group}"), f"{resource} is established")


@pytest.fixture(scope="package")
def worker(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """An API server of workers, independent of the hub; it signs certificates as a second hub."""
    options = Options(scheduler=False, aggregation=False)
    with running(ControlPlane("workers", cluster_site, options=options), request) as plane:
        run_apart(define([(plane, CLUSTERCLAIMS)]))
        yield plane


@pytest.fixture(scope="package")
def peer(fleet_hub: ControlPlane) -> Iterator[PeerHub]:
    made = PeerHub(fleet_hub)
    made.prepare()
    yield made
    made.close()


@pytest.fixture(scope="package")
def second_hub(worker: ControlPlane) -> Iterator[PeerHub]:
    """Another hub: the API server of the worker itself."""
    run_apart(define([(worker, MANAGEDCLUSTERS)]))
    made = PeerHub(worker)
    made.prepare()
    yield made
    made.close()


@asynccontextmanager
async def scenes(peer: PeerHub, worker: ControlPlane, site: Site, directory: Path) -> AsyncIterator[MakeScene]:
    """Makes workers, which are removed at the end."""
    made: list[AgentScene] = []

    async def make(*, bootstrap: str | None = None, without: Sequence[str] = (), **settings: Any) -> AgentScene:
        number = next(_numbers)
        found = AgentScene(worker, await worker.namespace("agent"), f"laptop-{number}", directory, site.free_port(), settings)
        await found.grant(without=without)
        if bootstrap != "":
            found.put_secret({"kubeconfig": bootstrap or peer.bootstrap()})
        made.append(found)
        return found

    yield make
    for each in made:
        peer.remove(each.cluster)
        await each.revoke()


@pytest.fixture
async def scene(peer: PeerHub, worker: ControlPlane, cluster_site: Site, tmp_path: Path) -> AsyncIterator[MakeScene]:
    """`await scene()`: a worker with a bootstrap Secret, unless that is empty, whose agent is not started."""
    async with scenes(peer, worker, cluster_site, tmp_path) as make:
        yield make


@pytest.fixture(scope="package")
def crowd(peer: PeerHub, worker: ControlPlane, cluster_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Tests that run side by side."""

    yield from crowd_of(
        {
            "scene": lambda: scenes(peer, worker, cluster_site, tmp_path_factory.mktemp("scene")),
            "tmp_path": lambda: nullcontext(tmp_path_factory.mktemp("ahead")),
        }
    )
