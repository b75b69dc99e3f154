"""Tests of kubeocean.model.dns: which names the rewrites lead to which mirror, and back."""

from __future__ import annotations

import re

import pytest

from kubeocean.model.dns import corefile, rewrites, services_zone

RULES = rewrites("leased", hub_domain="cluster.local", worker_domain="cluster.local")
MIRRORS = "leased.svc.cluster.local."


def filled(template: str, match: re.Match[str]) -> str:
    """Replaces {1} as CoreDNS does: by the group, empty without a match."""
    return re.sub(r"\{(\d)\}", lambda number: match[int(number[1])] or "", template)


def resolve(name: str) -> tuple[str, str]:
    """Returns the name that is looked up, and the name of the answer: of the first rule that matches."""
    for question, mirror, answer, original in RULES:
        if match := re.search(question, name):
            asked = filled(mirror, match)
            back = re.search(answer, asked)
            return asked, filled(original, back) if back else asked
    return name, name


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
def test_name_leads_to_the_mirror_and_the_answer_has_the_name(name: str, mirror: str) -> None:
    assert resolve(name) == (f"{mirror}{MIRRORS}", name)


@pytest.mark.parametrize(
    "name",
    [
        "web.shop.svc.cluster.local.",
        "kube-dns.kube-system.svc.cluster.local.",
        "web--shop.leased.svc.cluster.local.",
        "leased.svc.cluster.local.",
        "example.com.",
        "web.shop.leasedXsvc.cluster.local.",
        "web.shop.other.svc.cluster.local.",
    ],
)
def test_names_outside_the_two_zones_are_not_rewritten(name: str) -> None:
    assert resolve(name)[0] == name


def test_rules_are_lines_of_a_corefile() -> None:
    text = corefile("leased", hub_domain="hub.example", worker_domain="cluster.local")
    assert text.count("rewrite stop {\n    name regex ^") == 3 and "[.]svc[.]hub[.]example[.]leased[.]svc[.]cluster[.]local[.]$" in text
    assert services_zone("leased") == "leased.kubeocean.internal"
