"""Manifests as users of Kubeocean (Go) have them apply unchanged and do what they say.

They name no field that is ours, the namespaces and labels of upstream's quick start, and windows without a zone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.integration.kubeocean.conftest import Scene, undo
from tests.integration.kubeocean.leases import CLOSED, POLICY, comes_to_offer, decided_by, policy_reports, taints
from tests.support.bound import Bound, apply, condition, get, pod, running
from tests.support.program import eventually
from tests.support.simulated import all_ready, simulated_nodes
from vkubelet.testing.cluster import ControlPlane

BINDING = """
apiVersion: cloud.tencent.com/v1beta1
kind: ClusterBinding
metadata:
  name: example-cluster
spec:
  clusterID: example-cluster
  mountNamespace: kubeocean-worker
  nodeSelector:
    nodeSelectorTerms:
      - matchExpressions:
          - key: kubeocean.io/role
            operator: In
            values: [worker]
  secretRef:
    name: example-cluster-kubeconfig
    namespace: kubeocean-system
"""
ALWAYS = """
apiVersion: cloud.tencent.com/v1beta1
kind: ResourceLeasingPolicy
metadata:
  name: example-policy
spec:
  cluster: example-cluster
  nodeSelector:
    nodeSelectorTerms:
      - matchExpressions:
          - key: kubeocean.io/role
            operator: In
            values: [worker]
  timeWindows:
    - start: "08:01"
      end: "08:00"
  resourceLimits:
    - resource: cpu
      quantity: "4"
      percent: 80
    - resource: memory
      percent: 90
"""
NIGHTS_AND_WEEKENDS = """
apiVersion: cloud.tencent.com/v1beta1
kind: ResourceLeasingPolicy
metadata:
  name: example-policy
spec:
  cluster: example-cluster
  forceReclaim: true
  gracefulReclaimPeriodSeconds: 0
  timeWindows:
    - start: "18:00"
      end: "08:00"
      days: [Monday, Tuesday, Wednesday, Thursday, Friday]
    - start: "00:00"
      end: "23:59"
      days: [Saturday, Sunday]
  resourceLimits:
    - resource: cpu
      quantity: "96"
      percent: 90
    - resource: memory
      percent: 95
    - resource: nvidia.com/gpu
      percent: 100
"""
NODE, POLICY_NAME = "sim-sample", "example-policy"


class Example(Bound):
    """The names of the samples."""

    @property
    def mount(self) -> str:
        return "kubeocean-worker"


@pytest.fixture
async def example(hub: ControlPlane, worker: ControlPlane, tmp_path: Path) -> AsyncIterator[Scene]:
    """The samples applied, beside a node labelled as upstream's quick start says, and the process of the binding."""
    bound = Example(hub=hub, worker=worker, name="example-cluster", directory=tmp_path, settings={"provider": {"time_zone": "UTC"}})
    async with AsyncExitStack() as stack:
        kubelet = stack.enter_context(simulated_nodes(worker, NODE, nodes=1, directory=tmp_path))
        stack.push_async_callback(worker.kubectl, "delete", "node", NODE, "--ignore-not-found", "--wait=false")
        await all_ready(worker, [NODE])
        await worker.kubectl("label", "node", NODE, "kubeocean.io/role=worker")
        stack.push_async_callback(undo, bound)
        stack.push_async_callback(worker.kubectl, "delete", POLICY, POLICY_NAME, "--ignore-not-found", "--wait=false")
        await bound.install_rights()
        await apply(hub, bound.kubeconfig_secret())
        await worker.kubectl("apply", "-f", "-", stdin=ALWAYS)
        await hub.kubectl("apply", "-f", "-", stdin=BINDING)
        made = Scene(bound=bound, nodes=[NODE], program=stack.enter_context(bound.program()), kubelets=[kubelet])
        await made.ready()
        yield made


def leased_now() -> bool:
    """Weekday nights and weekends, by the calendar in UTC; a night belongs to the day on which it begins."""
    now = datetime.now(UTC)
    time, day = f"{now:%H:%M}", f"{now:%a}"
    return day in ("Sat", "Sun") or time >= "18:00" or (day != "Mon" and time <= "08:00")


async def test_samples_of_upstream_apply_unchanged_and_do_what_they_say(example: Scene) -> None:
    bound = example.bound
    # 4 CPUs are less than 80 % of 64; 90 % of 256 GiB in whole bytes.
    await comes_to_offer(example, cpu="4", memory=str(256 * 2**30 * 9 // 10), pods="1k")
    await decided_by(example, POLICY_NAME, cpu="4")
    status = await policy_reports(example, POLICY_NAME, "Active")
    assert status["activeTimeWindow"] is True and "nextEdge" not in status, "08:01 to 08:00 is the whole day"
    node = await get(bound.hub, "node", example.vnodes[0])
    assert node["metadata"]["name"] == "vnode-example-cluster-sim-sample" and node["metadata"]["labels"]["kubeocean.io/role"] == "worker"
    assert node["metadata"]["annotations"]["kubeocean.io/policy-details"] == f"{POLICY_NAME}(cpu=4/80%, memory=90%)"

    async def only_the_default_taint() -> bool:
        """The hub takes its own taint of a new Node away a moment after that is Ready."""
        shown = await get(bound.hub, "node", example.vnodes[0])
        return {(taint["key"], taint["effect"]) for taint in shown["spec"]["taints"]} == {("kubeocean.io/vnode", "NoSchedule")}

    await eventually(only_the_default_taint, "no taint but the default one")

    async def served() -> bool:
        return condition(await get(bound.hub, "clusterbinding", bound.name), "Ready") == "True"

    await eventually(served, "the binding is Ready")
    # A Job of the tutorials tolerates the default taint, and the scheduler does the rest.
    namespace = await bound.hub.namespace()
    spec = {"nodeSelector": {"kubeocean.io/role": "worker"}}
    await apply(bound.hub, pod("sample", namespace, **spec))
    virtual = await running(bound, namespace, "sample")
    assert virtual["spec"]["nodeName"] == example.vnodes[0]
    assert virtual["metadata"]["annotations"]["kubeocean.io/physical-pod-namespace"] == "kubeocean-worker"
    await bound.hub.kubectl("delete", "pod", "sample", "-n", namespace, "--timeout=60s")

    await bound.worker.kubectl("apply", "-f", "-", stdin=NIGHTS_AND_WEEKENDS)
    # 57.6 CPUs are less than 96.
    await comes_to_offer(example, cpu="57600m", memory=str(256 * 2**30 * 95 // 100))

    async def follows_the_calendar() -> bool:
        before = leased_now()
        told = await policy_reports(example, POLICY_NAME, "Active" if before else "Inactive")
        shown = await get(bound.hub, "node", example.vnodes[0])
        # Until the status is that of the new policy, there is no edge in it.
        if (told.get("timeZone"), bool(told.get("nextEdge"))) != ("UTC", True):
            return False
        return (CLOSED not in taints(shown)) == before == leased_now() == told["activeTimeWindow"]

    await eventually(follows_the_calendar, "open on weekday nights and weekends, closed otherwise")
