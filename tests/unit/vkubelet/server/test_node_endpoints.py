"""`/healthz` answers in the form of Kubernetes' health checks."""

from __future__ import annotations

from vkubelet.server.node_endpoints import health_report


def test_healthy_is_ok_and_nothing_else() -> None:
    answer = health_report(())
    assert (answer.status, answer.text) == (200, "ok")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_verbose_lists_every_check() -> None:
    assert health_report((), verbose=True).text == "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"


def test_a_failing_check_is_500_and_lists_all_without_the_reason() -> None:
    answer = health_report(("syncloop",))
    assert answer.status == 500
    assert answer.text == "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"


def test_an_excluded_check_can_not_fail_the_whole() -> None:
    answer = health_report(("syncloop",), excluded=["syncloop", "moon"], verbose=True)
    assert answer.status == 200
    expected = (
        "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "moon"\nhealthz check passed\n'
    )
    assert answer.text == expected
