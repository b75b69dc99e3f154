"""Commands that pages show exist as they are written: subcommands, flags, chart values, targets, modules and files.

Invariant: each command of a page is checked here by what the repository knows of its program, or its program is named in `OUTSIDE`.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from fleet.cli import parser as fleet_parser
from kubeocean.cli import serving_parser
from kubeocean.dashboard.command import app
from tests.support.pages import FOLDERS, blocks, pages
from vkubelet.cli import _parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DEVELOPERS = [ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
PAGES = [ROOT / "README.md", *sorted(page for name in FOLDERS for page in (DOCS / name).glob("*.md")), *DEVELOPERS]
BLOCK = re.compile(r"^```(console|sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTSIDE = {
    *(
        "base64",
        "cat",
        "chmod",
        "cp",
        "cd",
        "do",
        "done",
        "echo",
        "export",
        "grep",
        "kill",
        "ln",
        "mkdir",
        "narrow",
        "sed",
        "sleep",
        "token",
    ),
    *("until", "wait", "{", "}"),
    *("docker", "kind", "pip", "promtool", "py-spy"),
}
"""Words of the shell and programs of other projects, whose arguments are not checked."""
HELM = {"install", "upgrade", "rollback", "uninstall"}
KUBECTL = {
    *("annotate", "apply", "autoscale", "certificate", "config", "cordon", "create", "debug", "delete", "describe", "events", "exec"),
    *("get", "label", "logs", "patch", "rollout", "run", "scale", "top", "uncordon", "wait"),
}


_BOUND, _ONE, _INSTALL = "tests/integration/kubeocean/test_pages.py", "tests/integration/test_pages.py", "tests/e2e/test_install.py"
_SEEN = f"{_BOUND}::test_a_person_sees_what_is_leased"
_SERVICES = "tests/integration/kubeocean/test_services.py::test_the_page_names_a_namespace_and_prints_the_rewrites"
_WRONG = f"{_BOUND}::test_a_person_finds_what_is_wrong"
_FIRST = f"{_BOUND}::test_the_first_bound_cluster_comes_and_goes_as_the_page_shows"
_KUBECTL = f"{_ONE}::test_documents_are_accepted_and_commands_run"
_README = f"{_INSTALL}::test_the_readme_leads_to_a_pod_on_a_leased_node_and_back"
_PLANT = f"{_INSTALL}::test_the_manager_runs_our_image_on_a_node_of_the_computing_cluster"
_TUTORIAL = "tests/integration/test_tutorial.py::test_the_page_leads_to_a_provider_that_keeps_the_rules"
_RELEASES = "tests/integration/deploy/test_releases.py"
_SCRIPTED = f"{_ONE}::test_a_scripted_node_answers_what_pages_ask"
_DEMO = "tests/e2e/test_demo.py::test_demo_ends_with_live_logs_runs_again_quickly_and_goes_without_a_trace"
_CALLS = "tests/e2e/test_names.py::test_the_page_leads_to_answers_in_both_directions"
_FLEET = "tests/e2e/test_fleet.py"
_JOINED = f"{_FLEET}::test_a_laptop_joins_and_leaves_as_the_tutorial_shows"
_CHARTS = f"{_FLEET}::test_helm_joins_both_clusters_and_an_upgrade_loses_no_lease"
_LEFT = f"{_FLEET}::test_uninstalling_leaves_what_was_there_before"
NOT_RUN = "not run: "
RUN_BY: Mapping[str, tuple[str, ...]] = {
    "README.md": (_DEMO, _README),
    "start/first-binding.md": (f"{NOT_RUN}the session's clusters are those of `make up`", *[_FIRST] * 4),
    "start/kind.md": (f"{NOT_RUN}kind and docker need a container engine; the commands after them are those of README.md",),
    "start/provider.md": (
        f"{_ONE}::test_the_node_in_five_minutes_runs_a_pod",
        f"{_ONE}::test_the_node_for_the_cluster_of_the_demo_runs_a_pod",
    ),
    "lease/bind.md": (_README, _SEEN, _README),
    "lease/install.md": (
        f"{NOT_RUN}docker needs a container engine and a registry; the image of `make image` is loaded instead",
        _PLANT,
        f"{_RELEASES}::test_the_worker_chart_is_upgraded_rolled_back_and_leaves_what_is_not_its_own",
        _PLANT,
        _KUBECTL,
        _PLANT,
        _PLANT,
        f"{_INSTALL}::test_uninstalling_leaves_definitions_and_namespaces_and_no_finalizer",
    ),
    "lease/ledger.md": ("tests/integration/kubeocean/test_ledger.py::test_ledger_equals_the_times_of_the_pods_also_after_a_kill",),
    "lease/lend-safely.md": (_KUBECTL,),
    "lease/migrate.md": (_KUBECTL, _KUBECTL, _KUBECTL),
    "lease/plan.md": (_SEEN,),
    "lease/tenants.md": (_KUBECTL, _KUBECTL),
    "lease/policies.md": (_SEEN,),
    "fleet/hubs.md": (_CHARTS,),
    "fleet/join.md": (_CHARTS, _CHARTS),
    "fleet/laptop.md": (_JOINED,) * 7,
    "fleet/leave.md": (_LEFT, _LEFT),
    "fleet/rights.md": (_JOINED,),
    "use/call-home.md": (_CALLS,) * 6,
    "use/cookbook.md": (f"{_BOUND}::test_the_recipe_for_nights_is_accepted_and_planned",),
    "use/kinds.md": ("tests/integration/kubeocean/test_extra_kinds.py::test_the_page_prints_roles_that_a_worker_accepts",),
    "use/metrics.md": (_SCRIPTED, "tests/e2e/test_metrics.py::test_commands_of_the_page_show_pods_and_nodes"),
    "use/network.md": (_KUBECTL, _KUBECTL),
    "use/services.md": (_SERVICES, _SERVICES),
    "use/volumes.md": (_KUBECTL,),
    "operate/credentials.md": (_README, _KUBECTL),
    "operate/dashboard.md": (
        f"{_BOUND}::test_the_dashboard_prints_its_address",
        f"{_RELEASES}::test_the_hub_chart_takes_former_values_and_is_upgraded_and_rolled_back",
    ),
    "operate/explain.md": (_SEEN, _SEEN, _SEEN),
    "operate/find-what-is-wrong.md": (_WRONG, _WRONG, _WRONG),
    "operate/monitor.md": (
        "tests/integration/kubeocean/test_alerts.py::test_every_rule_fires_exactly_at_the_figures_it_names",
        f"{_INSTALL}::test_lines_of_one_pod_are_found_in_the_log_of_its_process",
    ),
    "operate/outages.md": (_KUBECTL, f"{_BOUND}::test_the_worker_is_given_up_as_the_page_says"),
    "operate/reach-the-nodes.md": (
        _KUBECTL,
        _SCRIPTED,
        f"{_ONE}::test_a_host_becomes_a_node_with_the_settings_of_the_page",
        f"{NOT_RUN}py-spy traces a process for half a minute and is no program of this project",
    ),
    "operate/troubleshoot.md": (_WRONG,),
    "operate/upgrade.md": (
        f"{_INSTALL}::test_an_upgrade_and_a_rolling_restart_change_no_pod_and_keep_nodes_ready",
        f"{_RELEASES}::test_the_hub_chart_takes_former_values_and_is_upgraded_and_rolled_back",
    ),
    "build/containers.md": (f"{_ONE}::test_a_provider_runs_with_the_rights_of_the_page_alone",),
    "build/guide.md": ("tests/integration/test_init.py::test_projects_pass_their_tests_and_the_conformance_suite", _TUTORIAL),
    "build/mock.md": (_SCRIPTED,),
    "build/process.md": (f"{_ONE}::test_a_host_becomes_a_node_with_the_settings_of_the_page",),
    "build/tutorial.md": (_TUTORIAL,) * 5,
}
"""The test that runs each block of a page, in their order, or why none does."""


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command of the blocks of a page; output, comments and texts of files are left out."""
    for language, block in BLOCK.findall(text):
        block = re.sub(r"<<'END'\n.*?\nEND$", "", block, flags=re.MULTILINE | re.DOTALL)
        if language == "console":
            block = "".join(re.findall(r"^\$ ((?:.*\\\n)*.*\n)", block, re.MULTILINE))
        text = ""
        for line in block.replace("\\\n", " ").splitlines():
            text = f"{text}\n{line}".strip()
            try:
                found = list(simple(text))
            except ValueError:
                continue
            text = ""
            yield from found


def simple(text: str) -> Iterator[list[str]]:
    """Words of the commands between `&&`, `;`, `|` and `&`. Raises ValueError while a quotation is open."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.commenters, lexer.whitespace_split = "#", True
    words = list(lexer)
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";|&()<>") and word:
            if command and set(word) <= set(";|&()"):
                yield command
                command = []
            elif command and word.startswith((">", "<")):
                command.append("--")
        else:
            command.append(word)


@cache
def flags() -> Mapping[str, set[str]]:
    """Flags of each of our commands, by its name with those of its groups."""
    found: dict[str, set[str]] = {}
    for program, parser in (("vkubelet", _parser()), ("kubeocean", serving_parser()), ("fleet", fleet_parser())):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    found[f"{program} {name}"] = {flag for each in command._actions for flag in each.option_strings}
    for name, command in commands_of(typer.main.get_command(app)):
        found.setdefault(f"kubeocean {name}", set()).update(flag for each in command.params for flag in (*each.opts, *each.secondary_opts))
    return found


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield from commands_of(command, f"{prefix}{name} ") if hasattr(command, "commands") else [(f"{prefix}{name}", command)]


def problem(words: list[str]) -> str:
    """What is wrong with a command; empty when nothing is."""
    program, *rest = words
    program = program.rpartition("/")[2]
    if program in ("vkubelet", "kubeocean", "fleet"):
        return problem_of_ours(program, rest)
    if program == "helm":
        return problem_of_helm(rest)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if all(word in targets or "=" in word for word in rest) else "no such target"
    if program == "python" and rest[:1] == ["-m"]:
        return "" if importlib.util.find_spec(rest[1]) else "no such module"
    if program == "kubectl":
        verbs = KUBECTL & set(rest)
        missing = [word for word in rest if word.startswith("deploy/") and word.endswith(".yaml") and not (ROOT / word).exists()]
        return f"no such file: {missing}" if missing else "" if verbs or "--" in rest or "--raw" in rest else "no known verb"
    return "" if program in OUTSIDE or program == "python" or "=" in program or program == "$" else "an unknown program"


def problem_of_ours(program: str, rest: list[str]) -> str:
    name = next((name for name in sorted(flags(), key=len, reverse=True) if [program, *rest][: len(name.split())] == name.split()), "")
    if not name:
        return "no such command"
    given = {word.partition("=")[0] for word in rest if word.startswith("-") and word.strip("-")}
    return f"no such flags: {given - flags()[name]}" if given - flags()[name] - {"--help"} else ""


def problem_of_helm(rest: list[str]) -> str:
    chart = next((word for word in rest if word.startswith("deploy/charts/")), "")
    if rest[0] not in HELM or (chart and not (ROOT / chart / "Chart.yaml").is_file()):
        return "no such command or chart"
    values = yaml.safe_load((ROOT / chart / "values.yaml").read_text()) if chart else {}
    for path in [after.partition("=")[0] for word, after in zip(rest, rest[1:], strict=False) if word == "--set"]:
        inner = values
        for key in path.split("."):
            if key not in inner:
                return f"no such value: {path}"
            inner = inner[key]
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    found = [(shlex.join(words), trouble) for words in commands(page.read_text()) if (trouble := problem(words))]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "kubeocean bnid demo",
        "kubeocean bind demo --contxt hub",
        "vkubelet run --providr x",
        "make dmeo",
        "helm install k deploy/charts/kubeocean --set imag.tag=1",
        "kubectl aply -f x",
        "kubectl apply -f deploy/samples/missing.yaml",
        "python -m vkubelet.testing.missing",
        "sl",
    ],
)
def test_commands_that_do_not_exist_are_found(line: str) -> None:
    assert all(problem(words) for words in commands(f"```console\n$ {line}\n```\n"))
    assert list(commands(f"```console\n$ {line}\n```\n"))


def test_most_commands_are_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page.read_text())) > 80


def test_every_block_is_run_by_a_test_or_named_with_a_reason() -> None:
    assert {page: len(tests) for page, tests in RUN_BY.items()} == {page: len(found) for page in pages() if (found := blocks(page))}
    run = [each for tests in RUN_BY.values() for each in tests]
    for name in {each for each in run if not each.startswith(NOT_RUN)}:
        module, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / module).read_text(), name
    assert sum(each.startswith(NOT_RUN) for each in run) <= 4
