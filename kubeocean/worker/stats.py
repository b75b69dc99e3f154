"""Usage of the pods of a virtual node, read from the physical node's kubelet through the worker's API server.

Invariant: every response has passed the filter of `worker.exposition` or `worker.summary`; many clients within a second cost the worker
one request.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeocean.model.identity import identity
from kubeocean.worker.cluster import WorkerCluster
from kubeocean.worker.exposition import Alias, Exposition, Tenancy
from kubeocean.worker.summary import CpuMeter, node_series, virtual_summary
from vkubelet.api.codec import decode_json, encode_json
from vkubelet.api.objects import NODES, Json
from vkubelet.control.cache import Answer, SharedCache
from vkubelet.errors import ApiError, Forbidden, NotSupported, Unavailable
from vkubelet.provider import Host, MetricsEndpoint

_SUMMARY: Final = "stats/summary"
_KEPT: Final = 1.0
"""Seconds for which a page is cached."""
_ANSWER: Final = 8.0
"""Timeout of the worker in seconds; that of metrics-server is ten."""
_MALFORMED: Final = (AttributeError, OverflowError, TypeError, ValueError)
"""What reading a document raises that has an unexpected type or number somewhere."""
_REMEDY: Final = (
    "for usage, the owner of the worker grants `get` on `nodes/proxy` (see deploy/samples/worker-metrics-rbac.yaml for what that allows); "
    "everything else works without it"
)


class NodeStats:
    """The kubelet's `/stats/summary` and `/metrics/…` for the virtual nodes of one worker.

    Every method raises Unavailable, and NotSupported when the worker does not grant the right to read them.
    """

    def __init__(self, host: Host, worker: WorkerCluster) -> None:
        self._host = host
        self._worker = worker
        self._pages: SharedCache[tuple[str, str], bytes] = SharedCache(host.clock)
        self._meters: dict[tuple[str, str], CpuMeter] = {}

    async def summary(self, node: str) -> Json:
        """Returns `/stats/summary` of a virtual node."""

        async def fetch() -> Answer[bytes]:
            tenancy = self._tenancy(node)
            whole = await self._whole(node, _SUMMARY)
            with translated():
                return Answer(encode_json(virtual_summary(whole, tenancy, self._meter(node, _SUMMARY))), _KEPT)

        return decode_json(await self._pages.get((node, _SUMMARY), fetch))

    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        """Returns `/metrics/resource`, `/metrics/cadvisor` or `/metrics/probes` of a virtual node."""

        async def fetch() -> Answer[bytes]:
            return Answer(await self._page(node, endpoint), _KEPT)

        return await self._pages.get((node, endpoint.value), fetch)

    async def _page(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        tenancy = self._tenancy(node)
        page = Exposition(tenancy, label_node=endpoint is MetricsEndpoint.CADVISOR)
        shown = await self._rewritten(self._path(node, f"metrics/{endpoint.value}"), page)
        if endpoint is not MetricsEndpoint.RESOURCE:
            return shown
        meter = self._meter(node, endpoint.value)
        readings = page.readings()
        counters = {uid: reading.cpu for uid, reading in readings.items() if reading.cpu is not None}
        meter.add(counters, alive=tenancy.uids(), at=max((each.at for each in readings.values()), default=page.measured_at))
        return shown + node_series(readings.values(), meter)

    async def _rewritten(self, path: str, page: Exposition) -> bytes:
        """Filters a page while it is streamed, without buffering all of it."""
        with translated():
            async with asyncio.timeout(_ANSWER), self._worker.client.stream(path, compressed=True) as pieces:
                return b"".join([*[page.feed(piece) async for piece in pieces], page.end()])

    async def _whole(self, node: str, endpoint: str) -> Json:
        with translated():
            async with asyncio.timeout(_ANSWER):
                return decode_json(await self._worker.client.request("GET", self._path(node, endpoint)))

    def _path(self, node: str, endpoint: str) -> str:
        physical = self._worker.node_of(node)
        if physical is None:
            raise Unavailable(f"virtual node {node} has no physical node in the worker cluster")
        return NODES.path("", physical.metadata.name, f"proxy/{endpoint}")

    def _tenancy(self, node: str) -> Tenancy:
        """Returns our physical pods on the node. Raises Unavailable until they are listed: they would seem to use nothing."""
        if not self._worker.pods.ever_synced:
            raise Unavailable("the pods of the worker cluster are not listed yet", retry_after=2.0)
        return Tenancy(
            node=node, namespace=self._worker.mount.namespace, spread=not self._worker.mount.is_shared, aliases=tuple(self._aliases(node))
        )

    def _aliases(self, node: str) -> list[Alias]:
        named = ((identity(pod.metadata), pod.metadata) for pod in self._worker.pods_of(node))
        return [Alias(ref, meta.name, meta.uid, self._host.pods.get(ref)) for ref, meta in named if ref is not None]

    def _meter(self, node: str, endpoint: str) -> CpuMeter:
        """Returns the meter of an endpoint; endpoints do not share one, because their values are not of the same instant."""
        if (node, endpoint) not in self._meters:
            self._meters = {key: meter for key, meter in self._meters.items() if self._worker.node_of(key[0]) is not None}
        return self._meters.setdefault((node, endpoint), CpuMeter())


@contextmanager
def translated() -> Iterator[None]:
    """Translates errors of the worker for the caller, with the remedy if one exists."""
    try:
        yield
    except Forbidden as error:
        # Not Unavailable: clients of the API server hide the text of a 503.
        raise NotSupported(f"the worker cluster refuses requests to its kubelets ({error.message}); {_REMEDY}") from error
    except ApiError as error:
        raise Unavailable(f"the request to the worker's kubelet fails: {error.message}", retry_after=error.retry_after) from error
    except TimeoutError:
        raise Unavailable("the worker's kubelet did not respond in time", retry_after=_ANSWER) from None
    except _MALFORMED as error:
        raise Unavailable(f"the response of the worker's kubelet is malformed: {error}") from error
