"""Tests of kubeocean.model.dns: which names the rewrites lead to which mirror."""

from __future__ import annotations

import re

import pytest

from kubeocean.model.dns import corefile, rewrites, services_zone
from kubeocean.model.keys import PER_NAMESPACE, Identity

SHARED, SPREAD = Identity("", "leased"), Identity("", "leased", PER_NAMESPACE)


def resolve(name: str, identity: Identity) -> str:
    """Returns the name that is looked up: of the first rule that matches."""
    for question, mirror in rewrites(identity, hub_domain="cluster.local", worker_domain="cluster.local"):
        if match := re.search(question, name):
            return filled(mirror, match)
    return name


def filled(template: str, match: re.Match[str]) -> str:
    """Replaces {1} as CoreDNS does: by the group, empty without a match."""
    return re.sub(r"\{(\d)\}", lambda number: match[int(number[1])] or "", template)


@pytest.mark.parametrize(
    ("name", "mirror"),
    [
        ("web.shop.leased.svc.cluster.local.", "web--shop."),
        ("web.shop.svc.cluster.local.leased.svc.cluster.local.", "web--shop."),
        ("web.shop.leased.kubeocean.internal.", "web--shop."),
        ("db-0.db.shop.leased.svc.cluster.local.", "db-0.db--shop."),
        ("db-0.db.shop.svc.cluster.local.leased.svc.cluster.local.", "db-0.db--shop."),
        ("db-0.db.shop.leased.kubeocean.internal.", "db-0.db--shop."),
        ("_http._tcp.web.shop.leased.svc.cluster.local.", "_http._tcp.web--shop."),
    ],
)
def test_name_leads_to_the_mirror(name: str, mirror: str) -> None:
    assert resolve(name, SHARED) == f"{mirror}leased.svc.cluster.local."


@pytest.mark.parametrize(
    ("name", "mirror"),
    [
        ("web.shop.leased-shop.svc.cluster.local.", "web.leased-shop."),
        ("web.shop.leased-other.svc.cluster.local.", "web.leased-shop."),
        ("web.shop.svc.cluster.local.leased-other.svc.cluster.local.", "web.leased-shop."),
        ("web.shop.leased.kubeocean.internal.", "web.leased-shop."),
        ("db-0.db.shop.leased-other.svc.cluster.local.", "db-0.db.leased-shop."),
        ("db-0.db.shop.svc.cluster.local.leased-shop.svc.cluster.local.", "db-0.db.leased-shop."),
        ("_http._tcp.web.shop.leased.kubeocean.internal.", "_http._tcp.web.leased-shop."),
    ],
)
def test_name_leads_to_the_namespace_of_its_tenant(name: str, mirror: str) -> None:
    assert resolve(name, SPREAD) == f"{mirror}svc.cluster.local."


@pytest.mark.parametrize("identity", [SHARED, SPREAD])
@pytest.mark.parametrize(
    "name",
    [
        "web.shop.svc.cluster.local.",
        "kube-dns.kube-system.svc.cluster.local.",
        "web--shop.leased.svc.cluster.local.",
        "web.leased-shop.svc.cluster.local.",
        "leased.svc.cluster.local.",
        "example.com.",
        "web.shop.leasedXsvc.cluster.local.",
        "web.shop.other.svc.cluster.local.",
        "web.shop.unleased-x.svc.cluster.local.",
    ],
)
def test_names_outside_the_zones_are_not_rewritten(name: str, identity: Identity) -> None:
    assert resolve(name, identity) == name


def test_names_below_the_mount_namespace_are_rewritten_only_where_mirrors_are_in_it() -> None:
    assert resolve("a.b.leased.svc.cluster.local.", SPREAD) == "a.b.leased.svc.cluster.local."
    assert resolve("a.b.leased-shop.svc.cluster.local.", SHARED) == "a.b.leased-shop.svc.cluster.local."


@pytest.mark.parametrize(("identity", "space"), [(SHARED, "leased"), (SPREAD, "leased-[^.]+")])
def test_rules_are_lines_of_a_corefile(identity: Identity, space: str) -> None:
    text = corefile(identity, hub_domain="hub.example", worker_domain="cluster.local")
    assert text.count("rewrite stop {\n    name regex ^") == text.count("\n    answer auto\n}\n") == 3
    assert f"[.]svc[.]hub[.]example[.]{space}[.]svc[.]cluster[.]local[.]$" in text
    assert services_zone("leased") == "leased.kubeocean.internal"
