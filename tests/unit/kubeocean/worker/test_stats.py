"""Nothing is asked of the worker, and nothing told, while it is not known which of its pods are ours."""

from __future__ import annotations

import pytest

from kubeocean.worker.cluster import Mount, WorkerCluster
from kubeocean.worker.exposition import Tenancy
from kubeocean.worker.stats import NodeStats, translated
from kubeocean.worker.summary import CpuMeter, virtual_summary
from tests.unit.kubeocean.builders import OWNER, node
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.errors import Forbidden, NotSupported, ServerError, Unavailable
from vkubelet.provider import MetricsEndpoint
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

VNODE = "vnode-demo-node-1"


def stats(*, pods_known: bool, node_known: bool) -> NodeStats:
    clock = ManualClock()
    # Its client is not open: a call would be a RuntimeError.
    worker = WorkerCluster(Client(Connection("https://192.0.2.1"), clock=clock), Mount(OWNER, "mnt"), clock=clock, probe_interval=10)
    worker.pods.ever_synced = pods_known
    if node_known:
        worker.nodes.adopt(node(resourceVersion="1"))
    return NodeStats(RecordingHost(), worker)


@pytest.mark.parametrize("endpoint", MetricsEndpoint)
async def test_while_the_pods_are_not_known_there_is_no_page(endpoint: MetricsEndpoint) -> None:
    unknown = stats(pods_known=False, node_known=True)
    with pytest.raises(Unavailable, match="pods of the worker cluster are not listed yet"):
        await unknown.metrics(VNODE, endpoint)
    with pytest.raises(Unavailable, match="pods of the worker cluster are not listed yet"):
        await unknown.summary(VNODE)


async def test_without_a_physical_node_there_is_no_page() -> None:
    unknown = stats(pods_known=True, node_known=False)
    with pytest.raises(Unavailable, match=f"{VNODE} has no physical node"):
        await unknown.metrics(VNODE, MetricsEndpoint.RESOURCE)
    with pytest.raises(Unavailable, match=f"{VNODE} has no physical node"):
        await unknown.summary(VNODE)


def test_a_missing_right_is_told_with_what_to_grant() -> None:
    with pytest.raises(NotSupported, match=r"cannot get nodes/proxy.*grants `get` on `nodes/proxy`"), translated():
        raise Forbidden("get /x", "jane cannot get nodes/proxy")


@pytest.mark.parametrize("error", [ServerError("get /x", "boom"), TimeoutError(), ValueError("not valid JSON")])
def test_everything_else_may_go_better_another_time(error: Exception) -> None:
    with pytest.raises(Unavailable), translated():
        raise error


@pytest.mark.parametrize("summary", [{"pods": 5}, {"pods": ["x"]}, {"node": "x"}, {"pods": [{"podRef": 7}]}, {"node": {"cpu": 1}}])
def test_a_document_of_odd_types_is_named_malformed(summary: dict[str, object]) -> None:
    with pytest.raises(Unavailable, match="the response of the worker's kubelet is malformed"), translated():
        virtual_summary(summary, Tenancy(node=VNODE, namespace="mnt", aliases=()), CpuMeter())


def test_a_counter_beyond_all_numbers_leaves_the_document_readable() -> None:
    meter = CpuMeter()
    assert meter.add({"a": 10**400}, alive={"a"}) == meter.add({"a": 10**401}, alive={"a"}) == 2**63 - 1
