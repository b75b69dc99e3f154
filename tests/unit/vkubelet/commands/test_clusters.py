"""How a command ends that can not go on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from vkubelet.commands.clusters import Choice, CommandFailed, explained, finish
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
