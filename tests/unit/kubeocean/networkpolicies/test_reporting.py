"""Tests of kubeocean.networkpolicies.mirror: when the binding reports what is mirrored, refused or failing."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.kubeocean.networkpolicies.test_mirror import FORBIDDEN, Scene, scene
from tests.unit.kubeocean.networkpolicies.test_translate import policy
from vkubelet.errors import ServerError

__all__ = ["scene"]


@pytest.mark.parametrize("where", ["hub", "worker"])
async def test_rights_that_are_removed_are_reported_until_they_are_granted_again(scene: Scene, where: str) -> None:
    scene.decree(policy())
    await scene.settle()
    informer = scene.mirror.policies if where == "hub" else scene.part()
    reporting = asyncio.create_task(scene.mirror._report())
    for error, holds in ((None, True), (FORBIDDEN, False), (None, True)):
        informer.last_error = error
        await scene.host.clock.advance(1)
        state = scene.scope.binding._health.network_policies
        assert state is not None and state.holds is holds
        assert error is None or (state.reason == "RightsMissing" and str(error) in state.message)
    await scene.mirror.entering("shop")
    reporting.cancel()


async def test_a_namespace_is_reported_when_it_was_reconciled_or_its_list_is_refused(scene: Scene) -> None:
    scene.decree(policy())
    scene.part().ever_synced = False
    reporting = asyncio.create_task(scene.mirror._report())
    await scene.host.clock.advance(2)
    assert scene.scope.binding._health.network_policies is None, "nothing is known yet"
    scene.part().last_error = FORBIDDEN
    await scene.host.clock.advance(1)
    state = scene.scope.binding._health.network_policies
    assert state is not None and (state.holds, state.reason) == (False, "RightsMissing")
    reporting.cancel()


@pytest.mark.parametrize("where", ["hub", "namespaces", "tenant"])
async def test_a_list_that_fails_from_the_start_is_reported(scene: Scene, where: str) -> None:
    scene.decree(policy())
    informer = {"hub": scene.mirror.policies, "namespaces": scene.cluster.namespaces, "tenant": scene.part()}[where]
    informer.ever_synced, informer.last_error = False, ServerError("list them", "etcd is down", status=500)
    reporting = asyncio.create_task(scene.mirror._report())
    await scene.host.clock.advance(1)
    state = scene.scope.binding._health.network_policies
    assert state is not None and not state.holds and "list them: etcd is down" in state.message
    assert state.reason == ("Incomplete" if where == "tenant" else "NotListed")
    reporting.cancel()
