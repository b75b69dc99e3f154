"""Coverage-guided fuzzing of the kubelet port, before and after authentication: HTTP, SPDY, WebSocket; and the cases that found something.

Invariant: a run in tests has a fixed seed, and starts from the corpus, whose cases reach every protocol.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.attack import cases, port
from tests.faults.attack.__main__ import CORPUS, Run, started

SEED, CASES = 20270101, 10_000
"""About half a minute of a processor."""


@pytest.mark.timeout(1500)
def test_no_case_leaves_anything_behind_or_runs_a_handler_without_its_right(tmp_path: Path) -> None:
    done = started(Run(cases=CASES, seed=SEED, findings=tmp_path))
    assert done.returncode == 0, done.stdout[-5000:]
    assert f"Done {CASES} runs" in done.stdout


@pytest.mark.parametrize("case", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_a_case_that_once_found_something_finds_nothing(case: Path) -> None:
    async def play() -> None:
        async with port.serving() as served:
            await cases.play(served, case.read_bytes())
            await served.healthy()
            await served.check()

    with asyncio.Runner(loop_factory=port.FrozenLoop) as runner:
        runner.run(play())


def test_the_corpus_reaches_every_protocol_before_and_after_authentication() -> None:
    served: set[str] = set()

    async def play() -> None:
        async with port.serving() as kubelet:
            for case in sorted(CORPUS.iterdir()):
                kubelet.ever.clear()
                await cases.play(kubelet, case.read_bytes())
                served.update(kubelet.ever)

    with asyncio.Runner(loop_factory=port.FrozenLoop) as runner:
        runner.run(play())
    assert {"ContainerStreams.exec", "PortForwards.serve", "ContainerStreams.attach", "ContainerLogs.serve", "NodeLogs.serve"} <= served
