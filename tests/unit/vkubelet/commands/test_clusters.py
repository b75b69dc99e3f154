"""How a command ends that can not go on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from vkubelet.api.names import LAST_APPLIED
from vkubelet.api.objects import ObjectMeta
from vkubelet.commands.clusters import MANAGED_BY, Choice, CommandFailed, Installer, explained, finish, is_outdated
from vkubelet.errors import ApiError, Conflict, Forbidden, Unauthorized, Unreachable

CHOICE = Choice("worker cluster", "--worker-context", context="away")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unreachable("get pods", "no answer"), ("does not respond", "--worker-context", "network")),
        (Unauthorized("get pods", "no"), ("does not accept these credentials", "--worker-context")),
        (Forbidden("get pods", "no"), ("refuses: get pods: no", "ask its owner")),
        (Conflict("patch pods", "changed"), ("refuses: patch pods: changed",)),
    ],
)
def test_what_a_cluster_answers_is_told_with_its_name_and_the_remedy(error: ApiError, words: tuple[str, ...]) -> None:
    with pytest.raises(CommandFailed) as failed, explained(CHOICE):
        raise error
    assert str(failed.value).startswith("the worker cluster (context away) ") and all(word in str(failed.value) for word in words)


def test_somebody_who_has_had_enough_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        finish(interrupted())
    assert ended.value.code == 130 and "nothing is undone" in capsys.readouterr().err


def test_commands_select_the_same_cluster_in_any_shell() -> None:
    here = Choice("computing cluster", "--context", kubeconfig=Path("/home/a b/config"), context="it's $HOME")
    expected = ["--kubeconfig", "/home/a b/config", "--context", "it's $HOME"]
    assert shlex.split(here.kubectl) == ["kubectl", *expected]
    assert shlex.split(here.helm) == ["helm", *expected[:2], "--kube-context", expected[3]]
    assert Choice("worker cluster", "").kubectl == "kubectl"


INSTALLER = Installer(name="ours", content="example.com/content", version="example.com/version")
DESIRED = {"metadata": {"annotations": {INSTALLER.content: "new", INSTALLER.version: "1.10.0"}}}


@pytest.mark.parametrize(
    ("manager", "content", "version", "outdated"),
    [
        ("ours", "old", "1.9.0", True),
        ("ours", "old", "1.10.0", True),
        ("ours", "old", "1.11.0", False),
        ("ours", "new", "1.9.0", False),
        ("Helm", "old", "1.9.0", False),
    ],
)
def test_a_definition_is_updated_where_an_earlier_version_created_it(manager: str, content: str, version: str, outdated: bool) -> None:
    notes = {INSTALLER.content: content, INSTALLER.version: version}
    assert is_outdated(ObjectMeta(labels={MANAGED_BY: manager}, annotations=notes), DESIRED, INSTALLER) is outdated


def test_a_definition_that_kubectl_applied_is_left_alone() -> None:
    notes = {INSTALLER.content: "old", INSTALLER.version: "1.0.0", LAST_APPLIED: "{}"}
    assert not is_outdated(ObjectMeta(annotations=notes), DESIRED, INSTALLER)
