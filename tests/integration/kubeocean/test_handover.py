"""A leader that is stopped while somebody follows a log: another serves at once, and what is followed goes on for a while."""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import Process
from datetime import datetime

from attrs import evolve, frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.support.audit import Audit
from tests.support.bound import SYSTEM, Body, Bound
from tests.support.kubectl import Kubectl
from tests.support.program import PATIENCE, Program, eventually
from tests.support.scrape import Scrape
from tests.support.stage import Stage
from vkubelet.server.ports import STREAMS_END
from vkubelet.testing.cluster import ControlPlane

HANDED_ON_WITHIN = STREAMS_END
"""Seconds; who waits for the Lease asks for it every two. Without a hand-over it would run out 15 s after it was last seen renewed, 12 s
after the signal at best, and the streams have ended by then.
"""


@frozen
class Replica:
    """One of two processes; what it does in the hub is told from what the other does by its user."""

    program: Program
    audit: Audit
    metrics: str

    @classmethod
    def of(cls, bound: Bound, user: str, program: Program) -> Replica:
        return cls(program, Audit(bound.hub, user), bound.settings["health"]["metrics_address"])

    @property
    def leads_since(self) -> datetime | None:
        found = [line["time"] for line in self.program.messages() if line["message"] == "leading"]
        return datetime.fromisoformat(found[0]) if found else None

    def tells_of_the_binding(self) -> bool:
        return "kubeocean_binding_ready" in Scrape.of(self.metrics).names


def settings(port: int) -> Body:
    health = {"health_address": "127.0.0.1:0", "metrics_address": f"127.0.0.1:{port}"}
    return {"leader": {"enabled": True, "namespace": SYSTEM}, "health": health}


def replicas(scene: Scene) -> tuple[Replica, Replica]:
    bound, user = scene.bound, f"{scene.bound.user}-second"
    second = evolve(
        bound,
        way=lambda plane, _: plane.client_config(user, ["system:masters"]),
        settings=settings(bound.hub.site.free_port()),
        directory=bound.directory / "second",
    )
    return Replica.of(bound, bound.user, scene.program), Replica.of(second, user, second.program())


async def next_line(follower: Process) -> datetime:
    """When the next line was written."""
    assert follower.stdout is not None
    line = await asyncio.wait_for(follower.stdout.readline(), PATIENCE)
    assert line, "the stream has ended"
    return datetime.fromisoformat(line.split()[0].decode())


async def test_another_leads_while_the_streams_of_the_one_that_stops_still_flow(hub: ControlPlane, scene: MakeScene) -> None:
    made = await scene(start=False, settings=settings(hub.site.free_port()))
    one, two = replicas(made)
    with one.program, two.program:
        await made.ready()
        old, new = (one, two) if one.leads_since else (two, one)
        await eventually(lambda: "another process leads" in new.program.text(), "the other stands by", seconds=STARTS_WITHIN)
        stage = await Stage.of(made.bound, made.nodes)
        await stage.create("talks", script={"log-interval": "0.2"})
        await stage.running("talks")
        await eventually(lambda: "another process leads" in new.program.text(), "the other stands by")
        assert old.tells_of_the_binding() and not new.tells_of_the_binding()
        kubectl = Kubectl(made.bound.hub, stage.namespace)
        async with kubectl.kubectl("logs", "--follow", "--timestamps", "--tail=1", "talks") as follower:
            await next_line(follower)
            began, asked = time.monotonic(), datetime.now().astimezone()
            old.program.process.terminate()
            led = await eventually(lambda: new.leads_since, "the other leads")
            while await next_line(follower) <= led:
                assert old.program.alive, "the stream goes on when the other leads"
            assert not old.tells_of_the_binding()
            # Sooner than any sweep of every minute would bring it about.
            await eventually(lambda: _answers(kubectl), "logs are answered again", every=0.3)
            answered = time.monotonic() - began
            await eventually(new.tells_of_the_binding, "the other tells of the binding")
        assert await asyncio.to_thread(old.program.process.wait, STREAMS_END + 10) == 0
    took = (led - asked).total_seconds()
    print(f"handed on {took:.1f} s after SIGTERM, logs are answered again after {answered:.1f} s")
    assert took < HANDED_ON_WITHIN
    late = [call for call in old.audit.writes() if call.at > led]
    assert not late, "who has handed the Lease on writes nothing"
    assert new.audit.writes()


async def _answers(kubectl: Kubectl) -> bool:
    return (await kubectl.run("logs", "--tail=1", "talks")).code == 0
