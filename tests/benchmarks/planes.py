"""The control plane of a benchmark.

Invariant: it is one of those the tests run on, without what would only add noise: no scheduler, as pods come bound, and no audit log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.runtime.fleet import Fleet
from vkubelet.testing.cluster import ControlPlane, Options, Site

NO_AUDIT = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: None\n"


@asynccontextmanager
async def fleet_on_new_plane(site: Site, name: str) -> AsyncIterator[Fleet]:
    """A fleet on a control plane of its own, which is gone afterwards."""
    options = Options(scheduler=False, verify_kubelets=False, audit_policy=NO_AUDIT)
    async with ControlPlane(name, site, options=options) as plane:
        directory = Path(site.directory, f"{name}-fleet")
        directory.mkdir()
        fleet = Fleet(plane=plane, directory=directory, settings={"log": {"level": "INFO"}})
        fleet.namespace = await plane.namespace("bench")
        yield fleet
