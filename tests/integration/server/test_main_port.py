"""The port of a node that is alone in its process, and of one that published another port before."""

from __future__ import annotations

import pytest

from tests.integration.server.offline import offline
from vkubelet.testing.cluster.network import free_port


async def test_a_node_alone_is_served_at_the_main_port_until_it_has_company() -> None:
    main = free_port(set())
    async with offline(main_port=main, port_first=20000, port_last=20999) as server:
        assert (await server.open("edge", alone=True)).port == main
        assert (await server.open("edge", preferred_port=main, alone=True)).port == main
        assert server.sole_node == "edge"
        second = await server.open("edge-2", alone=False)
        first = await server.open("edge", preferred_port=main, alone=False)
        assert 20000 <= first.port <= 20999 and 20000 <= second.port <= 20999
        assert server.sole_node is None
        # What it has then it keeps, though the other node goes.
        await server.close("edge-2")
        assert await server.open("edge", preferred_port=first.port, alone=True) == first
        await server.close("edge")
        assert (await server.open("edge", preferred_port=first.port, alone=True)).port == main


async def test_before_all_nodes_are_known_a_node_keeps_the_main_port_it_published() -> None:
    main = free_port(set())
    async with offline(main_port=main, port_first=20000, port_last=20999) as server:
        assert (await server.open("kept", preferred_port=main, alone=None)).port == main
        assert (await server.open("new", alone=None)).port != main


@pytest.mark.parametrize("main_port", [0, False])
async def test_without_a_fixed_main_port_a_node_alone_has_its_own(main_port: int | bool) -> None:
    async with offline(main_port=main_port, port_first=20000, port_last=20999) as server:
        assert 20000 <= (await server.open("edge", alone=True)).port <= 20999


async def test_a_published_port_outside_the_range_is_replaced() -> None:
    async with offline(port_first=20000, port_last=20999) as server:
        assert 20000 <= (await server.open("edge", preferred_port=26839)).port <= 20999
        assert (await server.open("other", preferred_port=20555)).port == 20555
