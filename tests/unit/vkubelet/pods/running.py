"""The pods of a process, on an API server in memory and without Nodes."""

from __future__ import annotations

from vkubelet.client.rest import Client
from vkubelet.control.recorder import Recorder
from vkubelet.pods.controllers import Pods
from vkubelet.provider import Provider
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordedEvents


def pods_of(provider: Provider, client: Client, clock: ManualClock, *, recorder: Recorder | RecordedEvents | None = None) -> Pods:
    """The pods that a provider runs, whose nodes are to be enabled; their Events go to `recorder`, or are only recorded."""
    return Pods(
        provider=provider,
        client=client,
        node_client=lambda node: client,
        recorder=recorder or RecordedEvents(),
        clock=clock,
        node=lambda name: None,
        node_ips=lambda name: (),
    )
