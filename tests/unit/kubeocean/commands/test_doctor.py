"""The output of `kubeocean doctor`: by subject, each finding with its commands."""

from __future__ import annotations

from kubeocean.commands.doctor import blocks, result
from kubeocean.doctor.findings import Checked, error, few, warning

DONE = [
    Checked(subject="hub", check="API server"),
    Checked(subject="hub", check="definitions"),
    Checked(subject="ClusterBinding demo", check="connection", findings=[warning("w"), error("Secret s is missing", "kubectl create s")]),
    Checked(subject="ClusterBinding demo", check="nodes", findings=[warning("old")]),
    Checked(subject="ClusterBinding demo", check="pods", skipped="you may not list pods"),
]


def test_results_are_grouped_and_counted() -> None:
    assert list(blocks(DONE, wide=False)) == [
        "hub",
        "  ok       API server, definitions",
        "",
        "ClusterBinding demo",
        "  warning  connection: w",
        "  error    connection: Secret s is missing",
        "           $ kubectl create s",
        "  warning  nodes: old",
        "  skipped  pods: you may not list pods",
        "",
        "1 errors, 2 warnings, 1 checks skipped",
    ]


def test_a_check_counts_as_its_worst_finding() -> None:
    assert [result(each) for each in DONE] == ["ok", "ok", "error", "warning", "skipped"]
    assert [each.failed for each in DONE] == [False, False, True, False, False]


def test_long_lists_of_names_are_shortened() -> None:
    assert (few("abc"), few("abcde"), few([])) == ("a, b, c", "a, b, c and 2 more", "")
