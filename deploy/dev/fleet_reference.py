"""Writes docs/reference/fleet.md: settings, rights with their reasons, admission policies and commands of `fleet`.

Invariant: the content of the page is in the code, beside its subject; a unit test compares the page with it.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from attrs import evolve

from fleet.agent.agent_settings import OCM, AgentSettings, ClientConfig, TokenSettings
from fleet.agent.rights import agent_rules
from fleet.api import keys
from fleet.api.resources import admission_policies, guard_rails
from fleet.cli import parser
from fleet.core.rights import hub_rules
from fleet.hub_settings import HubProcessSettings, HubSettings
from fleet.ocm import acceptance
from vkubelet.api.codec import decode_yaml_documents

REFERENCE: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("reference.py")))
REFERENCE["TYPES"] |= {
    "Sequence[ClientConfig]": "list of `client_configs`",
    "Sequence[Module]": "list of modules",
    "Sequence[Literal['kubefleet']]": "list of modules",
    "int | None": "integer or null",
}
REFERENCE["DEFAULTS"] |= {
    "keys.NAMESPACE": f"`{keys.NAMESPACE}`",
    "OCM": f"`{OCM}`",
    "(keys.BOOTSTRAP_SECRET,)": f'`["{keys.BOOTSTRAP_SECRET}"]`',
}
_PAGE: Path = REFERENCE["PAGES"] / "fleet.md"
_CLUSTER = "NAME"


def page() -> str:
    """Renders the page."""
    lines = [
        "# Fleet: settings, rights, commands",
        REFERENCE["MADE"],
        "",
        "What a condition or an Event means is in [conditions and Events of a fleet](fleet-conditions.md).",
        *settings(),
        *rights(),
        *policies(),
        *commands(),
    ]
    return "\n".join(lines) + "\n"


def settings() -> list[str]:
    """Renders the settings files of both processes."""
    lines = [
        "",
        "## Settings",
        "",
        "Both processes read a YAML file, named by `--settings`. An invalid value is refused by its path. Beside these, both read",
    ]
    lines += ["`cluster:`, `leader:` (on by default), `health:` and `log:`, as in [settings](settings.md)."]
    for title, kind in (
        ("Top level of `fleet hub`", HubProcessSettings),
        ("`hub:` of `fleet hub`", HubSettings),
        ("`agent:` of `fleet agent`", AgentSettings),
        ("`agent.client_configs[]`", ClientConfig),
        ("`agent.token:`", TokenSettings),
    ):
        lines += ["", f"### {title}", "", REFERENCE["first_sentence"](kind), "", *REFERENCE["rows"](kind)]
    return lines


def rights() -> list[str]:
    """Renders the rights of each identity."""
    in_namespace = [evolve(rule, namespace=_CLUSTER) for rule in (*acceptance.registration_rules(), *acceptance.work_rules())]
    lines = ["", "## Rights", "", "Each rule with its reason. A policy below limits what RBAC cannot."]
    for title, rules in (
        ("In the worker: ServiceAccount `fleet-agent`", agent_rules(AgentSettings(cluster="name", cluster_properties=True))),
        ("On the hub: a worker that is accepted", (*acceptance.cluster_rules(_CLUSTER), *acceptance.gateway_rules())),
        ("On the hub: a worker that is accepted, in its namespace", in_namespace),
        ("On the hub: a worker that is not accepted", acceptance.denied_rules(_CLUSTER)),
        ("On the hub: who may ask to join", acceptance.bootstrap_rules()),
        ("On the hub: ServiceAccount `fleet-hub`, with all modules", hub_rules()),
    ):
        lines += ["", f"### {title}", "", *REFERENCE["rules_table"](rules)]
    return lines


def policies() -> list[str]:
    """Renders what the admission policies refuse."""
    lines = ["", "## Admission policies", "", "| policy | refused with |", "|---|---|"]
    for text in (admission_policies(), guard_rails(["…"])):
        for body in decode_yaml_documents(text):
            if body and body["kind"] == "ValidatingAdmissionPolicy":
                messages = [each.get("message") or each["messageExpression"] for each in body["spec"]["validations"]]
                lines.append(
                    f"| `{body['metadata']['name']}` | {'; '.join(' '.join(each.split()) for each in messages)} |".replace("||", "")
                )
    return lines


def commands() -> list[str]:
    """Renders each command with its flags."""
    made = parser()
    lines = [
        "",
        "## Commands",
        "",
        "Exit codes: 0 success, and no error found by `doctor`; 1 the goal was not reached, or an error found; 2 wrong flags or settings.",
    ]
    texts = {each.dest: each.help for action in REFERENCE["subcommands"](made) for each in action._choices_actions}
    for name, command in REFERENCE["parsers"](made).items():
        text = texts[name] or ""
        lines += ["", f"### `fleet {name}`", "", f"{text[0].upper()}{text[1:]}.", *REFERENCE["table"](list(REFERENCE["flags_of"](command)))]
    return lines


def pages() -> dict[Path, str]:
    """Returns the content of the page by its file."""
    return {_PAGE: page()}


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text)
