"""Which node the API server's node proxy names."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from vkubelet.server.node_pods import asks_for_upgrade, forwarded_node


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("/api/v1/nodes/edge-1/proxy/pods", "edge-1"),
        ("/api/v1/nodes/edge-1/proxy", "edge-1"),
        ("/api/v1/nodes/edge-1/proxy/", "edge-1"),
        ("/api/v1/nodes/a.b.example/proxy/stats/summary", "a.b.example"),
        ("/api/v1/nodes/edge-1:10250/proxy/pods", "edge-1"),
        ("/api/v1/nodes/https:edge-1:10250/proxy/pods", "edge-1"),
        ("/api/v1/nodes/edge-1/proxies/pods", None),
        ("/api/v1/nodes/edge-1", None),
        ("/api/v1/nodes//proxy/pods", None),
        ("/x/api/v1/nodes/edge-1/proxy/pods", None),
        ("/api/v1/nodes/edge-1%2f/proxy/pods", None),
        ("/api/v1/namespaces/a/pods/b/proxy/", None),
        ("https://hub/api/v1/nodes/edge-1/proxy/pods", None),
        ("", None),
    ],
)
def test_the_node_is_read_from_the_path_of_the_node_proxy(line: str, node: str | None) -> None:
    assert forwarded_node([line]) == node


def test_two_lines_that_name_nodes_name_none() -> None:
    path = "/api/v1/nodes/{}/proxy/pods"
    assert forwarded_node([path.format("a"), path.format("b")]) is None
    assert forwarded_node([]) is None


@pytest.mark.parametrize(
    ("headers", "upgrade"),
    [
        ([], False),
        ([("Connection", "keep-alive")], False),
        ([("Upgrade", "websocket")], True),
        ([("Connection", "Upgrade")], True),
        ([("connection", "keep-alive, UPGRADE")], True),
        ([("Connection", "close"), ("Connection", "xupgradex")], True),
    ],
)
def test_whatever_the_api_server_could_take_for_an_upgrade_is_one(headers: list[tuple[str, str]], upgrade: bool) -> None:
    assert asks_for_upgrade(CIMultiDictProxy(CIMultiDict(headers))) is upgrade
