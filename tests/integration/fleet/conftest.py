"""A hub with the kinds of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from fleet.api.resources import DEFINED, definition
from tests.support.bound import established
from tests.support.program import eventually
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
