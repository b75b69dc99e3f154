"""The rows of `kubeocean top`: sums of what is known, and no sum with a part that is not."""

from __future__ import annotations

from kubeocean.commands.output import Columns
from kubeocean.commands.top import By, Usage, amounts, blocks, merged, pods_of, rows_of
from tests.unit.kubeocean.builders import binding, node, pod
from vkubelet.api.objects import Json, Key, Node, Pod
from vkubelet.api.quantity import format_resources, parse_resources

NODES = {name: node(name=name, status={"allocatable": {"cpu": "4", "memory": "8Gi"}}) for name in ("a", "b")}


def on(name: str, node: str, namespace: str = "shop") -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return pod({"nodeName": node, "containers": [container]}, status={"phase": "Running"}, name=name, namespace=namespace, uid=name)


PODS = [on("x", "a"), on("y", "a", "blog"), on("z", "b")]
FOUND = Usage(
    nodes={"a": parse_resources({"cpu": "1", "memory": "2Gi"}), "b": parse_resources({"cpu": "500m", "memory": "1Gi"})},
    pods={
        Key("shop", "x"): parse_resources({"cpu": "600m", "memory": "1Gi"}),
        Key("shop", "z"): parse_resources({"cpu": "1m", "memory": "1Mi"}),
    },
)


def shown(by: By, found: Usage = FOUND, nodes: dict[str, Node] = NODES) -> list[tuple[str, int, str, str, str]]:
    rows = rows_of(binding(), nodes, PODS, found=found, by=by)
    return [(row.name, row.pods, str(row.cpu), row.percent("cpu"), row.percent("memory")) for row in rows]


def test_usage_is_shown_by_node_binding_and_namespace() -> None:
    assert shown(By.NODES) == [("a", 2, "1", "25%", "25%"), ("b", 1, "500m", "12%", "12%")]
    assert shown(By.BINDINGS) == [("demo", 3, "1500m", "18%", "18%")]
    assert shown(By.NAMESPACES) == [("blog", 1, "None", "-", "-"), ("shop", 2, "601m", "-", "-")]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    part = Usage(nodes={"a": FOUND.nodes["a"]})
    assert shown(By.NODES, part)[1] == ("b", 1, "None", "-", "-") and shown(By.BINDINGS, part) == [("demo", 3, "None", "-", "-")]


def test_rows_of_one_namespace_are_added_up_and_what_is_missing_follows() -> None:
    rows = merged([*rows_of(binding(), NODES, PODS, found=FOUND, by=By.NAMESPACES)] * 2)
    assert [(row.name, row.pods) for row in rows] == [("blog", 2), ("shop", 4)]
    table, missing = blocks(rows, ["no metrics"], by=By.NAMESPACES)
    assert isinstance(table, Columns) and list(table.rows[1]) == ["shop", "4", "1202m", "4", "2050Mi", "4Gi"] and missing == "! no metrics"
    assert "No virtual node exists" in str(blocks([], [], by=By.NODES)[0])


def test_a_summary_of_a_kubelet_is_read_with_what_it_has() -> None:
    container: Json = {"cpu": {"usageNanoCores": 1_500_001}, "memory": {"workingSetBytes": 1024}}
    document: Json = {
        "node": {"cpu": {"usageNanoCores": 2_000_000_000}, "memory": {}},
        "pods": [{"podRef": {"namespace": "shop", "name": "x"}, "containers": [container, container]}, {"podRef": {}, "containers": []}],
    }
    assert format_resources(amounts(document["node"])) == {"cpu": "2"}
    assert [(key, format_resources(each)) for key, each in pods_of(document)] == [(Key("shop", "x"), {"cpu": "4m", "memory": "2Ki"})]
