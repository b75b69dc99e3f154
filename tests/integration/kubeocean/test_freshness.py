"""Time until a change in the hub is in the worker; the figures are printed. docs/reference/kubeocean-behaviour.md, lines 141, 143, 156.

Of each kind the median counts: machines that run other tests stand still now and then. What is late by itself, because somebody looks
only every so often, is late each time: each change follows the moment in which somebody has looked.
"""

from __future__ import annotations

import base64
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.bound import Body
from tests.support.program import eventually
from tests.support.stage import Stage

WITHIN = 2.0
ROUNDS = 5


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def delays(change: Callable[[str], Awaitable[Any]], arrived: Callable[[str], Awaitable[bool]], what: str) -> list[float]:
    """Seconds from the answer to each change until it is seen in the worker; values are `v1`, `v2` …"""
    found = []
    for number in range(1, ROUNDS + 1):
        value = f"v{number}"
        await change(value)
        changed = time.monotonic()
        await eventually(lambda value=value: arrived(value), f"{what} {value} is in the worker", every=0.02)
        found.append(time.monotonic() - changed)
    return found


def in_time(found: list[float]) -> bool:
    return statistics.median(found) < WITHIN


async def test_changes_at_home_are_in_the_worker_within_two_seconds(stage: Stage) -> None:
    space = stage.namespace
    await stage.home.create("configmaps", {"metadata": {"name": "fresh", "namespace": space}, "data": {"k": "v0"}})
    await stage.home.create("secrets", {"metadata": {"name": "fresh", "namespace": space}, "data": {"k": encoded("v0")}})
    volumes = [{"name": "c", "configMap": {"name": "fresh"}}, {"name": "s", "secret": {"secretName": "fresh"}}]
    await stage.create("fresh", volumes=volumes)
    pod = await stage.running("fresh")
    (main,) = pod["spec"]["containers"]
    tolerations = list(pod["spec"]["tolerations"])

    async def patch(kind: str, change: Body) -> None:
        await stage.home.patch(kind, "fresh", change, namespace=space)

    async def there(kind: str, holds: Callable[[Body], bool]) -> bool:
        found = await stage.physical("fresh", kind)
        return found is not None and holds(found)

    async def tolerate(value: str) -> None:
        tolerations.append({"key": value, "operator": "Exists"})
        await patch("pods", {"spec": {"tolerations": tolerations}})

    figures = {
        "ConfigMap": await delays(
            lambda value: patch("configmaps", {"data": {"k": value}}),
            lambda value: there("configmaps", lambda c: c["data"]["k"] == value),
            "ConfigMap",
        ),
        "Secret": await delays(
            lambda value: patch("secrets", {"data": {"k": encoded(value)}}),
            lambda value: there("secrets", lambda c: c["data"]["k"] == encoded(value)),
            "Secret",
        ),
        "label": await delays(
            lambda value: patch("pods", {"metadata": {"labels": {"fresh": value}}}),
            lambda value: there("pods", lambda p: p["metadata"]["labels"].get("fresh") == value),
            "label",
        ),
        "image": await delays(
            lambda value: patch("pods", {"spec": {"containers": [{**main, "image": f"localhost/busybox:{value}"}]}}),
            lambda value: there("pods", lambda p: p["spec"]["containers"][0]["image"] == f"localhost/busybox:{value}"),
            "image",
        ),
        "toleration": await delays(
            tolerate,
            lambda value: there("pods", lambda p: value in {each.get("key") for each in p["spec"]["tolerations"]}),
            "toleration",
        ),
    }
    for what, found in figures.items():
        print(f"{what}: median {statistics.median(found):.3f} s, longest {max(found):.3f} s of {len(found)}")
    assert all(map(in_time, figures.values())), figures
