"""Which addresses nodes publish, as far as that is told without a route."""

from __future__ import annotations

import pytest

from vkubelet.errors import Unavailable
from vkubelet.server.address import published_addresses


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
async def test_an_address_that_is_listened_on_alone_is_the_one(address: str) -> None:
    assert await published_addresses(address, "https://203.0.113.1:6443") == (address,)


async def test_an_api_server_of_ipv6_is_no_way_to_find_an_address_of_ipv4() -> None:
    with pytest.raises(Unavailable, match=r"server\.bind_address listens on IPv4 only"):
        await published_addresses("0.0.0.0", "https://[2001:db8::5]:6443")
