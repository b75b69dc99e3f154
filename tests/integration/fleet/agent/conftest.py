"""An independent hub, and workers whose agents join it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.api.resources import CLUSTERCLAIMS, INTERNALMEMBERCLUSTERS, MANAGEDCLUSTERS, definition
from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.support.bound import established
from tests.support.peer import PeerHub
from tests.support.program import eventually
from vkubelet.api.objects import Resource, Unknown
from vkubelet.testing.cluster import ControlPlane, Site
from vkubelet.testing.fixtures import run_apart

_numbers = itertools.count(1)


async def define(kinds: Sequence[tuple[ControlPlane, Resource[Unknown]]]) -> None:
    for cluster, resource in kinds:
        await cluster.kubectl("apply", "-f", "-", stdin=definition(resource))
        await eventually(partial(established, cluster, f"crd/{resource.plural}.{resource.group}"), f"{resource} is established")


@pytest.fixture(scope="session")
def peer(hub: ControlPlane, worker: ControlPlane) -> Iterator[PeerHub]:
    kinds = [(hub, MANAGEDCLUSTERS), (hub, INTERNALMEMBERCLUSTERS), (worker, CLUSTERCLAIMS)]
    run_apart(define(kinds))
    made = PeerHub(hub)
    made.prepare()
    yield made
    made.close()
    for cluster, resource in kinds:
        run_apart(cluster.kubectl("delete", "crd", f"{resource.plural}.{resource.group}", "--wait=false"))


@pytest.fixture
def second_hub(peer: PeerHub, worker: ControlPlane) -> Iterator[PeerHub]:
    """Another hub: the API server of the worker itself."""
    run_apart(define([(worker, MANAGEDCLUSTERS)]))
    made = PeerHub(worker)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
async def scene(peer: PeerHub, worker: ControlPlane, cluster_site: Site, tmp_path: Path) -> AsyncIterator[MakeScene]:
    """`await scene()`: a worker with a bootstrap Secret, unless that is empty, whose agent is not started."""
    made: list[AgentScene] = []

    async def make(*, bootstrap: str | None = None, without: Sequence[str] = (), **settings: Any) -> AgentScene:
        number = next(_numbers)
        found = AgentScene(worker, await worker.namespace("agent"), f"laptop-{number}", tmp_path, cluster_site.free_port(), settings)
        await found.grant(without=without)
        if bootstrap != "":
            found.put_secret({"kubeconfig": bootstrap or peer.bootstrap()})
        made.append(found)
        return found

    yield make
    for each in made:
        peer.remove(each.cluster)
        await each.revoke()
