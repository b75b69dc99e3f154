"""The control plane of a benchmark.

Invariant: it is one of those the tests run on, without what would only add noise: no scheduler, as pods come bound, and no audit log. The
program has the token of a ServiceAccount, as in a cluster: a client certificate would be verified anew at each of its calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.runtime.fleet import Fleet
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.cluster.pki import write_kubeconfig

NO_AUDIT = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: None\n"


@asynccontextmanager
async def fleet_on_new_plane(site: Site, name: str) -> AsyncIterator[Fleet]:
    """A fleet on a control plane of its own, which is gone afterwards."""
    options = Options(scheduler=False, verify_kubelets=False, audit_policy=NO_AUDIT)
    async with ControlPlane(name, site, options=options) as plane:
        directory = Path(site.directory, f"{name}-fleet")
        directory.mkdir()
        settings = {"log": {"level": "INFO"}}
        fleet = Fleet(plane=plane, directory=directory, settings=settings, kubeconfig=await _account(plane, directory))
        fleet.namespace = await plane.namespace("bench")
        yield fleet


async def _account(plane: ControlPlane, directory: Path) -> Path:
    """A kubeconfig with the token of a ServiceAccount that may do what the program does."""
    account = "--serviceaccount=default:default"
    await plane.kubectl("create", "clusterrolebinding", "program", "--clusterrole=cluster-admin", account)
    token = (await plane.kubectl("create", "token", "default", "-n", "default", "--duration=10h")).strip()
    return write_kubeconfig(directory / "account.kubeconfig", plane.name, server=plane.url, ca=plane.ca.read_bytes(), client=token)
