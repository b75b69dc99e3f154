"""A device plugin of a real kubelet, whose devices are only names: a container that gets some sees them in a variable.

Invariant: the devices are those of one node, and are gone with the block.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from vkubelet.testing.cluster import WorkerNode

_SERVICE = "v1beta1.DevicePlugin"
_SHORT = 128
"""Bytes from which a length would have a second byte."""


def _field(number: int, value: bytes | str) -> bytes:
    """One field of a message: text, or a message."""
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < _SHORT
    return bytes([number << 3 | 2, len(data)]) + data


def _fields(message: bytes) -> Iterator[bytes]:
    """The values of a message that has only such fields."""
    while message:
        end = 2 + message[1]
        yield message[2:end]
        message = message[end:]


class DevicePlugin:
    """Healthy devices of one resource."""

    def __init__(self, resource: str, *devices: str, variable: str) -> None:
        self.resource = resource
        self._devices = devices
        self._variable = variable

    async def list_and_watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"".join(_field(1, _field(1, device) + _field(2, "Healthy")) for device in self._devices)
        await asyncio.Event().wait()

    async def allocate(self, request: bytes, context: Any) -> bytes:
        """For each container the names of its devices."""
        out = b""
        for container in _fields(request):
            names = ",".join(device.decode() for device in _fields(container))
            out += _field(1, _field(1, _field(1, self._variable) + _field(2, names)))
        return out

    async def options(self, request: bytes, context: Any) -> bytes:
        return b""

    @asynccontextmanager
    async def on(self, node: WorkerNode) -> AsyncIterator[None]:
        """Serves the kubelet of this node."""
        folder = Path(node.plan.path("lib")) / "kubelet" / "device-plugins"
        endpoint = folder / f"{self.resource.replace('/', '-')}.sock"
        server = grpc.aio.server()
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self.options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(self.allocate),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        server.add_insecure_port(f"unix:{endpoint}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder}/kubelet.sock") as channel:
                request = _field(1, "v1beta1") + _field(2, endpoint.name) + _field(3, self.resource)
                await channel.unary_unary("/v1beta1.Registration/Register")(request, wait_for_ready=True)
            yield
        finally:
            await server.stop(None)
            endpoint.unlink(missing_ok=True)
