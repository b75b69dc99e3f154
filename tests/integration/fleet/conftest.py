"""A hub with the kinds of a fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from fleet.api import keys
from fleet.api.resources import DEFINED, definition
from fleet.core.rights import hub_rules
from fleet.ocm.acceptance import hub_objects
from tests.integration.fleet.player import Body, Caller
from tests.support.bound import established
from tests.support.program import Program, eventually
from vkubelet.api.rbac import granted
from vkubelet.testing.cluster import CommandFailed, ControlPlane


async def served(cluster: ControlPlane, kinds: str) -> bool:
    try:
        await cluster.kubectl("get", kinds, "--all-namespaces")
    except CommandFailed:
        return False
    return True


@pytest.fixture(scope="session")
def fleet_hub(bare_hub: ControlPlane) -> Iterator[ControlPlane]:
    names = [f"{each.plural}.{each.group}" for each in DEFINED]

    async def define() -> None:
        await bare_hub.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(definition, DEFINED)))
        for name in names:
            await eventually(partial(established, bare_hub, f"crd/{name}"), f"{name} is established")
        await eventually(partial(served, bare_hub, ",".join(names)), "discovery has all kinds")

    asyncio.run(define())
    yield bare_hub
    asyncio.run(bare_hub.kubectl("delete", "crd", *names, "--wait=false"))


@pytest.fixture(scope="session")
def admin(fleet_hub: ControlPlane) -> Caller:
    """The administrator of the hub."""
    return Caller(fleet_hub.kubeconfig)


@pytest.fixture
def bootstrap(prepared: ControlPlane) -> Caller:
    """An identity that may ask to join, and nothing more."""
    return Caller(prepared.client_config("bootstrap", ["system:bootstrappers:managedcluster"]))


@pytest.fixture(scope="session")
def prepared(fleet_hub: ControlPlane) -> ControlPlane:
    """A hub with the shared roles, the bootstrap identity, and the rights of the process for the user "fleet-hub"."""
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": keys.HUB}
    own = granted(hub_rules(), keys.HUB, cluster_name=keys.HUB, subject=user)
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.NAMESPACE}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [system, *hub_objects(), *own]}
    asyncio.run(fleet_hub.kubectl("apply", "-f", "-", stdin=json.dumps(listed)))
    return fleet_hub


@pytest.fixture
def hub_settings() -> Body:
    """The section `hub:`; modules override it."""
    return {}


@pytest.fixture
def program(prepared: ControlPlane, tmp_path: Path, hub_settings: Body) -> Iterator[Program]:
    """`fleet hub` with its own rights and nothing more."""
    anywhere = {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}
    settings = {"health": anywhere, "log": {"level": "DEBUG"}, "hub": hub_settings}
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump(settings))
    kubeconfig = prepared.client_config(keys.HUB)
    program = Program("fleet", "hub", "--config", str(config), "--kubeconfig", str(kubeconfig), log=tmp_path / "hub.log")
    with program:
        yield program
