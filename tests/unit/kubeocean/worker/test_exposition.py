"""Of a kubelet's page only our pods are left, and they bear their virtual names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.worker.exposition import Alias, Exposition, Reading, Tenancy
from kubeocean.worker.summary import CpuMeter, node_series
from vkubelet.api.objects import PodRef

UID = "1b8d4b3e-0d3c-4b0f-9d2b-1f2e3d4c5b6a"
PHYSICAL_UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
WEB = Alias(PodRef("shop", "web", UID, "vnode-1"), "web-01234567", PHYSICAL_UID)
TENANCY = Tenancy(node="vnode-1", namespace="mount", aliases=(WEB,))

RESOURCE = """\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="mount",pod="web-01234567"} 4.710169 1633253812125
container_cpu_usage_seconds_total{container="main",namespace="mount",pod="somebody-else"} 9.9 1633253812125
container_cpu_usage_seconds_total{container="main",namespace="kube-system",pod="web-01234567"} 8.8 1633253812125
# HELP container_swap_usage_bytes [ALPHA] Current amount of the container swap usage in bytes
# TYPE container_swap_usage_bytes gauge
container_swap_usage_bytes{container="main",namespace="kube-system",pod="secret-project"} 7
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 357.35491 1633253809720
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.616273408e+09 1633253809720
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="mount",pod="web-01234567"} 4.75 1633253810001
pod_cpu_usage_seconds_total{namespace="mount",pod="somebody-else"} 9.95 1633253810001
# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="mount",pod="web-01234567"} 1.2345678e+07 1633253810002
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
"""

POD_CGROUP = f"/kubepods.slice/kubepods-pod{PHYSICAL_UID.replace('-', '_')}.slice"
CADVISOR = f"""\
# HELP cadvisor_version_info A metric with a constant '1' value labeled by kernel version, OS version
# TYPE cadvisor_version_info gauge
cadvisor_version_info{{cadvisorRevision="",kernelVersion="6.1",osVersion="Debian"}} 1
# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed in seconds.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{{container="",cpu="total",id="/",image="",name="",namespace="",pod=""}} 99.1 1633253812000
container_cpu_usage_seconds_total{{container="",cpu="total",id="{POD_CGROUP}",image="",name="",namespace="mount",pod="web-01234567"}} 4 1
container_cpu_usage_seconds_total{{container="main",cpu="total",id="/kubepods/pod{PHYSICAL_UID}/c1",image="app \\"1\\" \\\\",name="c1",\
namespace="mount",pod="web-01234567"}} 4.7 1
# HELP container_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
# TYPE container_scrape_error gauge
container_scrape_error 0
# HELP machine_memory_bytes Amount of memory installed on the machine.
# TYPE machine_memory_bytes gauge
machine_memory_bytes{{boot_id="b",machine_id="m",system_uuid="s"}} 2.5e+10
"""

PROBES = f"""\
# TYPE prober_probe_total counter
prober_probe_total{{container="main",namespace="mount",pod="web-01234567",pod_uid="{PHYSICAL_UID}",probe_type="Startup",result="failed"}} 3
"""


def shown(page: str, *, label_node: bool = False) -> tuple[str, Exposition]:
    exposition = Exposition(TENANCY, label_node=label_node)
    return (exposition.feed(page.encode()) + exposition.end()).decode(), exposition


def test_only_our_pod_is_left_and_bears_its_virtual_name() -> None:
    text, _ = shown(RESOURCE)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {(sample.name, sample.labels.get("namespace"), sample.labels.get("pod")) for sample in samples} == {
        ("container_cpu_usage_seconds_total", "shop", "web"),
        ("pod_cpu_usage_seconds_total", "shop", "web"),
        ("pod_memory_working_set_bytes", "shop", "web"),
        ("resource_scrape_error", None, None),
    }
    assert [sample.value for sample in samples] == [4.710169, 4.75, 12345678.0, 0]


def test_a_family_of_which_nothing_is_left_is_not_described() -> None:
    text, _ = shown(RESOURCE)
    assert "container_swap_usage_bytes" not in text and "node_cpu" not in text
    assert text.count("# TYPE") == text.count("# HELP") == 4


def test_labels_stand_in_the_order_that_readers_by_place_expect() -> None:
    text, _ = shown(RESOURCE)
    assert 'container_cpu_usage_seconds_total{container="main",pod="web",namespace="shop"} 4.710169 1633253812125\n' in text
    assert 'pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 4.75 1633253810001\n' in text


def test_what_the_pods_and_the_machine_say_of_themselves_is_kept_for_the_sum() -> None:
    _, exposition = shown(RESOURCE)
    assert exposition.readings() == {UID: Reading(cpu=4_750_000_000, memory=12345678, at=1633253812125)}
    assert exposition.measured_at == 1633253809720


def test_a_value_that_is_no_number_is_passed_on_but_not_summed() -> None:
    line = 'pod_cpu_usage_seconds_total{namespace="mount",pod="web-01234567"} NaN\n'
    text, exposition = shown(line)
    assert "NaN" in text and exposition.readings() == {UID: Reading()}


def test_containers_count_as_long_as_the_pod_itself_has_not_been_measured() -> None:
    page = "".join(
        f'container_memory_working_set_bytes{{container="{c}",namespace="mount",pod="web-01234567"}} {v}\n' for c, v in ("a1", "b2")
    )
    assert shown(page)[1].readings()[UID].memory == 3
    pod = 'pod_memory_working_set_bytes{namespace="mount",pod="web-01234567"} '
    assert shown(page + pod + "0\n")[1].readings()[UID].memory == 3
    assert shown(page + pod + "4\n")[1].readings()[UID].memory == 4


def test_cgroups_bear_the_virtual_uid_and_series_the_virtual_node() -> None:
    text, _ = shown(CADVISOR, label_node=True)
    assert PHYSICAL_UID not in text and PHYSICAL_UID.replace("-", "_") not in text
    [family, errors] = text_string_to_metric_families(text)
    pod, container = family.samples
    assert pod.labels["id"] == f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
    assert container.labels == {
        "container": "main",
        "pod": "web",
        "namespace": "shop",
        "cpu": "total",
        "id": f"/kubepods/pod{UID}/c1",
        "image": 'app "1" \\',
        "name": "c1",
        "node": "vnode-1",
    }
    assert errors.name == "container_scrape_error"


def test_nothing_is_told_of_the_machine() -> None:
    text, _ = shown(CADVISOR)
    assert not re.search(r"machine|kernel|99\.1|cadvisor_version", text)


def test_probes_bear_the_virtual_uid() -> None:
    text, _ = shown(PROBES)
    assert f'pod_uid="{UID}"' in text and PHYSICAL_UID not in text


@given(st.lists(st.integers(0, len(CADVISOR)), max_size=12))
def test_it_does_not_matter_in_which_pieces_the_page_arrives(cuts: list[int]) -> None:
    exposition = Exposition(TENANCY)
    edges = [0, *sorted(cuts), len(CADVISOR)]
    pieces = [exposition.feed(CADVISOR[a:b].encode()) for a, b in zip(edges, edges[1:], strict=False)]
    assert b"".join([*pieces, exposition.end()]).decode() == shown(CADVISOR)[0]


NAMES = st.sampled_from(["mount", "web-01234567", "other", 'x",namespace="mount', 'x",pod="web-01234567', "a,namespace=", "\\"])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@given(st.dictionaries(st.sampled_from(["namespace", "pod", "xnamespace", "image", "container"]), NAMES), st.randoms(use_true_random=False))
def test_no_label_of_another_tenant_can_be_written_so_that_its_series_passes(labels: dict[str, str], random: object) -> None:
    block = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    text, _ = shown(f"container_memory_rss{{{block}}} 42\n")
    ours = (labels.get("namespace"), labels.get("pod")) == ("mount", "web-01234567")
    assert bool(text) == ours


def test_a_page_without_lines_is_given_up() -> None:
    exposition = Exposition(TENANCY)
    with pytest.raises(ValueError, match="no end"):
        for _ in range(40):
            exposition.feed(b"x" * 65536)


@pytest.mark.parametrize("value", [b"1e308", b"-1e308", b"1 " + b"9" * 300, b"1 " + b"9" * 5000])
def test_a_number_beyond_all_others_is_no_reading(value: bytes) -> None:
    page = Exposition(TENANCY)
    name = WEB.physical_name.encode()
    page.feed(b'pod_cpu_usage_seconds_total{namespace="%b",pod="%b"} %b\n' % (TENANCY.namespace.encode(), name, value))
    meter = CpuMeter()
    readings = page.readings()
    meter.add(
        {uid: each.cpu for uid, each in readings.items() if each.cpu is not None},
        alive=set(readings),
        at=max((each.at for each in readings.values()), default=0),
    )
    assert node_series(readings.values(), meter)
