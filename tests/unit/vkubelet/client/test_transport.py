"""What the connection pool promises whatever happens: errors of ours, no secrets in them, and a fence that is asked last."""

import errno
import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from vkubelet.api.objects import PODS, Key
from vkubelet.client.connection import Connection
from vkubelet.client.credentials import Fixed
from vkubelet.client.rest import Client
from vkubelet.client.transport import unreachable
from vkubelet.clock import Clock
from vkubelet.errors import Fenced, Unreachable

CANARY = "s3cret"


@pytest.mark.parametrize(
    "problem",
    [
        aiohttp.InvalidURL(f"http://me:{CANARY}@:3128"),
        ValueError(f"header {CANARY}"),
        UnicodeError("label empty or too long"),
        OSError("no route"),
        TimeoutError(),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_whatever_the_network_raises_is_unreachable_and_tells_no_secret(problem: Exception) -> None:
    with pytest.raises(Unreachable) as caught, unreachable("get pods"):
        raise problem
    assert CANARY not in str(caught.value)


KEY = ConnectionKey("api.example", 443, True, True, None, None, None)
CERTIFICATE = ssl.SSLCertVerificationError(1, "certificate verify failed")


@pytest.mark.parametrize(
    "problem",
    [
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "unknown name")),
        aiohttp.ClientConnectorCertificateError(KEY, CERTIFICATE),
        aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "wrong version number")),
        aiohttp.ClientConnectorError(KEY, OSError(errno.EMFILE, "Too many open files")),
        aiohttp.ServerDisconnectedError(),
        TimeoutError(),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_what_keeps_us_from_asking_is_not_the_servers_silence(problem: Exception) -> None:
    with pytest.raises(Unreachable) as caught, unreachable("get /readyz", direct=True):
        raise problem
    assert not caught.value.silent


class _Fence:
    closed = False

    def check(self) -> None:
        if self.closed:
            raise Fenced("closed")


class _SlowLogin(Fixed):
    """Leadership is lost while the credentials are fetched."""

    def __init__(self, fence: _Fence) -> None:
        super().__init__()
        self._fence = fence

    async def authorization(self, clock: Clock) -> str:
        self._fence.closed = True
        return ""


async def test_fence_that_closed_while_the_credentials_were_fetched_stops_the_write() -> None:
    fence = _Fence()
    async with Client(Connection("https://api.example", credentials=_SlowLogin(fence)), fence=fence) as client:
        with pytest.raises(Fenced):
            await client.patch(PODS, Key("a", "b"), {})


async def test_call_of_a_client_that_was_closed_is_unreachable_and_may_be_repeated() -> None:
    async with Client(Connection("https://192.0.2.1")) as client:
        pass
    with pytest.raises(Unreachable, match="closed"):
        await client.get(PODS, Key("default", "web"))
