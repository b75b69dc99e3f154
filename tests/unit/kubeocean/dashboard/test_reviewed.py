"""A request is reviewed as exactly the right by which an API server would judge it; what cannot be classified is refused."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from kubeocean.dashboard.reviewed import attributes
from kubeocean.model.crds import CLUSTERBINDINGS
from vkubelet.api.objects import NAMESPACES, NODES, PODS, SECRETS
from vkubelet.client.transport import Call


def asked(path: str, method: str = "GET", *params: tuple[str, str]) -> tuple[str, str, str, str, str, str] | None:
    check = attributes(Call(method, path, "", params=params))
    return (check.verb, check.group, check.resource, check.subresource, check.namespace, check.name) if check is not None else None


@pytest.mark.parametrize(
    ("path", "right"),
    [
        (PODS.path(""), ("list", "", "pods", "", "", "")),
        (PODS.path("team"), ("list", "", "pods", "", "team", "")),
        (PODS.path("team", "web"), ("get", "", "pods", "", "team", "web")),
        (PODS.path("team", "web", "log"), ("get", "", "pods", "log", "team", "web")),
        (NODES.path("", "vnode-a"), ("get", "", "nodes", "", "", "vnode-a")),
        (SECRETS.path("kubeocean-system", "demo-kubeconfig"), ("get", "", "secrets", "", "kubeocean-system", "demo-kubeconfig")),
        (NAMESPACES.path("", "kube-system"), ("get", "", "namespaces", "", "", "kube-system")),
        ("/api/v1/namespaces", ("list", "", "namespaces", "", "", "")),
        (CLUSTERBINDINGS.path("", "demo"), ("get", "cloud.tencent.com", "clusterbindings", "", "", "demo")),
        ("/api/v1/nodes/n/proxy", ("get", "", "nodes", "proxy", "", "n")),
    ],
)
def test_a_path_is_the_right_of_an_api_server(path: str, right: tuple[str, ...]) -> None:
    assert asked(path) == right


def test_a_watch_is_another_right_than_a_list() -> None:
    assert asked("/api/v1/pods", "GET", ("watch", "true")) == ("watch", "", "pods", "", "", "")
    assert asked("/api/v1/pods", "GET", ("labelSelector", "watch=true")) == ("list", "", "pods", "", "", "")


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/version", "GET"),
        ("/metrics", "GET"),
        ("/api", "GET"),
        ("/api/v1", "GET"),
        ("/apis/apps/v1", "GET"),
        ("/openapi/v2", "GET"),
        ("/api/v1/pods", "POST"),
        ("/api/v1/namespaces/a/pods/b", "DELETE"),
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews", "POST"),
        # An API server decodes the path first, and then splits it.
        (f"/api/v1/namespaces/mine/pods/{quote('../../other/pods/web', safe='')}", "GET"),
        ("/api/v1/namespaces/mine%2Fpods%2Fa/pods/b", "GET"),
        ("/api/v1/namespaces/mine/pods/..", "GET"),
        ("/api/v1/namespaces/mine/../other/pods", "GET"),
        ("/api/v1/namespaces/mine//pods", "GET"),
        ("/api/v1/nodes/n/proxy/pods", "GET"),
        ("/api/v1/namespaces/a/services/b/proxy/path", "GET"),
        ("/api/v1/watch/pods", "GET"),
        ("/api/v1/proxy/nodes/n", "GET"),
    ],
)
def test_what_is_no_plain_read_of_an_object_is_refused(path: str, method: str) -> None:
    assert asked(path, method) is None
