"""Tests of kubeocean.networkpolicies.translate and desired: what applies in the worker, and that it never allows more than in the hub."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model import keys
from kubeocean.networkpolicies.desired import WITHIN, Desired, complement, desired
from kubeocean.networkpolicies.translate import Spaces
from kubeocean.rbac.tenants import isolation
from kubeocean.worker.cluster import Mount
from tests.support.policies import Peer, Plugin, selects
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Json, Unknown

MOUNT = Mount(OWNER, "mnt", keys.PER_NAMESPACE)
NAMESPACES: Mapping[str, Mapping[str, str]] = {
    "shop": {"kubernetes.io/metadata.name": "shop", "team": "red"},
    "ml": {"kubernetes.io/metadata.name": "ml", "team": "blue"},
    "idle": {"kubernetes.io/metadata.name": "idle", "team": "blue"},
    "kube-system": {"kubernetes.io/metadata.name": "kube-system"},
}
SPACES = Spaces(mount=MOUNT, labels=NAMESPACES, prepared=frozenset({"shop", "ml"}))
OURS = {keys.OWNER: OWNER.mark}
DNS_OF_WORKER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def policy(name: str = "web", namespace: str = "shop", **spec: Any) -> Unknown:
    return unknown({"metadata": {"name": name, "namespace": namespace}, "spec": {"podSelector": {}, **spec}})


def foreign(body: Json) -> Unknown:
    return unknown(body)


def in_worker(*policies: Unknown, spaces: Spaces = SPACES, others: tuple[Unknown, ...] = (), limited: bool = False) -> Desired:
    return desired("shop", policies, others=others, spaces=spaces, limited=limited)


def spec_of(found: Desired, name: str = "web") -> Json:
    body: Json = found.bodies[keys.physical_name("shop", name)]["spec"]
    return body


def from_(*peers: Json, **rule: Any) -> Json:
    return {"policyTypes": ["Ingress"], "ingress": [{"from": list(peers), **rule}]}


def test_mirror_selects_pods_of_this_binding_and_keeps_what_means_the_same() -> None:
    ports = [{"port": "http", "protocol": "TCP"}, {"port": 8000, "endPort": 8010, "protocol": "UDP"}, {"protocol": "SCTP"}]
    block = {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}}
    original = policy(
        podSelector={"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]},
        policyTypes=["Ingress", "Egress"],
        ingress=[{"from": [block, {"podSelector": {"matchLabels": {"app": "front"}}}], "ports": ports}],
        egress=[{"to": [block]}],
    )
    found = in_worker(original)
    (body,) = found.bodies.values()
    assert found.problems == ()
    assert body["metadata"] == {
        "name": keys.physical_name("shop", "web"),
        "namespace": "mnt-shop",
        "labels": OWNER.labels,
        "annotations": {**OWNER.annotations, keys.VIRTUAL_NAMESPACE: "shop", keys.VIRTUAL_NAME: "web"},
    }
    assert body["spec"] == {
        "podSelector": {"matchLabels": {"app": "web", **OURS}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": ports, "from": [block, {"podSelector": {"matchLabels": {"app": "front", **OURS}}}]}],
        "egress": [{"to": [block]}],
    }


def test_directions_are_those_of_the_api_server_where_the_field_is_missing() -> None:
    assert spec_of(in_worker(policy()))["policyTypes"] == ["Ingress"]
    assert spec_of(in_worker(policy(egress=[{}])))["policyTypes"] == ["Ingress", "Egress"]


def test_a_policy_without_rules_isolates_and_one_with_an_empty_rule_allows_all() -> None:
    assert "ingress" not in spec_of(in_worker(policy(policyTypes=["Ingress"])))
    assert spec_of(in_worker(policy(policyTypes=["Ingress"], ingress=[{}])))["ingress"] == [{}]


def test_selected_namespaces_are_those_of_their_pods_in_the_worker() -> None:
    blue = {"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {"matchLabels": {"app": "job"}}}
    (rule,) = spec_of(in_worker(policy(**from_(blue))))["ingress"]
    assert rule["from"] == [
        {
            "namespaceSelector": {
                "matchLabels": {keys.TENANT_OF: "mnt"},
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["mnt-ml"]}],
            },
            "podSelector": {"matchLabels": {"app": "job", **OURS}},
        }
    ], "namespace idle has none in the worker"


def test_all_namespaces_are_those_of_tenants() -> None:
    (rule,) = spec_of(in_worker(policy(**from_({"namespaceSelector": {}}))))["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {keys.TENANT_OF: "mnt"}}, "podSelector": {"matchLabels": OURS}}]


def test_a_rule_whose_peers_are_all_in_the_hub_allows_nothing() -> None:
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    found = in_worker(policy(**from_(monitoring)))
    assert "ingress" not in spec_of(found), "an empty list of peers would allow all"
    assert found.problems == ()


@pytest.mark.parametrize(
    ("peer", "reaches"),
    [
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}, True),
        (
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            },
            True,
        ),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, False),
        ({"podSelector": {}}, False),
    ],
)
def test_what_may_be_sent_to_the_dns_of_the_hub_may_be_sent_to_that_of_the_worker(peer: Json, reaches: bool) -> None:
    ports = [{"port": 53, "protocol": "UDP"}]
    spec = spec_of(in_worker(policy(policyTypes=["Egress"], egress=[{"to": [peer], "ports": ports}])))
    peers = [(each, rule["ports"]) for rule in spec.get("egress", ()) for each in rule["to"]]
    assert ((DNS_OF_WORKER, ports) in peers) is reaches
    assert str(DNS_OF_WORKER) not in str(in_worker(policy(**from_(peer))).bodies), "the DNS opens no connection"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"podSelector": {"matchLabels": {"kubeocean.io/owner": "x", "app": "web"}}}, "spec.podSelector"),
        ({"podSelector": {"matchLabels": {"patched": "x", "app": "web"}}}, "spec.podSelector"),
        ({"podSelector": {"matchLabels": {"kubernetes.io/config.hash": "x", "app": "web"}}}, "spec.podSelector"),
        ({"podSelector": {"matchLabels": {"app": "web"}, "matchFuture": []}}, "spec.podSelector.matchFuture"),
        ({"podSelector": {"matchLabels": {"app": "web"}}, "action": "Deny"}, "spec.action"),
    ],
)
def test_pods_that_cannot_be_selected_exactly_are_isolated_and_nothing_is_allowed(spec: Json, path: str) -> None:
    found = in_worker(policy(ingress=[{}], **spec), spaces=evolve(SPACES, patched=("patched",)))
    made = spec_of(found)
    assert made == {"podSelector": {"matchLabels": {"app": "web", **OURS}}, "policyTypes": ["Ingress"]}
    (problem,) = found.problems
    assert problem.startswith(f"{path} of NetworkPolicy shop/web ") and "nothing is allowed by it" in problem


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ({"from": [{"podSelector": {"matchExpressions": [{"key": "kubeocean.io/x", "operator": "DoesNotExist"}]}}]}, "from[0].podSelector"),
        ({"from": [{"podSelector": {}, "serviceSelector": {}}]}, "from[0].serviceSelector"),
        ({"from": [{"namespaceSelector": {"matchFuture": []}}]}, "from[0].namespaceSelector.matchFuture"),
        ({"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "asn": 1}}]}, "from[0].ipBlock.asn"),
        ({"when": "noon"}, "when"),
        ({"ports": [{"port": 80, "rate": 1}]}, "ports[0].rate"),
    ],
)
def test_a_rule_with_a_part_that_cannot_be_carried_over_is_left_out_and_named(rule: Json, path: str) -> None:
    found = in_worker(policy(policyTypes=["Ingress"], ingress=[rule, {"ports": [{"port": 443}]}]))
    assert spec_of(found)["ingress"] == [{"ports": [{"port": 443}]}]
    (problem,) = found.problems
    assert problem.startswith(f"spec.ingress[0].{path} of NetworkPolicy shop/web ")


def test_a_policy_that_waits_for_its_finalizers_applies_as_in_the_hub() -> None:
    """Network plugins enforce it until it is deleted: without a mirror the worker would be more open than the hub."""
    ending = {"name": "web", "namespace": "shop", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    found = in_worker(unknown({"metadata": ending, "spec": {"podSelector": {}}}), others=(foreign(isolation("mnt-shop")),))
    assert set(found.bodies) == {keys.physical_name("shop", "web")}


# --- Beside policies of the worker's owner ------------------------------------------------------------------------------------------------

ISOLATION = foreign(isolation("mnt-shop"))


def theirs(name: str = "theirs", **spec: Any) -> Unknown:
    return unknown({"metadata": {"name": name, "namespace": "mnt-shop"}, "spec": {"podSelector": {}, **spec}})


def test_pods_reach_one_another_unless_a_policy_of_the_hub_selects_them() -> None:
    alone = in_worker(others=(ISOLATION,))
    assert {name: body["spec"] for name, body in alone.bodies.items()} == {
        WITHIN: {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}
    }
    assert keys.VIRTUAL_NAME not in alone.bodies[WITHIN]["metadata"]["annotations"]
    some = in_worker(policy(podSelector={"matchLabels": {"app": "web"}}), others=(ISOLATION,))
    assert some.bodies[WITHIN]["spec"]["podSelector"] == {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}
    assert set(in_worker(policy(), others=(ISOLATION,)).bodies) == {keys.physical_name("shop", "web")}, "denied by default"
    assert set(in_worker(policy(egress=[{}], policyTypes=["Egress"]), others=(ISOLATION,)).bodies) > {WITHIN}


def test_nothing_is_opened_where_nothing_isolates() -> None:
    assert in_worker().bodies == {}


def test_too_many_combinations_of_labels_stay_closed_and_are_named() -> None:
    many = [policy(f"p{at}", podSelector={"matchLabels": {f"a{at}": "x", f"b{at}": "y"}}) for at in range(6)]
    found = in_worker(*many, others=(ISOLATION,))
    assert not any(name.startswith(WITHIN) for name in found.bodies)
    assert any("do not reach one another" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ([{"matchLabels": {f"l{at}": "x" for at in range(20_000)}}], None),
        ([{"matchLabels": {"app": "web"}}, {"matchLabels": {"app": "web", **{f"l{at}": "x" for at in range(20_000)}}}], 1),
        ([{"matchExpressions": [{"key": "app", "operator": "Exists"}] * 20_000}], 1),
        ([{"matchLabels": {f"l{at}": "x" for at in range(32)}}] * 1_000, 32),
        ([{"matchLabels": {f"l{at}": "x"}} for at in range(1_000)], 1),
    ],
)
def test_selectors_of_any_size_do_not_block_the_event_loop(selectors: list[Json], expected: int | None) -> None:
    began = time.process_time()
    found = complement(selectors)
    assert time.process_time() - began < 1
    assert (found if found is None else len(found)) == expected


def test_peers_beyond_the_limit_are_named_and_stay_closed() -> None:
    def peers(count: int) -> Json:
        return from_(*({"namespaceSelector": {"matchLabels": {"team": "blue"}}} for _ in range(count)))

    exactly = in_worker(policy("a", **peers(60)), policy("b", **peers(40)), policy("c", **from_({"podSelector": {}})))
    assert exactly.problems == () and len(spec_of(exactly, "b")["ingress"][0]["from"]) == 40
    found = in_worker(policy("a", **peers(60)), policy("b", **peers(41)), policy("c", **peers(1)))
    assert len(spec_of(found, "b")["ingress"][0]["from"]) == 40 and "ingress" not in spec_of(found, "c")
    (problem,) = found.problems
    assert problem.startswith("the NetworkPolicies of namespace shop have more than 100 peers") and "shop/b, shop/c" in problem


@pytest.mark.parametrize(
    "selectors",
    [
        [{"matchLabels": {"team": "blue"}} for _ in range(10_000)],
        [{"matchLabels": {f"l{at}": "x"}} for at in range(10_000)],
        [{"matchExpressions": [{"key": "team", "operator": "In", "values": [f"v{at}" for at in range(20_000)]}]}],
        [{"matchExpressions": [{"key": f"l{at}", "operator": "DoesNotExist"} for at in range(20_000)]}],
    ],
)
def test_selectors_of_namespaces_do_not_block_the_event_loop(selectors: list[Json]) -> None:
    spaces = evolve(SPACES, labels={**NAMESPACES, **{f"n{at}": {"team": "blue"} for at in range(300)}})
    given = policy(**from_(*({"namespaceSelector": each} for each in selectors)))
    began = time.process_time()
    found = in_worker(given, spaces=spaces)
    assert time.process_time() - began < 1
    assert len(found.problems) == 1


def test_labels_that_pods_do_not_have_in_the_worker_do_not_block_the_event_loop() -> None:
    given = policy(podSelector={"matchLabels": {f"{keys.DOMAIN}/l{at}": "x" for at in range(20_000)}})
    began = time.process_time()
    found = in_worker(given, others=(ISOLATION,))
    assert time.process_time() - began < 1
    assert spec_of(found)["podSelector"] == {"matchLabels": OURS} and len(found.problems) == 1


def test_a_policy_of_the_owner_that_opens_more_is_named_only_where_the_hub_isolates() -> None:
    old = theirs("kubeocean-tenant", policyTypes=["Ingress"], ingress=[{"from": [{"podSelector": {}}]}])
    assert in_worker(others=(old,)) == Desired({})
    found = in_worker(policy(), others=(old,))
    (problem,) = found.problems
    assert problem.startswith("NetworkPolicy mnt-shop/kubeocean-tenant of the worker allows") and "removes spec.ingress" in problem
    assert set(found.bodies) == {keys.physical_name("shop", "web")}


@pytest.mark.parametrize("limited", [True, False])
def test_egress_that_the_owner_limits_is_never_opened(limited: bool) -> None:
    others = () if limited else (theirs(policyTypes=["Egress"]),)
    both = policy(policyTypes=["Ingress", "Egress"], egress=[{}])
    found = in_worker(both, policy("out", policyTypes=["Egress"], egress=[{}]), others=others, limited=limited)
    assert [body["spec"]["policyTypes"] for body in found.bodies.values()] == [["Ingress"]]
    assert "egress" not in spec_of(found)
    (problem,) = found.problems
    assert problem.startswith("spec.egress of the NetworkPolicies of namespace shop is not carried over: in namespace mnt-shop")
    assert in_worker(policy(), others=others, limited=limited).problems == (), "a policy of the other direction is not concerned"


# --- Against an independent judge ---------------------------------------------------------------------------------------------------------

LABELS = st.fixed_dictionaries({}, optional={"app": st.sampled_from("ab"), "tier": st.sampled_from("xy")})
REQUIREMENTS = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(["app", "tier"]),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from("abxy"), min_size=1, max_size=2, unique=True),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(["app", "tier", "kubeocean.io/owner"]),
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
SELECTORS = st.builds(
    lambda labels, expressions: {"matchLabels": labels, "matchExpressions": expressions}, LABELS, st.lists(REQUIREMENTS, max_size=1)
)
CHOSEN = st.one_of(st.just({}), st.builds(lambda team: {"matchLabels": {"team": team}}, st.sampled_from(["red", "blue", "green"])))
PEERS = st.one_of(
    st.fixed_dictionaries({"podSelector": SELECTORS}),
    st.fixed_dictionaries({"namespaceSelector": CHOSEN}, optional={"podSelector": SELECTORS}),
    st.just({"ipBlock": {"cidr": "192.0.2.0/24"}}),
)
PORTS = st.one_of(
    st.builds(lambda port: {"port": port, "protocol": "TCP"}, st.sampled_from([80, 81, "http"])),
    st.just({"port": 75, "endPort": 80, "protocol": "TCP"}),
)


def rules(side: str) -> st.SearchStrategy[list[Json]]:
    rule = st.fixed_dictionaries({}, optional={side: st.lists(PEERS, max_size=2), "ports": st.lists(PORTS, max_size=1)})
    return st.lists(rule, max_size=2)


POLICIES = st.lists(
    st.builds(
        lambda namespace, **spec: (namespace, spec),
        st.sampled_from(["shop", "ml"]),
        podSelector=SELECTORS,
        policyTypes=st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]]),
        ingress=rules("from"),
        egress=rules("to"),
    ),
    max_size=4,
)
PODS = st.lists(st.tuples(st.sampled_from(["shop", "ml"]), LABELS), min_size=2, max_size=4)


@given(specs=POLICIES, pods=PODS)
def test_the_worker_admits_what_the_hub_does_and_never_more(specs: list[tuple[str, Json]], pods: list[tuple[str, dict[str, str]]]) -> None:
    found = [policy(f"p{at}", namespace, **spec) for at, (namespace, spec) in enumerate(specs)]
    hub = Plugin([each.body for each in found], NAMESPACES)
    worker_policies, problems = [], []
    for name in ("shop", "ml"):
        isolated = isolation(f"mnt-{name}")
        made = desired(name, [each for each in found if each.metadata.namespace == name], others=[foreign(isolated)], spaces=SPACES)
        worker_policies += [isolated, *made.bodies.values()]
        problems += made.problems
    tenants = {f"mnt-{name}": {"kubernetes.io/metadata.name": f"mnt-{name}", keys.TENANT_OF: "mnt"} for name in ("shop", "ml")}
    worker = Plugin(worker_policies, {**tenants, "local": {"kubernetes.io/metadata.name": "local"}})

    ports = {"http": 80}
    homes = [Peer(namespace, labels, ports=ports) for namespace, labels in pods]
    leased = [Peer(f"mnt-{namespace}", {**labels, **OURS}, ports=ports) for namespace, labels in pods]
    for source, source_there in zip(homes, leased, strict=True):
        for target, target_there in zip(homes, leased, strict=True):
            for port in (80, 443):
                here, there = hub.admits(source, target, port), worker.admits(source_there, target_there, port)
                assert here or not there, "never more open"
                within = source.namespace == target.namespace or hub.is_isolated(target, "Ingress")
                assert problems or there or not (here and within), "what the hub allows is allowed"
    outside, local = Peer(address="198.51.100.1"), Peer("local", {"app": "a", "tier": "x"})
    for target, target_there in zip(homes, leased, strict=True):
        assert hub.admits(outside, target) or not worker.admits(local, target_there), "a pod of the worker's owner is a stranger"
        assert hub.admits(target, outside) or not worker.admits(target_there, local)


@given(selectors=st.lists(SELECTORS, max_size=4), labels=LABELS)
def test_the_complement_selects_exactly_what_no_selector_does(selectors: list[Json], labels: dict[str, str]) -> None:
    found = complement(selectors)
    if found is not None:
        assert any(selects(each, labels) for each in found) is not any(selects(each, labels) for each in selectors)
