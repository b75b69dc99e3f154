"""More nodes than the process may have open files."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.integration.runtime.fleet import Fleet, complaints
from tests.support.outside import Outside
from tests.support.program import eventually

SOFT, HARD = 200, 256
NODES = 140
FIT = 127
"""Half of the descriptors are kept back for connections; one port serves the pods of all nodes."""


async def test_process_takes_the_files_it_may_have_and_says_when_they_are_too_few(fleet: Fleet) -> None:
    program = fleet.program("mock", provider={"node": fleet.name("n"), "nodes": NODES, "resolve": False})
    # While it imports there is time to limit it.
    program.cold = True
    with program:
        pid = program.process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (SOFT, HARD))

        async def told() -> list[str]:
            return [text for text in complaints(program) if "nofile" in text]

        (warning,) = await eventually(told, "the limit is named", seconds=90)
        assert f"a limit of {HARD} open files" in warning
        assert "too low for more than 128 ports" in warning
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        assert next(line for line in limits if line.startswith("Max open files")).split()[3:5] == [str(HARD), str(HARD)]
        nodes = [node["metadata"]["name"] for node in await fleet.nodes()]
        assert len(nodes) <= FIT

        async def all_that_fit() -> bool:
            return len(await fleet.nodes()) == FIT

        await eventually(all_that_fit, "as many as fit are registered", seconds=60, every=0.3)
        names = [node["metadata"]["name"] for node in await fleet.nodes()]
        await fleet.ready(names, program=program)
        await eventually(lambda: _all_leases(fleet, names), "all have a Lease", every=0.3)
        await fleet.create("p", node=names[0])
        await fleet.running("p")
        assert Outside(pid).descriptors() < HARD
        assert complaints(program) == [warning]


async def _all_leases(fleet: Fleet, names: list[str]) -> bool:
    return all([await fleet.lease(name) is not None for name in names])
