"""Two processes of one binding, of which the leader is stopped in the middle of its work until its Lease has expired, and continued.

Killed in a burst: tests/integration/kubeocean/test_cut.py. The same of `vkubelet run`: tests/integration/runtime/test_processes.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import datetime

from tests.faults.cut.choice import Choice
from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene
from tests.integration.kubeocean.test_handover import replicas, settings
from tests.support.audit import Audit
from tests.support.bound import condition
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of, virtual_uid
from tests.support.witness import watching
from vkubelet.control.leader import DURATION
from vkubelet.testing.cluster import ControlPlane

PODS = 60
TAKEOVER_WITHIN = 20.0
CAUGHT_UP_WITHIN = 60.0


async def test_stopped_leader_writes_nothing_after_its_successor(hub: ControlPlane, scene: MakeScene, choice: Choice) -> None:
    made = await scene(nodes=2, start=False, settings=settings(hub.site.free_port()))
    one, two = replicas(made)
    with one.program, two.program:
        await made.ready()
        old, new = (one, two) if one.leads_since else (two, one)
        await eventually(lambda: "another process leads" in new.program.text(), "the other stands by", seconds=STARTS_WITHIN)
        stage = await Stage.of(made.bound, made.nodes)
        in_worker = Audit(made.bound.worker, made.bound.user)
        with (
            watching(made.bound.worker.kubeconfig, namespace=made.bound.mount) as below,
            watching(made.bound.hub.kubeconfig, namespace=stage.namespace) as above,
        ):
            bodies = [stage.body(f"p{number}", terminationGracePeriodSeconds=2) for number in range(PODS)]
            burst = asyncio.gather(*(stage.home.create("pods", body) for body in bodies))
            amid = choice.random.randrange(1, PODS // 3)
            await eventually(lambda: len(below.where(lambda e: e.kind == "ADDED")) >= amid, f"{amid} physical pods exist", every=0.005)
            old.program.process.send_signal(signal.SIGSTOP)
            stopped = datetime.now().astimezone()
            try:
                uids = Counter(map(uid_of, await burst))
                led = await eventually(lambda: new.leads_since, "the other leads", seconds=DURATION + CAUGHT_UP_WITHIN)
                # It continues while its successor works on what is left.
                old.program.process.send_signal(signal.SIGCONT)
                await eventually(lambda: _ready(stage), f"{PODS} pods run", seconds=CAUGHT_UP_WITHIN, every=0.3)
                assert await eventually(lambda: not old.program.alive, "the old leader ends")
            finally:
                if old.program.alive:
                    old.program.process.send_signal(signal.SIGCONT)
            physical = await stage.there.list("pods", made.bound.mount)
    print(f"stopped after {amid} of {PODS} pods, followed {(led - stopped).total_seconds():.1f} s later")
    first = min(call.at for call in new.audit.writes() if call.what != "leases" and call.code < 300)
    late = [str(call) for call in old.audit.writes() if call.at > first and call.code < 300]
    assert not late, "the old leader writes after the first write of the new one"
    assert (led - stopped).total_seconds() < TAKEOVER_WITHIN
    assert Counter(map(virtual_uid, physical)) == uids
    made_for = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    assert made_for == uids, "one physical pod for each"
    assert not [call for call in in_worker.writes() if (call.verb, call.what) == ("delete", "pods")]
    assert not above.where(lambda event: event.deleting or event.kind == "DELETED")


async def _ready(stage: Stage) -> bool:
    pods = await stage.home.list("pods", stage.namespace)
    return len(pods) == PODS and all(condition(pod, "Ready") == "True" for pod in pods)
