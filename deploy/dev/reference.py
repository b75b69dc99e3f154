"""Writes the pages of docs/reference that follow from the code: the API, settings, errors, metrics, conformance, permissions.

Invariant: the content of a page is in the code, beside its subject; a unit test compares the pages with it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import attrs
import typer.main
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.cli import serving_parser
from kubeocean.dashboard.command import app
from kubeocean.metrics import Gauges, ManagerMetrics, SyncerMetrics
from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind, Rewrite
from kubeocean.rbac import kinds, permissions, tenants
from kubeocean.rbac.guards import guards
from kubeocean.settings import DashboardSettings, KubeoceanSettings, ManagerSettings
from vkubelet import api, beneath, client, clock, control, errors, logformat, metrics, provider, stats, streams
from vkubelet.api.rbac import Rule
from vkubelet.cli import _parser as runtime_parser
from vkubelet.errors import VKubeletError
from vkubelet.metrics import Counts, Durations, Metrics, Staleness, Timings
from vkubelet.server import node_metrics
from vkubelet.settings import Settings, _settings_class
from vkubelet.testing.conformance import RULES
from vkubelet_providers.mock import Mock
from vkubelet_providers.process import Process

PAGES = Path(__file__).parents[2] / "docs" / "reference"
TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "None": "null",
    "tuple[str, ...]": "list of strings",
    "Sequence[str]": "list of strings",
    "Sequence[int]": "list of integers",
    "Sequence[Mapping[str, Any]]": "list of maps",
    "Sequence[provider.Taint]": "list of taints",
    "Mapping[str, str]": "map of strings",
    "Mapping[str, Any]": "map",
    "Mapping[str, Mapping[str, str]]": "map of maps of strings",
    "Sequence[ExtraKind]": "list of `extra_kinds`",
    "Sequence[Rewrite]": "list of `rewrites`",
}
"""Types of settings, as YAML names them."""
DEFAULTS = {"_PATH": "the usual directories", "10 << 20": "`10485760`"}
"""Defaults that are expressions."""
MADE = "<!-- Made by `make docs` from the code; change the docstrings there. -->"


def settings_page() -> str:
    """Renders every setting with type, default and its sentence, by its YAML path."""
    lines = [
        "# Settings",
        MADE,
        "",
        "One YAML file, named by `--config`; the flags of `vkubelet run` and `kubeocean run` override its values.",
        "An unknown key or a value of the wrong type is an error that names its path.",
        "`vkubelet check --provider NAME --config FILE` prints the effective settings.",
    ]
    for path, kind in sections(Settings):
        lines += ["", f"## {f'`{path}:`' if path else 'Top level'}", "", first_sentence(kind), "", *rows(kind)]
    for path, kind in (("", KubeoceanSettings), (".extra_kinds[]", ExtraKind), (".extra_kinds[].rewrites[]", Rewrite)):
        lines += ["", f"## `provider{path}:` of kubeocean", "", first_sentence(kind), "", *rows(kind)]
    lines += ["", "## `provider:` of minimal", "", "`node`, the name of the node (`minimal`).", ""]
    providers = [(f"`provider:` of {name}", kind) for name, kind in (("mock", Mock.Settings), ("process", Process.Settings))]
    dashboard = [(f"`{path}:` of the manager", kind) for path, kind in sections(DashboardSettings, "dashboard")]
    for title, kind in (*providers, ("`manager:` of kubeocean", ManagerSettings), *dashboard):
        lines += ["", f"## {title}", "", first_sentence(kind), "", *rows(kind)]
    more = "In addition, the manager reads `cluster:`, `leader:` (on by default, Lease `kubeocean-manager`), `health:` and `log:`."
    return "\n".join([*lines, "", more]) + "\n"


def sections(kind: type, path: str = "") -> Iterator[tuple[str, type]]:
    """Yields a settings class and those nested in it."""
    yield path, kind
    for attribute in attrs.fields(attrs.resolve_types(kind)):
        inner = _settings_class(attribute.type)
        if inner is not None:
            yield from sections(inner, f"{path}.{attribute.name}".lstrip("."))


def rows(kind: type) -> list[str]:
    """Renders the table of the settings of this class itself."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    table = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or _is_section(kind, statement):
            continue
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        name, default = ast.unparse(statement.target), default_of(statement.value) if statement.value else "required"
        table.append(f"| `{name}` | {yaml_type(ast.unparse(statement.annotation))} | {default} | {' '.join(str(text).split())} |")
    return table if len(table) > 2 else []


def _is_section(kind: type, statement: ast.AnnAssign) -> bool:
    """Reports whether a setting is a class of settings, which has a separate table."""
    return _settings_class(attrs.fields_dict(attrs.resolve_types(kind))[ast.unparse(statement.target)].type) is not None


def yaml_type(annotation: str) -> str:
    """Returns a type as YAML names it."""
    if annotation.startswith("Literal["):
        return " or ".join(f"`{value}`" for value in ast.literal_eval(annotation.removeprefix("Literal")))
    return " or ".join(TYPES[part] for part in annotation.split(" | "))


def default_of(value: ast.expr) -> str:
    """Returns the default in YAML, also one inside of `field(default=…)` or made by a factory."""
    given = {word.arg: word.value for word in value.keywords} if isinstance(value, ast.Call) else {"default": value}
    if "default" not in given:
        return "`{}`" if ast.unparse(given["factory"]) == "dict" else f"`{ast.unparse(given['factory'])}`"
    text = ast.unparse(given["default"])
    if text in DEFAULTS or not isinstance(given["default"], ast.Constant | ast.Dict | ast.Tuple):
        return DEFAULTS[text]
    return f"`{json.dumps(ast.literal_eval(given['default']))}`"


def first_sentence(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")


def errors_page() -> str:
    """Renders the tree of errors, and which of them are retried."""
    lines = [
        "# Errors",
        MADE,
        "",
        "For authors of providers; what operators see is in [conditions and events](conditions-events.md).",
        "Whether a step is retried depends on the class alone.",
        "Each error names the operation, the object, and the answer of the other side.",
        "",
        "| error | meaning | tried again |",
        "|---|---|---|",
    ]
    for depth, kind in tree(VKubeletError):
        lines.append(f"| {'&emsp;' * depth}`{kind.__name__}` | {first_sentence(kind)} | {'yes' if kind.retryable else ''} |")
    lines += [
        "",
        "The process exits with 2 after a `SettingsError`, and with 1 after any other error that nothing handles.",
        "The kubelet server answers `NoSuchPod` and `NoSuchContainer` with 404, `BadRequest` with 400, `Unavailable` with 503,",
        "a missing capability and `NotSupported` with 501, and anything else with 500 and no internals.",
    ]
    return "\n".join(lines) + "\n"


def tree(root: type[VKubeletError], depth: int = 0) -> Iterator[tuple[int, type[VKubeletError]]]:
    """Yields the class and all its subclasses, in the order in which they are declared."""
    yield depth, root
    declared = list(vars(errors).values())
    below = [kind for kind in root.__subclasses__() if kind in declared]
    for kind in sorted(below, key=declared.index):
        yield from tree(kind, depth + 1)


def metrics_page() -> str:
    """Renders every Prometheus series of the runtime, and of Kubeocean, with its labels."""
    registry = CollectorRegistry()
    binding, manager = SyncerMetrics(registry, binding=""), ManagerMetrics(registry)
    lines = [
        "# Metrics",
        MADE,
        "",
        "Served as plain HTTP at `health.metrics_address` (default port 8080), path `/metrics`, with the usual series of a process.",
        "",
        "## Of the runtime",
        "",
        "None of them bears the name of a pod or a node.",
        "",
        *series_table(vars(Metrics())),
        "",
        "## Of the process of a binding",
        "",
        "Gauges are read at each scrape; those of a node are removed with the node.",
        "",
        *series_table(vars(binding)),
        "",
        "## Of the manager",
        "",
        *series_table(vars(manager)),
        "",
        "## Of a virtual node",
        "",
        "Served with TLS and authentication at the port of the node. `/metrics` also has the series of the runtime.",
        "Those of usage exist where the provider knows the number; a provider may serve others.",
        "",
        *node_table(),
    ]
    return "\n".join(lines) + "\n"


def node_table() -> list[str]:
    """Renders a row for each series of the endpoints of a node: those of a pod about which everything is known."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    usage = stats.Usage(**{each.name: 1 for each in attrs.fields(stats.Usage) if each.name != "at"})
    container = stats.ContainerStats("main", usage, started_at=now, probes=[stats.ProbeCount("Liveness")])
    network = stats.Network("eth0", received_bytes=1, sent_bytes=1)
    pod = stats.PodStats(provider.PodRef("default", "web", "uid", "node"), [container], network=network)
    node = stats.NodeStats("node", [pod], cores=1, memory_bytes=1)
    known = [({"operation_type": "sync"}, Durations())]
    served = {
        "/metrics": [
            *node_metrics.pod_families("node", ()),
            *node_metrics.queue_families("node", {"pods": 0}),
            *node_metrics.worker_families({labels["operation_type"]: found for labels, found in known}),
            node_metrics.status_family([({}, found) for _, found in known]),
        ],
        "/metrics/slis": [node_metrics.health_family(())],
        **{f"/metrics/{each.value}": [stats.metrics(each, node, now=now)] for each in provider.MetricsEndpoint},
    }
    lines = ["| endpoint | series | kind | labels | meaning |", "|---|---|---|---|---|"]
    for path, parts in served.items():
        for family in text_string_to_metric_families(b"".join(parts).decode()):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = [label for label in dict.fromkeys(label for sample in family.samples for label in sample.labels) if label != "le"]
            lines.append(f"| `{path}` | `{name}` | {family.type} | {', '.join(f'`{each}`' for each in labels)} | {family.documentation} |")
    return lines


def series_table(values: Mapping[str, object]) -> list[str]:
    """Renders a row for each series among these values."""
    found: list[tuple[Metric, Sequence[str]]] = []
    for value in values.values():
        if isinstance(value, Gauges | Staleness | Counts | Timings):
            found += [(family, family._labelnames) for family in value.describe()]
        elif isinstance(value, MetricWrapperBase) and not value._labelvalues:
            found += [(family, value._labelnames) for family in value.describe()]
    lines = ["| series | kind | labels | meaning |", "|---|---|---|---|"]
    for family, labels in sorted(found, key=lambda one: one[0].name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"| `{name}` | {family.type} | {', '.join(f'`{label}`' for label in labels)} | {family.documentation} |")
    return lines


def conformance_page() -> str:
    """Renders every rule of the suite with its sentence."""
    lines = [
        "# Rules of the conformance suite",
        MADE,
        "",
        "Tried on a provider by `python -m vkubelet.testing.conformance --provider ./mine.py`.",
        "A rule that needs a capability is skipped for a provider without it.",
        "",
        "| rule | needs | meaning |",
        "|---|---|---|",
    ]
    for rule in RULES:
        lines.append(f"| `{rule.name}` | {f'`{rule.needs}`' if rule.needs else ''} | {rule.sentence} |")
    return "\n".join(lines) + "\n"


def permissions_page() -> str:
    """Renders every right of each identity with its reason and with what limits it."""
    lines = [
        "# Permissions",
        MADE,
        "",
        "RBAC grants verbs on complete objects. The last column is the limit of a right to write: a *guard* is a ValidatingAdmissionPolicy",
        "of the chart `kubeocean-worker`, a *policy* one of the chart `kubeocean`. What the guards accept is below.",
    ]
    mount, own = keys.WORKER_NAMESPACE, permissions.manager_rules(dashboard=True)[len(permissions.hub_rules()) :]
    spread = "In the worker, in addition, with `namespaceMapping: PerNamespace`; the last three only where it creates namespaces"
    for title, rules in (
        ("In the worker: ServiceAccount `kubeocean-syncer`", permissions.worker_rules(mount, metrics=True, policy_label=True)),
        (spread, tenants.wide_rules(mount, creates=True)),
        ("In each worker namespace of a tenant", tenants.tenant_rules(mount)),
        ("In the worker, in addition, for each of `provider.extra_kinds`", kinds.worker_rules(mount, kinds.SHOWN)),
        ("In the hub, in addition, for each of `provider.extra_kinds`", permissions.hub_kind_rules(kinds.SHOWN[:1])),
        ("In the hub: ServiceAccount `kubeocean-syncer-<clusterID>`", permissions.hub_rules(binding="NAME")),
        ("In the hub: ServiceAccount `kubeocean-manager`, in addition to those above", own),
    ):
        lines += ["", f"## {title}", "", *rules_table(rules)]
    lines += ["", "## Guards of the worker", "", "| guard | without it | accepted alone |", "|---|---|---|"]
    for guard in (*guards(mount), *tenants.guards_of_tenants(mount), kinds.guard(kinds.SHOWN[0])):
        lines.append(f"| `{guard.name}` | {guard.why} | {'; '.join(rule.message for rule in guard.rules)} |")
    return "\n".join(lines) + "\n"


def rules_table(rules: Iterable[Rule]) -> list[str]:
    """Renders a row for each rule with its reason."""
    lines = ["| where | resources | verbs | reason | bounded by |", "|---|---|---|---|---|"]
    for rule in rules:
        where, what = f"`{rule.namespace}`" if rule.namespace else "cluster", ", ".join(map("`{}`".format, rule.resources))
        lines.append(f"| {where} | {what} | {' '.join(rule.verbs)} | {rule.why} | {rule.bound} |")
    return lines


def api_page() -> str:
    """Renders every name of the contract, and every public name of the toolkit, with the first sentence of its docstring."""
    lines = [
        "# The Python API",
        MADE,
        "",
        "A provider imports the contract from `vkubelet.provider`; some of these names are in `vkubelet` too. The toolkit below it is what",
        "Kubeocean is built with. Everything else in the package is internal and may change in any release.",
        "[Write a provider](../build/guide.md) explains how the names work together.",
        "",
        "## `vkubelet.provider`",
        "",
        *names_table(provider, provider.__all__),
    ]
    for module in toolkit():
        lines += ["", f"## `{module.__name__}`", "", summary(module), "", *names_table(module, public_names(module))]
    return "\n".join(lines) + "\n"


def toolkit() -> Iterator[ModuleType]:
    """Yields the modules beside the contract that a provider may import."""
    yield from (beneath, clock, errors, logformat, metrics, stats, streams)
    for package in (api, client, control):
        for found in sorted(Path(package.__path__[0]).glob("[a-z]*.py")):
            yield importlib.import_module(f"{package.__name__}.{found.stem}")


def public_names(module: ModuleType) -> list[str]:
    """Returns the names of the classes and functions that a module defines, in order."""
    kinds = [(name, value) for name, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)]
    return sorted(name for name, value in kinds if value.__module__ == module.__name__ and not name.startswith("_"))


def names_table(module: ModuleType, names: Iterable[str]) -> list[str]:
    """Returns a table with a row for each name of the module."""
    rows = [f"| `{name}` | {summary(getattr(module, name))} |" for name in names]
    return ["| name | summary |", "|---|---|", *rows]


def summary(value: object) -> str:
    """Returns the first sentence of the docstring of a module, class or function; for a union its members.

    A class without a docstring is described by its only method.
    """
    if isinstance(value, UnionType):
        return " or ".join(f"`{member.__name__}`" for member in value.__args__)
    text = value.__doc__
    if not text and inspect.isclass(value):
        methods = [member for name, member in vars(value).items() if inspect.isfunction(member) and not name.startswith("_")]
        text = methods[0].__doc__ if len(methods) == 1 else ""
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=\w[.)`])\s+(?=[A-Z`])", paragraph)[0].replace("|", "\\|")


def cli_page() -> str:
    """Renders the commands of kubeocean with their flags and exit codes."""
    lines = [
        "# Command line",
        MADE,
        "",
        "`kubeocean COMMAND --help` prints the same; it is also installed as `kubectl-kubeocean`, for `kubectl kubeocean COMMAND`.",
        "`kubeocean --install-completion` installs completion for the current shell, `--show-completion` prints it.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | success; `status`: every requested binding is Ready; `doctor`: no error was found |",
        "| 1 | the goal was not reached; `status`: a binding is not Ready; `doctor`: an error was found; `top`: no usage is known |",
        "| 2 | a wrong command, flag or setting, named in the message; nothing was changed |",
        "| 130 | interrupted; nothing is undone |",
        "",
        "Reading commands write `-o table` for people (`wide` with all columns), and `json` or `yaml` for programs, with times as RFC 3339",
        "in UTC and amounts as quantities. A message names a right that you lack, and the command with which the owner of the cluster can",
        "grant it.",
    ]
    serving = parsers(serving_parser())
    for name, command in commands_of(typer.main.get_command(app)):
        lines += ["", f"## `kubeocean {name}`", "", f"{command.help[0].upper()}{command.help[1:]}."]
        flags = list(flags_of(serving[name])) if name in serving else list(parameters_of(command))
        lines += [*table(flags)]
    runtime = runtime_parser()
    for name, parser in parsers(runtime).items():
        (text,) = (each.help or "" for action in subcommands(runtime) for each in action._choices_actions if each.dest == name)
        lines += ["", f"## `vkubelet {name}`", "", f"{text[0].upper()}{text[1:]}.", *table(list(flags_of(parser)))]
    return "\n".join(lines) + "\n"


def table(flags: Sequence[str]) -> Sequence[str]:
    return ["", "| argument or flag | meaning |", "|---|---|", *flags] if flags else []


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the commands with their full names, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def parameters_of(command: Any) -> Iterator[str]:
    """Yields a table row for each argument and flag of a command."""
    for each in command.params:
        is_flag = each.param_type_name == "option"
        names = f"{', '.join([*each.opts, *each.secondary_opts])} {each.metavar or ''}".rstrip() if is_flag else each.metavar
        default = f" (default: {each.default})" if is_flag and each.default not in (None, "", False) else ""
        yield row(names, f"{each.help}{default}")


def row(names: str, text: str) -> str:
    """Renders one flag as a row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{names}`", text)) + " |"


def parsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Returns the parsers of the subcommands."""
    return {name: each for action in subcommands(parser) for name, each in action.choices.items()}


def subcommands(parser: argparse.ArgumentParser) -> Sequence[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields a table row for each flag of a parser."""
    for action in parser._actions:
        if action.dest != "help":
            takes = "" if action.nargs == 0 else f" {'|'.join(action.choices) if action.choices else action.metavar or action.dest.upper()}"
            yield row(f"{', '.join(action.option_strings)}{takes}".strip(), action.help or "")


def pages() -> dict[Path, str]:
    """Renders all pages; returns content by file."""
    made = (api_page, settings_page, errors_page, metrics_page, conformance_page, permissions_page, cli_page)
    return {PAGES / f"{page.__name__.removesuffix('_page')}.md": page() for page in made}


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text)
