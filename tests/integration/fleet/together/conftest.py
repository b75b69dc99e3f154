"""A hub that has nothing but what `fleet init` made, its process, and an API server of workers behind NAT."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from tests.integration.fleet.player import Body, Caller
from tests.integration.fleet.together.outages import SHORT
from tests.integration.fleet.together.scene import Fleet, Laptop, initialized, serving
from tests.support.ahead import Crowd, crowd_of
from tests.support.cable import Cable
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import run_apart, running

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def fresh(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A hub without preparation. It signs certificates and collects garbage; nothing schedules."""
    with running(ControlPlane("fresh", cluster_site, options=Options(scheduler=False, aggregation=False)), request) as plane:
        yield plane


@pytest.fixture(scope="package")
def lines(fresh: ControlPlane) -> Iterator[list[Cable]]:
    """Ways to the hub beside the direct one."""
    with Cable(fresh.port) as one, Cable(fresh.port) as other:
        yield [one, other]


@pytest.fixture(scope="package")
def behind(fresh: ControlPlane, lines: list[Cable], cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """An API server of workers that reaches the hub alone, and that nothing reaches: shown by trying."""
    options = Options(controllers=False, scheduler=False, aggregation=False)
    with running(ControlPlane("behind", cluster_site, options=options, isolated=True), request) as plane:
        run_apart(plane.let_dial(fresh.port, *(each.port for each in lines)))
        run_apart(separated(fresh, plane))
        yield plane


async def separated(hub: ControlPlane, worker: ControlPlane) -> None:
    """Both sides try to reach each other, at every address that they may know."""
    assert await worker.can_dial("127.0.0.1", hub.port)
    assert not await worker.can_dial("127.0.0.1", hub.plane.etcd_port) and not await worker.can_dial(hub.host_address, hub.port)
    for port in (worker.port, worker.plane.etcd_port):
        assert await worker.can_dial("127.0.0.1", port)
        for host in ("127.0.0.1", hub.host_address):
            assert not await hub.can_dial(host, port)


@pytest.fixture(scope="package")
def hub_settings() -> Body:
    """The section `hub:` of the process."""
    return {"heartbeat_threshold": SHORT.threshold}


@pytest.fixture(scope="package")
def fleet(
    fresh: ControlPlane, behind: ControlPlane, lines: list[Cable], hub_settings: Body, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    line = asyncio.run(initialized(fresh))
    with serving(fresh, directory, hub_settings) as process:
        yield Fleet(fresh, behind, line, process, lines)


@pytest.fixture(scope="package")
def owner(fresh: ControlPlane) -> Caller:
    """The administrator of the hub."""
    return Caller(fresh.kubeconfig)


def new_laptop(fleet: Fleet, directory: Path) -> Laptop:
    """A worker without an agent; its files are below `directory`."""
    number = next(_numbers)
    (own := directory / str(number)).mkdir()
    return Laptop(fleet, f"behind-{number}", f"agent-{number}", own)


@pytest.fixture
def laptops(fleet: Fleet, tmp_path: Path) -> Callable[[], Laptop]:
    """Makes workers without an agent."""
    return partial(new_laptop, fleet, tmp_path)


@pytest.fixture
def laptop(laptops: Callable[[], Laptop]) -> Laptop:
    """A worker without an agent."""
    return laptops()


@pytest.fixture(scope="package")
def crowd(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Tests that run side by side."""

    def fresh_directory() -> Path:
        return tmp_path_factory.mktemp("ahead")

    yield from crowd_of(
        {
            "tmp_path": lambda: nullcontext(fresh_directory()),
            "laptop": lambda: nullcontext(new_laptop(fleet, fresh_directory())),
            "laptops": lambda: nullcontext(partial(new_laptop, fleet, fresh_directory())),
        }
    )
