"""When a worker is given up, and what is said of it then."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.service.unbinding import Unbinding, UnbindingParts
from tests.unit.kubeocean.builders import binding
from vkubelet.api.shapes import Json
from vkubelet.client.connection import Connection
from vkubelet.client.resources import NODES
from vkubelet.client.rest import Client
from vkubelet.clock import rfc3339
from vkubelet.control.informer import Informer
from vkubelet.testing.host import RecordingHost


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost(client=Client(Connection("https://hub.invalid")))


@pytest.fixture
def unbinding(host: RecordingHost) -> Unbinding:
    return Unbinding(
        UnbindingParts(
            host=host,
            binding=BindingReconciler(host, "demo"),
            virtual=VirtualNodes(host),
            hub_nodes=Informer(host.client, NODES, clock=host.clock),
            reclaimer=Reclaimer(host, per_second=10),
        )
    )


def deleted(host: RecordingHost, spec: Json | None = None, **metadata: object) -> ClusterBinding:
    """Two minutes ago."""
    asked = rfc3339(host.clock.now() - timedelta(minutes=2))
    return binding(spec, uid="uid", deletionTimestamp=asked, **metadata)


@pytest.mark.parametrize(
    ("spec", "annotations", "forced"),
    [
        ({}, {}, False),
        ({"forceUnbindAfter": 121}, {}, False),
        ({"forceUnbindAfter": 120}, {}, True),
        ({"forceUnbindAfter": 0}, {}, True),
        ({"forceUnbindAfter": "soon"}, {}, False),
        ({}, {keys.FORCE_UNBIND: "true"}, True),
        ({}, {keys.FORCE_UNBIND: "no"}, False),
    ],
)
async def test_a_worker_is_given_up_on_demand_and_never_by_itself(
    unbinding: Unbinding, host: RecordingHost, spec: Json, annotations: dict[str, str], forced: bool
) -> None:
    assert unbinding.forced(deleted(host, spec, annotations=annotations)) is forced


async def test_a_worker_that_answers_is_given_up_only_when_nothing_moves(unbinding: Unbinding, host: RecordingHost) -> None:
    one = deleted(host, {"forceUnbindAfter": 0})
    assert not unbinding.stuck(one, "3 pods")
    await host.clock.advance(29)
    assert not unbinding.stuck(one, "3 pods")
    assert not unbinding.stuck(one, "2 pods")
    await host.clock.advance(29)
    assert not unbinding.stuck(one, "2 pods")
    await host.clock.advance(1)
    assert unbinding.stuck(one, "2 pods")


async def test_a_binding_that_allows_more_time_gets_it(unbinding: Unbinding, host: RecordingHost) -> None:
    one = deleted(host, {"forceUnbindAfter": 100})
    assert not unbinding.stuck(one, "3 pods")
    await host.clock.advance(99)
    assert not unbinding.stuck(one, "3 pods")
    await host.clock.advance(1)
    assert unbinding.stuck(one, "3 pods")
