"""What a pod is told of itself, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from vkubelet.resolve.downward import Facts, field_value, format_map, one_of_each_family, resource_value
from vkubelet.testing.host import make_pod, with_status

LIMITED = {
    "limits": {"cpu": "1500m", "memory": "100Mi", "ephemeral-storage": "2Gi", "hugepages-2Mi": "4Mi"},
    "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"},
}
ALLOCATABLE = {"cpu": "3900m", "memory": "7Gi", "ephemeral-storage": "90G", "hugepages-2Mi": "1Gi"}


def facts(
    *,
    pod_ips: Sequence[str] = ("10.1.0.5", "fd00::5"),
    host_ips: Sequence[str] = ("192.0.2.1", "fd01::1"),
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Facts:
    metadata = {"labels": {"app": "web", "a.io/b": "c"}, "annotations": {"Note": 'say "hi"\nthere'}}
    pod = make_pod("web", node="n1", metadata=metadata, spec={"serviceAccountName": "robot", **spec})
    if status is not None:
        pod = with_status(pod, status)
    return Facts.of(pod, pod_ips=pod_ips, host_ips=host_ips, allocatable=ALLOCATABLE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-web"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['a.io/b']", "c"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['Note']", 'say "hi"\nthere'),
        ("spec.nodeName", "n1"),
        ("spec.host", "n1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,fd01::1"),
        ("status.podIP", "10.1.0.5"),
        ("status.podIPs", "10.1.0.5,fd00::5"),
        ("metadata.labels", 'a.io/b="c"\napp="web"'),
        ("metadata.annotations", 'Note="say \\"hi\\"\\nthere"'),
    ],
)
def test_every_field_of_the_documentation_is_told(path: str, value: str) -> None:
    assert field_value(facts(), path) == value


@pytest.mark.parametrize(
    "path", ["metadata.generateName", "spec.containers['x']", "metadata.name['x']", "metadata.labels[app]", "", "status"]
)
def test_other_paths_are_refused_by_name(path: str) -> None:
    with pytest.raises(ValueError, match="unsupported fieldPath"):
        field_value(facts(), path)


def test_a_pod_on_the_hosts_network_has_the_hosts_addresses() -> None:
    assert field_value(facts(pod_ips=(), hostNetwork=True), "status.podIPs") == "192.0.2.1,fd01::1"
    assert field_value(facts(pod_ips=()), "status.podIP") == ""


def test_addresses_that_nobody_tells_are_the_published_ones() -> None:
    known = facts(pod_ips=(), status={"podIPs": [{"ip": "10.1.0.8"}]})
    assert field_value(known, "status.podIP") == "10.1.0.8"


@pytest.mark.parametrize(
    ("ips", "host", "chosen"),
    [
        (["10.0.0.1", "fd00::1"], ["192.0.2.1"], ("10.0.0.1", "fd00::1")),
        (["10.0.0.1", "fd00::1"], ["fd01::1"], ("fd00::1", "10.0.0.1")),
        (["fd00::1", "10.0.0.1"], [], ("10.0.0.1", "fd00::1")),
        (["10.0.0.1", "10.0.0.2", "fd00::1"], ["192.0.2.1"], ("10.0.0.1", "fd00::1")),
        (["fd00::1"], ["192.0.2.1"], ("fd00::1",)),
    ],
)
def test_addresses_are_one_of_each_family_first_that_of_the_node(ips: list[str], host: list[str], chosen: tuple[str, ...]) -> None:
    assert one_of_each_family(ips, host) == chosen


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain ä 日本", "plain ä 日本"),
        ("a\tb", "a\\tb"),
        ("\x00\x1b\x7f", "\\x00\\x1b\\x7f"),
        ("\u00a0\u200b", "\\u00a0\\u200b"),
        ("\U000e0001", "\\U000e0001"),
        ("back\\slash", "back\\\\slash"),
        ("'", "'"),
    ],
)
def test_values_of_maps_are_quoted_as_go_quotes(text: str, quoted: str) -> None:
    assert format_map({"k": text}) == f'k="{quoted}"'


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "0", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", "1", "1"),
        ("requests.cpu", "1m", "250"),
        ("limits.memory", None, "104857600"),
        ("limits.memory", "1Mi", "100"),
        ("limits.memory", "1M", "105"),
        ("requests.memory", "1Gi", "1"),
        ("limits.ephemeral-storage", "1Gi", "2"),
        ("requests.ephemeral-storage", "1Mi", "1024"),
        ("limits.hugepages-2Mi", "1Mi", "4"),
        ("requests.hugepages-2Mi", None, "4194304"),
    ],
)
def test_resources_are_divided_and_rounded_up(resource: str, divisor: str | None, value: str) -> None:
    reference = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    assert resource_value(facts(), reference, {"name": "main", "resources": LIMITED}) == value


@pytest.mark.parametrize(
    ("resource", "value"),
    [
        ("limits.cpu", "4"),
        ("limits.memory", str(7 * 1024**3)),
        ("limits.ephemeral-storage", "90000000000"),
        ("limits.hugepages-2Mi", "0"),
        ("requests.cpu", "0"),
        ("requests.memory", "0"),
    ],
)
def test_missing_limits_are_those_of_the_node_and_missing_requests_nothing(resource: str, value: str) -> None:
    assert resource_value(facts(), {"resource": resource}, {"name": "main"}) == value


def test_limits_of_the_pod_go_before_those_of_the_node() -> None:
    known = facts(resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    assert resource_value(known, {"resource": "limits.cpu"}, {"name": "main"}) == "2"
    assert resource_value(known, {"resource": "limits.memory", "divisor": "1Mi"}, {"name": "main"}) == "1024"
    assert resource_value(known, {"resource": "limits.cpu", "divisor": "1m"}, {"name": "main", "resources": LIMITED}) == "1500"


def test_another_container_can_be_asked_for_also_an_init_container() -> None:
    known = facts(
        containers=[{"name": "main", "image": "x"}, {"name": "side", "image": "x", "resources": LIMITED}],
        initContainers=[{"name": "first", "image": "x", "resources": {"limits": {"cpu": "7"}}}],
    )
    assert resource_value(known, {"resource": "limits.cpu", "containerName": "side"}, {"name": "main"}) == "2"
    assert resource_value(known, {"resource": "limits.cpu", "containerName": "first"}, None) == "7"
    with pytest.raises(ValueError, match="container nobody not found"):
        resource_value(known, {"resource": "limits.cpu", "containerName": "nobody"}, None)


@pytest.mark.parametrize("resource", ["limits.gpu", "cpu", "usage.cpu", ""])
def test_other_resources_are_refused_by_name(resource: str) -> None:
    with pytest.raises(ValueError, match="unsupported container resource"):
        resource_value(facts(), {"resource": resource}, {"name": "main"})
