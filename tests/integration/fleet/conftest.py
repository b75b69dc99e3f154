"""A hub with the kinds of a fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from fleet.api import keys
from fleet.api.resources import DEFINED, definition
from fleet.core.rights import hub_rules
from fleet.ocm.acceptance import hub_objects
from tests.integration.fleet.player import Body, Caller
from tests.support.ahead import Crowd, crowd_of, group_of
from tests.support.bound import established
from tests.support.program import Program, eventually
from vkubelet.api.rbac import granted
from vkubelet.testing.cluster import CommandFailed, ControlPlane

_DIRECTORIES = ("agent", "fleet", "together")
"""In this order: clusters of a directory are removed after its last test."""
NAMES = [f"{each.plural}.{each.group}" for each in DEFINED]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may run side by side follow one another, after the others of their directory."""
    own = [at for at, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("first")]
    ordered = sorted((items[at] for at in own), key=lambda item: (_DIRECTORIES.index(item.path.parent.name), group_of(item)))
    for at, item in zip(own, ordered, strict=True):
        items[at] = item


async def served(cluster: ControlPlane, kinds: str) -> bool:
    try:
        await cluster.kubectl("get", kinds, "--all-namespaces")
    except CommandFailed:
        return False
    return True


async def define(hub: ControlPlane) -> None:
    """Adds the kinds of a fleet, and waits until they are served."""
    await hub.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(definition, DEFINED)))
    for name in NAMES:
        await eventually(partial(established, hub, f"crd/{name}"), f"{name} is established")
    await eventually(partial(served, hub, ",".join(NAMES)), "discovery has all kinds")


async def prepare(hub: ControlPlane) -> None:
    """Adds the shared roles, the bootstrap identity, and the rights of the process for the user "fleet-hub"."""
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": keys.HUB}
    own = granted(hub_rules(), keys.HUB, cluster_name=keys.HUB, subject=user)
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.NAMESPACE}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [system, *hub_objects(), *own]}
    await hub.kubectl("apply", "-f", "-", stdin=json.dumps(listed))


@contextmanager
def serving(hub: ControlPlane, directory: Path, settings: Body) -> Iterator[Program]:
    """`fleet hub` with its own rights and nothing more; `settings` are its section `hub:`."""
    anywhere = {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}
    config = directory / "settings.yaml"
    config.write_text(yaml.safe_dump({"health": anywhere, "log": {"level": "DEBUG"}, "hub": settings}))
    kubeconfig = hub.client_config(keys.HUB)
    with Program("fleet", "hub", "--config", str(config), "--kubeconfig", str(kubeconfig), log=directory / "hub.log") as program:
        yield program


@pytest.fixture(scope="session")
def fleet_hub(bare_hub: ControlPlane) -> Iterator[ControlPlane]:
    asyncio.run(define(bare_hub))
    yield bare_hub
    asyncio.run(bare_hub.kubectl("delete", "crd", *NAMES, "--wait=false"))


@pytest.fixture(scope="session")
def admin(fleet_hub: ControlPlane) -> Caller:
    """The administrator of the hub."""
    return Caller(fleet_hub.kubeconfig)


@pytest.fixture(scope="session")
def bootstrap(prepared: ControlPlane) -> Caller:
    """An identity that may ask to join, and nothing more."""
    return Caller(prepared.client_config("bootstrap", ["system:bootstrappers:managedcluster"]))


@pytest.fixture(scope="session")
def prepared(fleet_hub: ControlPlane) -> ControlPlane:
    """A hub that is ready for its process."""
    asyncio.run(prepare(fleet_hub))
    return fleet_hub


@pytest.fixture(scope="module")
def hub_settings() -> Body:
    """The section `hub:`; modules override it."""
    return {}


@pytest.fixture
def program(prepared: ControlPlane, tmp_path: Path, hub_settings: Body) -> Iterator[Program]:
    with serving(prepared, tmp_path, hub_settings) as program:
        yield program


@pytest.fixture(scope="module")
def lasting_program(prepared: ControlPlane, tmp_path_factory: pytest.TempPathFactory, hub_settings: Body) -> Iterator[Program]:
    """One process for all tests of a module, which leave it running."""
    with serving(prepared, tmp_path_factory.mktemp("hub"), hub_settings) as program:
        yield program


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    """Tests that run side by side."""
    yield from crowd_of({})
