"""Where an API server keeps things."""

from __future__ import annotations

import pytest

from vkubelet.client.resources import LEASES, NODES, PODS


def test_paths_of_collections_objects_and_subresources() -> None:
    assert PODS.path("") == "/api/v1/pods"
    assert PODS.path("default") == "/api/v1/namespaces/default/pods"
    assert PODS.path("default", "web", "status") == "/api/v1/namespaces/default/pods/web/status"
    assert LEASES.path("kube-node-lease", "n") == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"
    assert NODES.path("", "n") == NODES.path("ignored", "n") == "/api/v1/nodes/n"


def test_names_can_not_lead_elsewhere() -> None:
    assert PODS.path("a/../b", "../secrets?x#y") == "/api/v1/namespaces/a%2F..%2Fb/pods/..%2Fsecrets%3Fx%23y"


@pytest.mark.parametrize(("namespace", "name", "subresource"), [("", "web", ""), ("default", "", "status")])
def test_incomplete_paths_are_refused(namespace: str, name: str, subresource: str) -> None:
    with pytest.raises(ValueError, match="missing"):
        PODS.path(namespace, name, subresource)


def test_api_version() -> None:
    assert (PODS.api_version, LEASES.api_version, str(PODS), str(LEASES)) == (
        "v1",
        "coordination.k8s.io/v1",
        "pods",
        "leases.coordination.k8s.io",
    )
