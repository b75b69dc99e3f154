"""The commands of `kubeocean` for people, with their flags, help and shell completion.

Invariant: a function here only converts flags; what a command does is in the module of its name. The commands that serve, `run` and
`manager`, do not import this module.
"""

import enum
import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer

from kubeocean.commands import bind as binding
from kubeocean.commands import bundle, calendar, dns, ledger, logs, status, unbind
from kubeocean.commands.dialogue import Answers, Dialogue
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.explain import Explainer
from kubeocean.commands.identity import OURS
from kubeocean.commands.output import Format
from kubeocean.commands.plan import BindFlags
from kubeocean.commands.top import By, Top, View
from kubeocean.model import keys
from vkubelet.api.objects import Key
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import SettingsError

TEXT = "Leases nodes of worker clusters to a computing cluster, where they are virtual nodes."
EPILOG = "Exit codes: 0 success, 1 failure, not Ready or an error found, 2 wrong flags or settings, 130 interrupted."

app = typer.Typer(
    help=TEXT,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
explain = typer.Typer(help="show why a node, a pod or a policy is as it is", rich_markup_mode=None)
app.add_typer(explain, name="explain")

Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", metavar="FILE", help="kubeconfig of the computing cluster (default: as for kubectl)")
]
Context = Annotated[str, typer.Option("--context", metavar="CTX", help="context of that kubeconfig (default: the current one)")]
WorkerContext = Annotated[
    str, typer.Option("--worker-context", metavar="CTX", help="context of the worker cluster, with the rights of its owner")
]
WorkerKubeconfig = Annotated[
    Path | None, typer.Option("--worker-kubeconfig", metavar="FILE", help="kubeconfig with that context (default: --kubeconfig)")
]
ReadContext = Annotated[
    str,
    typer.Option("--worker-context", metavar="CTX", help="context of the worker cluster (default: the kubeconfig of the binding's Secret)"),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the ClusterBinding")]
OptionalBinding = Annotated[str, typer.Option("--binding", metavar="NAME", help="one ClusterBinding (default: all)")]
SystemNamespace = Annotated[str, typer.Option("--namespace", metavar="NS", help="namespace of the manager and the processes of bindings")]
Output = Annotated[Format, typer.Option("--output", "-o", metavar="table|wide|json|yaml", help="output format")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]


class Printed(enum.StrEnum):
    """Values of `--print`."""

    ALL = "all"
    WORKER = "worker"
    HUB = "hub"


def run(arguments: list[str]) -> None:
    """Runs a command; exits with its code. Raises VKubeletError."""
    app(args=with_default(arguments), prog_name="kubeocean", obj=arguments)


def with_default(arguments: list[str]) -> list[str]:
    """Adds the value `all` to `--print` where none follows: a flag of typer has always a value, or never (pure)."""
    out = []
    for at, word in enumerate(arguments):
        follows = arguments[at + 1] if at + 1 < len(arguments) else ""
        out.append(f"--print={Printed.ALL}" if word == "--print" and follows not in list(Printed) else word)
    return out


def hub_of(kubeconfig: Path | None, context: str) -> clusters.Choice:
    return clusters.Choice("computing cluster", "--kubeconfig, --context", kubeconfig, context, OURS)


def worker_of(kubeconfig: Path | None, context: str, *, hub: clusters.Choice) -> clusters.Choice:
    """Returns the worker cluster. Raises SettingsError when neither flag names it: the current context is the computing cluster's."""
    if not context and not kubeconfig:
        raise SettingsError("--worker-context", "name the kubeconfig context of the worker cluster, or set --worker-kubeconfig")
    return clusters.Choice("worker cluster", "--worker-kubeconfig, --worker-context", kubeconfig or hub.kubeconfig, context, OURS)


@app.command(
    "bind",
    help="bind a worker cluster: create an identity with few rights in it, and a Secret and a ClusterBinding in this cluster; "
    "at a terminal it asks for what is missing",
)
def bind_command(
    typed: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the ClusterBinding", show_default=False)] = "",
    *,
    worker_context: WorkerContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    worker_server: Annotated[str, typer.Option(metavar="URL", help="API server of the worker, as the computing cluster reaches it")] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster_id: Annotated[
        str,
        typer.Option(
            metavar="ID", help="part of the names of virtual nodes (default: NAME); must not be a prefix of another one, as prod of prod-eu"
        ),
    ] = "",
    mount_namespace: Annotated[
        str, typer.Option(metavar="NS", help=f"namespace of the worker in which pods run (default: {keys.WORKER_NAMESPACE})")
    ] = "",
    namespace: Annotated[str, typer.Option(metavar="NS", help="namespace of the Secret")] = keys.NAMESPACE,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="also grant the right to read usage from the worker's kubelets (get nodes/proxy)")
    ] = False,
    policy_label: Annotated[
        bool, typer.Option("--policy-label", help="also grant the right to label the worker's nodes with the policy that leases them")
    ] = False,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NS",
            help="prepare a namespace of the worker for this namespace of the computing cluster alone (spec.namespaceMapping: "
            "PerNamespace); may be repeated",
        ),
    ] = None,
    create_namespaces: Annotated[
        bool, typer.Option("--create-namespaces", help="let Kubeocean create those namespaces, within admission policies (PerNamespace)")
    ] = False,
    yes: Yes = False,
    only_print: Annotated[
        Printed | None,
        typer.Option(
            "--print", metavar="[all|worker|hub]", help="print the manifests and write nothing; without a value those of both clusters"
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="time to wait until the binding is Ready")] = 180.0,
) -> None:
    terminal = Terminal.standard()
    known = Answers(
        name=name,
        cluster_id=cluster_id,
        kubeconfig=kubeconfig,
        context=context,
        worker_kubeconfig=worker_kubeconfig,
        worker_context=worker_context,
        metrics=metrics,
        printed=only_print.value if only_print else "",
    )
    if known.missing and terminal.answers:
        known = Dialogue(terminal).complete(known, typed.obj)
    if not known.name:
        raise typer.BadParameter("name the ClusterBinding", ctx=typed, param_hint="NAME")
    flags = BindFlags(
        name=known.name,
        cluster_id=cluster_id,
        mount_namespace=mount_namespace,
        namespace=namespace,
        metrics=known.metrics,
        policy_label=policy_label,
        tenants=tenant or (),
        create_namespaces=create_namespaces,
    )
    if known.printed:
        binding.print_manifests(flags, known.printed, terminal)
        return
    hub = hub_of(known.kubeconfig, known.context)
    server = binding.check_server(worker_server)
    worker = worker_of(known.worker_kubeconfig, known.worker_context, hub=hub)
    timeout = clusters.check_timeout(timeout)
    made = binding.Bind(hub_choice=hub, worker_choice=worker, flags=flags, server=server, yes=yes, timeout=timeout, terminal=terminal)
    clusters.finish(made.run())


@app.command("unbind", help="delete a binding, wait until it is deleted, and list what remains")
def unbind_command(
    name: Name,
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    yes: Yes = False,
    force_after: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS", help="time after which objects that cannot be cleaned up in the worker are given up (spec.forceUnbindAfter)"
        ),
    ] = None,
    remove_identity: Annotated[
        bool, typer.Option("--remove-identity", help="also delete the identity in the worker (needs --worker-context)")
    ] = False,
    worker_context: WorkerContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    mount_namespace: Annotated[str, typer.Option(metavar="NS", help="namespace of that identity, if the binding is deleted already")] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="time to wait until the binding is deleted")] = 600.0,
) -> None:
    hub = hub_of(kubeconfig, context)
    made = unbind.Unbind(
        hub_choice=hub,
        force_after=unbind.check_force_after(force_after),
        worker_choice=worker_of(worker_kubeconfig, worker_context, hub=hub) if remove_identity else None,
        name=name,
        mount_namespace=mount_namespace,
        yes=yes,
        timeout=clusters.check_timeout(timeout),
        terminal=Terminal.standard(),
    )
    clusters.finish(made.run())


@app.command("status", help="show the bindings: phase, problems, nodes, leased, used and free capacity; exits with 1 unless all are Ready")
def status_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="one ClusterBinding (default: all)", show_default=False)] = "",
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = Format.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="print again whenever something changes, until interrupted")] = False,
    lent: Annotated[bool, typer.Option("--ledger", help="show what was lent in the last 24 hours, from the ledger in each worker")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="with --ledger: print resource-seconds by hour, node and namespace as CSV")] = False,
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
) -> None:
    hub = hub_of(kubeconfig, context)
    if lent or csv:
        if watch:
            raise SettingsError("--watch", "prints the bindings; leave it out with --ledger")
        worker = chosen_worker(hub, worker_kubeconfig, worker_context)
        asked = ledger.Asked(hub=hub, worker=worker, binding=name, output=output, csv=csv)
        clusters.finish(ledger.show(asked, Terminal.standard()))
        return
    shown = status.watch if watch else status.show
    clusters.finish(shown(hub, name, Terminal.standard(), output=output))


@app.command("plan", help="show what time windows change in the next days, and which pods are evicted when")
def plan_command(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="one ResourceLeasingPolicy (default: all)", show_default=False)] = "",
    *,
    days: Annotated[int, typer.Option(metavar="DAYS", help=f"length of the calendar, 1 to {calendar.MOST_DAYS}")] = 3,
    one: OptionalBinding = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    hub = hub_of(kubeconfig, context)
    question = calendar.Question(policy=policy, binding=one, days=days)
    worker = chosen_worker(hub, worker_kubeconfig, worker_context)
    clusters.finish(calendar.show(question, Terminal.standard(), hub=hub, worker=worker, output=output))


@app.command("doctor", help="examine the hub and the workers, and show each problem with the commands that correct it")
def doctor_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="one ClusterBinding (default: all)", show_default=False)] = "",
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    namespace: SystemNamespace = keys.NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    hub = hub_of(kubeconfig, context)
    examiner = Doctor(
        hub=hub,
        worker=chosen_worker(hub, worker_kubeconfig, worker_context),
        binding=name,
        terminal=Terminal.standard(),
        output=output,
        namespace=namespace,
    )
    clusters.finish(examiner.run())


@app.command("top", help="show the usage of leased capacity by binding, node or namespace")
def top_command(
    by: Annotated[By, typer.Argument(metavar="[bindings|nodes|namespaces]", help="what a row is about")] = By.NODES,
    *,
    view: Annotated[View, typer.Option(metavar="hub|worker", help="virtual nodes and pods, or the physical ones behind them")] = View.HUB,
    one: OptionalBinding = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    hub = hub_of(kubeconfig, context)
    worker = chosen_worker(hub, worker_kubeconfig, worker_context)
    shown = Top(hub=hub, worker=worker, binding=one, by=by, view=view, terminal=Terminal.standard(), output=output)
    clusters.finish(shown.run())


@app.command("logs", help="print the log of the process that serves a binding, or of the manager")
def logs_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="one ClusterBinding (default: the manager)", show_default=False)] = "",
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="print new lines until interrupted")] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="the log of the container that ran before")] = False,
    tail: Annotated[int, typer.Option(metavar="LINES", help="number of lines; -1 for all")] = 1000,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    namespace: SystemNamespace = keys.NAMESPACE,
) -> None:
    asked = logs.Asked(follow=follow, previous=previous, tail=None if tail < 0 else tail)
    clusters.finish(logs.show(hub_of(kubeconfig, context), name, Terminal.standard(), namespace=namespace, asked=asked))


@app.command("dns", help="print the rewrites for the worker's CoreDNS by which leased pods find Services of the computing cluster")
def dns_command(
    name: Name,
    *,
    domain: Annotated[str, typer.Option(metavar="DOMAIN", help="DNS domain of the computing cluster")] = "cluster.local",
    worker_domain: Annotated[str, typer.Option(metavar="DOMAIN", help="DNS domain of the worker cluster")] = "cluster.local",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    hub, terminal = hub_of(kubeconfig, context), Terminal.standard()
    clusters.finish(dns.show(hub, name, terminal, hub_domain=domain, worker_domain=worker_domain))


@app.command("support-bundle", help="write objects, events, logs, metrics and the results of doctor to an archive, without Secret values")
def bundle_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="one ClusterBinding (default: all)", show_default=False)] = "",
    *,
    file: Annotated[
        Path | None, typer.Option("--output-file", metavar="FILE", help="name of the archive (default: kubeocean-support-TIME.tar.gz)")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    namespace: SystemNamespace = keys.NAMESPACE,
) -> None:
    hub = hub_of(kubeconfig, context)
    worker, terminal = chosen_worker(hub, worker_kubeconfig, worker_context), Terminal.standard()
    examiner = Doctor(hub=hub, worker=worker, binding=name, terminal=terminal, output=Format.JSON, namespace=namespace)
    clusters.finish(bundle.Bundle(examiner, file or bundle.default_path(examiner.clock.now())).run())


@explain.command("node", help="show what a node offers line by line, and which policy decides")
def explain_node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the Node in the hub, or in the worker")],
    *,
    one: OptionalBinding = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    hub = hub_of(kubeconfig, context)
    clusters.finish(_explainer(hub, chosen_worker(hub, worker_kubeconfig, worker_context), one, output).node(name))


@explain.command("pod", help="show why a pod is pending or where it runs, and what was changed for the worker")
def explain_pod(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the pod in the hub, or NAMESPACE/NAME")],
    *,
    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="namespace of the pod")] = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    hub = hub_of(kubeconfig, context)
    before, slash, after = name.partition("/")
    key = Key(before, after) if slash else Key(namespace, name)
    clusters.finish(_explainer(hub, chosen_worker(hub, worker_kubeconfig, worker_context), "", output).pod(key))


@explain.command("policy", help="show which nodes a policy selects, its window, and what is wrong with it")
def explain_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the ResourceLeasingPolicy in the worker")],
    *,
    one: OptionalBinding = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    worker_context: ReadContext = "",
    worker_kubeconfig: WorkerKubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    hub = hub_of(kubeconfig, context)
    clusters.finish(_explainer(hub, chosen_worker(hub, worker_kubeconfig, worker_context), one, output).policy(name))


@app.command("run", help="serve one ClusterBinding until SIGTERM; `kubeocean run --help` shows its flags")
@app.command("manager", help="run a Deployment for each ClusterBinding until SIGTERM; `kubeocean manager --help` shows its flags")
def serving_command() -> None:
    """Adds the commands that serve to help and completion; `kubeocean.cli` starts them without this module."""


@app.command("version", help="print the version")
def version_command() -> None:
    print(importlib.metadata.version("vkubelet"))


def chosen_worker(hub: clusters.Choice, kubeconfig: Path | None, context: str) -> clusters.Choice | None:
    """Returns the worker cluster that the flags name, None without them."""
    return worker_of(kubeconfig, context, hub=hub) if kubeconfig or context else None


def _explainer(hub: clusters.Choice, worker: clusters.Choice | None, binding_name: str, output: Format) -> Explainer:
    return Explainer(hub=hub, worker=worker, binding=binding_name, terminal=Terminal.standard(), output=output)
