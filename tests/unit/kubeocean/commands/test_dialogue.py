"""The questions of `kubeocean bind` at a terminal, and the command line that they amount to."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from kubeocean.commands.dialogue import Answers, checked_name, default_name, kubeconfig_file, picked
from tests.support.keyboard import at_terminal

PROGRAM = (sys.executable, "-m", "kubeocean")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Contexts of two clusters, of which one has two users; nothing listens at their addresses."""
    servers = {"hub": "https://192.0.2.1", "hub-as-reader": "https://192.0.2.1", "team/Edge_1": "https://192.0.2.2"}
    file = tmp_path / "config"
    file.write_text(
        json.dumps(
            {
                "current-context": "hub",
                "clusters": [{"name": name, "cluster": {"server": url}} for name, url in servers.items()],
                "users": [{"name": "user", "user": {"token": "none"}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": "user"}} for name in servers],
            }
        )
    )
    return file


def environment(kubeconfig: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}


def command_shown(text: str) -> list[str]:
    """The words of the command that asks nothing."""
    return shlex.split(text.partition("The same without questions:")[2].strip().splitlines()[0])


async def test_manifests_are_printed_as_by_the_command_that_is_shown(kubeconfig: Path) -> None:
    env = environment(kubeconfig)
    asked = await at_terminal("3\nNo Name\nedge\ny\n", *PROGRAM, "bind", "--cluster-id", "e1", env=env)
    text = asked.stdout.decode().replace("\r", "")
    assert asked.code == 0, text + asked.stderr
    assert "Error: 'No Name' is no name of an object" in text and "Computing cluster" not in text
    program, *words = command_shown(text)
    assert (program, words) == ("kubeocean", ["bind", "edge", "--cluster-id", "e1", "--print", "worker", "--metrics"])
    again = subprocess.run([*PROGRAM, *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "nodes/proxy" in again.stdout and text.endswith(again.stdout)


async def test_clusters_are_chosen_among_the_contexts_of_the_kubeconfig(kubeconfig: Path) -> None:
    # The last answer is that of the confirmation; no cluster responds, so it is not asked for any more.
    asked = await at_terminal("\n\n7\n1\n\nn\n", *PROGRAM, "bind", "--timeout", "1", env=environment(kubeconfig) | {"COLUMNS": "80"})
    text = asked.stdout.decode().replace("\r", "")
    assert "team/Edge_1  https://192.0.2.2" in text and "Error: '7' is none of them" in text
    assert "hub-as-reader" not in text.partition("Worker cluster")[0].rpartition("Computing cluster")[2], "it is the same cluster"
    assert command_shown(text) == ["kubeocean", "bind", "edge-1", "--timeout", "1", "--worker-context", "team/Edge_1"]


async def test_interrupted_dialogue_changes_nothing(kubeconfig: Path) -> None:
    asked = await at_terminal("\x04", *PROGRAM, "bind", "demo", env=environment(kubeconfig))
    assert asked.code == 130 and b"interrupted: nothing was changed" in asked.stdout


def test_without_a_terminal_nothing_is_asked(kubeconfig: Path) -> None:
    for words, missing in ((["bind"], "NAME"), (["bind", "demo"], "--worker-context")):
        ran = subprocess.run([*PROGRAM, *words], env=environment(kubeconfig), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert ran.returncode == 2 and ran.stdout == "" and missing in ran.stderr


def test_only_what_was_answered_is_added_to_the_command_line() -> None:
    given = Answers(context="hub", metrics=True)
    found = Answers(name="demo", context="hub", worker_kubeconfig=Path("a b"), metrics=True)
    assert found.added_to(given) == ["demo", "--worker-kubeconfig", "a b"]
    assert found.added_to(found) == []
    assert given.missing and not found.missing and not Answers(name="demo", printed="all").missing


def test_answer_is_a_number_a_name_or_an_existing_file(kubeconfig: Path) -> None:
    names = ["a", "2", "c"]
    assert [picked(text, names, kubeconfig_file) for text in ("a", "2", "3", str(kubeconfig))] == ["a", "2", "c", str(kubeconfig)]
    for text in ("0", "4", "d", ""):
        with pytest.raises(typer.BadParameter, match="from 1 to 3"):
            picked(text, names, kubeconfig_file)


@pytest.mark.parametrize(
    ("context", "name"),
    [("worker", "worker"), ("arn:aws:eks:eu-1:42:cluster/Edge_1", "edge-1"), ("admin@prod.eu", "prod-eu"), ("", ""), ("x" * 60, "x" * 24)],
)
def test_name_is_derived_from_the_context(context: str, name: str) -> None:
    assert default_name(context) == name
    assert not name or checked_name(name) == name
