"""The output of `kubeocean doctor`: by subject, each finding with its commands."""

from __future__ import annotations

from kubeocean.commands.doctor import worker_rights
from kubeocean.manager.checks import Findings
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import binding
from vkubelet.api.rbac import Check
from vkubelet.client.transport import Call
from vkubelet.commands.clusters import Choice
from vkubelet.commands.examination import Log
from vkubelet.commands.findings import Checked, Finding, blocks, error, result, warning
from vkubelet.errors import NotFound
from vkubelet.logformat import few

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


async def test_proposed_commands_select_the_examined_hub() -> None:
    log = Log(Choice("computing cluster", "", context="my hub"), program="kubeocean")

    async def found() -> list[Finding]:
        return [error("it does not run", "kubeocean logs demo", "kubectl get pods")]

    await log.check("hub", "process", found())
    ((finding,),) = [each.findings for each in log.done]
    assert list(finding.commands) == ["kubeocean logs demo --context 'my hub'", "kubectl get pods"]


class _Older(MemoryApi):
    """A worker before Kubernetes 1.28, which does not serve SelfSubjectReviews."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        assert call.path.endswith("/selfsubjectreviews")
        raise NotFound(call.attempt, "the server could not find the requested resource")


async def test_missing_rights_are_found_although_the_worker_does_not_say_whose() -> None:
    lacking = Check(group="", resource="pods", subresource="", verb="create", namespace="mount")
    found = Findings(missing=[lacking], unguarded=["delete nodes"])
    missing, unguarded = await worker_rights(binding(), _Older().client(), found, kubectl="kubectl")
    assert "create pods" in missing.problem and any("USER" in command for command in missing.commands)
    assert "delete nodes" in unguarded.problem
