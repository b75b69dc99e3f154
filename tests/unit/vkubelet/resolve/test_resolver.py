"""When a pod's files are looked at again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.memory_api import TokenApi
from vkubelet.api.objects import Pod
from vkubelet.client.rest import Client
from vkubelet.control.informer import Change
from vkubelet.errors import Forbidden, Unreachable
from vkubelet.resolve.names import Names
from vkubelet.resolve.objects import Token
from vkubelet.resolve.resolver import Resolver, _message_of, _Record
from vkubelet.resolve.volumes import TokenSource
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import make_pod, with_status

LIFE = TokenApi.LIFE
TOKENS = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


def container(**more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}], **more}


def pod_of(*, labels: dict[str, str] | None = None, **more: Any) -> Pod:
    return make_pod(metadata={"labels": labels or {}}, spec={"containers": [container(**more)], "volumes": [TOKENS]})


def resolver(clock: ManualClock, pod: Pod, client: Client | None = None) -> Resolver:
    """One that knows the pod as one with files."""
    nothing = cast(Any, None)
    made = Resolver(
        client=cast(Client, client),
        node_client=lambda node: cast(Client, client),
        recorder=nothing,
        clock=clock,
        node=lambda name: None,
        node_ips=lambda name: (),
        pod=lambda uid: pod,
        names=Names,
        wake=lambda uid: None,
    )
    made._records[pod.metadata.uid] = _Record(pod, Path("/files"))
    return made


@pytest.mark.parametrize(
    ("after", "looks"),
    [
        (pod_of(labels={"a": "1"}), True),
        (pod_of(resources={"limits": {"memory": "1Gi"}}), True),
        (with_status(pod_of(), {"phase": "Running"}), False),
    ],
    ids=["labels", "resources", "status"],
)
def test_what_files_may_show_is_a_reason_to_look(after: Pod, looks: bool) -> None:
    before = pod_of()
    made = resolver(ManualClock(), before)
    made.observe(Change(before.key, before, after))
    assert len(made.controller.queue) == looks


@pytest.mark.parametrize(("left", "wait"), [(300.0, 300.0), (0.2, 1.0), (0.0, 20.0), (-3600.0, 20.0)])
def test_a_token_that_can_not_be_renewed_is_not_asked_for_all_the_time(left: float, wait: float) -> None:
    clock, pod = ManualClock(), pod_of()
    made = resolver(clock, pod)
    due = clock.now() + timedelta(seconds=left)
    made._tokens._tokens[pod.metadata.uid] = {TokenSource(): Token("text", due, due, 3600.0, clock.monotonic() - 1800.0)}
    assert made._next_check(made._records[pod.metadata.uid]) == wait


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            Forbidden("get secrets ns/x", 'secrets "x" is forbidden: no relationship', status=403),
            'secrets "x" is forbidden: no relationship',
        ),
        (Unreachable("get secrets ns/x", "no answer in 30 s"), "get secrets ns/x: no answer in 30 s"),
        (ValueError("Incorrect padding"), "Incorrect padding"),
    ],
    ids=["answer", "no answer", "not base64"],
)
def test_users_are_told_what_the_api_server_said(error: Exception, text: str) -> None:
    assert _message_of(error) == text


async def run_with_tokens(
    api: TokenApi, clock: ManualClock, files: Path, *, seconds: float, set_by: float = 0.0, then: float = 0.0
) -> list[int]:
    """Tokens that were issued for one pod after `seconds`, and `then` seconds after the wall clock of both was set."""
    pod = pod_of()
    made = resolver(clock, pod, api.client())
    issued = []
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.run())
        resolving = group.create_task(made.resolve(pod, files=files))
        await clock.advance(seconds)
        assert resolving.done()
        issued.append(api.issued)
        clock.set(set_by)
        await clock.advance(then)
        issued.append(api.issued)
        running.cancel()
    return issued


async def test_tokens_are_renewed_soon_after_the_wall_clock_was_set_forward(tmp_path: Path) -> None:
    for by, issued in ((LIFE, 2), (-LIFE, 1)):
        clock = ManualClock()
        assert await run_with_tokens(TokenApi(clock), clock, tmp_path, seconds=600.0, set_by=by, then=5.0) == [1, issued]


async def test_a_clock_ahead_by_the_lifetime_of_a_token_does_not_cause_a_storm(tmp_path: Path) -> None:
    clock = ManualClock()
    assert await run_with_tokens(TokenApi(clock, ahead=-2 * LIFE), clock, tmp_path, seconds=float(LIFE)) <= [11, 11]
