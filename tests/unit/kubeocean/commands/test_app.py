"""The command line: flags keep their behaviour, help names everything, and a process that serves stays small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kubeocean.cli import SERVING, main, serving_parser
from kubeocean.commands.app import hub_of, with_default, worker_of
from kubeocean.commands.identity import OURS
from kubeocean.dashboard.command import app
from vkubelet.errors import SettingsError

COMMANDS = {
    "bind",
    "unbind",
    "status",
    "plan",
    "explain",
    "top",
    "doctor",
    "logs",
    "support-bundle",
    "dashboard",
    "run",
    "manager",
    "version",
}


def ended(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command_and_the_exit_codes(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended([flag]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS) and "Exit codes: 0 success, 1 failure" in text


@pytest.mark.parametrize(
    "arguments",
    [[], ["unknown"], ["bind"], ["status", "--unknown"], ["status", "-o", "xml"], ["plan", "--days", "x"], ["run", "--unknown"]],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(arguments) == 2
    told = capsys.readouterr()
    assert told.out == "" and "sage: kubeocean" in told.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bind", "x", "--print"], ["bind", "x", "--print=all"]),
        (["bind", "--print", "x"], ["bind", "--print=all", "x"]),
        (["bind", "x", "--print", "hub"], ["bind", "x", "--print", "hub"]),
        (["bind", "x", "--print=worker", "--metrics"], ["bind", "x", "--print=worker", "--metrics"]),
        (["bind", "x", "--print", "--metrics"], ["bind", "x", "--print=all", "--metrics"]),
    ],
)
def test_print_without_a_value_means_both_clusters(arguments: list[str], expected: list[str]) -> None:
    assert with_default(arguments) == expected


def described(command: Any, name: str = "kubeocean") -> list[str]:
    """Each command, argument and flag without a help text."""
    found = [] if command.help or not name.count(" ") else [name]
    found += [f"{name} {each.name}" for each in command.params if not getattr(each, "help", "")]
    for below, inner in getattr(command, "commands", {}).items():
        found += described(inner, f"{name} {below}")
    return found


def test_every_command_and_flag_has_a_help_text() -> None:
    assert described(typer.main.get_command(app)) == []


def test_commands_that_serve_are_parsed_as_before() -> None:
    parsed = serving_parser().parse_args(["run", "--binding", "demo", "--settings", "a.yaml", "--self-signed"])
    assert (parsed.binding, str(parsed.config), parsed.self_signed) == ("demo", "a.yaml", True)


def test_a_process_that_serves_imports_no_library_of_the_terminal() -> None:
    names = ("typer", "rich", "pydantic", "jinja2", "kubeocean.commands")
    code = f"import sys, kubeocean.cli; print([name for name in {names} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    assert set(SERVING) == {"run", "manager"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_proposes_commands_and_flags(shell: str) -> None:
    instruction = {"bash": "complete_bash", "zsh": "complete_zsh", "fish": "complete_fish"}[shell]
    env = {"_KUBEOCEAN_COMPLETE": instruction, "COMP_WORDS": "kubeocean ex", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "kubeocean ex"}
    env["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    ran = subprocess.run([sys.executable, "-m", "kubeocean"], capture_output=True, text=True, env=env, check=False)
    assert "explain" in ran.stdout, ran.stderr


def test_workers_context_is_read_from_the_hubs_kubeconfig_unless_it_has_its_own() -> None:
    hub = hub_of(Path("both"), "")
    assert worker_of(None, "away", hub=hub).kubeconfig == Path("both")
    assert worker_of(Path("own"), "away", hub=hub).kubectl == "kubectl --kubeconfig own --context away"


def test_without_a_flag_the_computing_cluster_is_not_taken_for_the_worker() -> None:
    with pytest.raises(SettingsError, match="--worker-context"):
        worker_of(None, "", hub=hub_of(None, "hub"))


def test_what_commands_write_has_one_field_manager() -> None:
    hub = hub_of(None, "")
    assert hub.field_manager == worker_of(None, "away", hub=hub).field_manager == OURS
