"""The dialogue of `kubeocean bind`: asks at a terminal for what no flag names, and shows the command line that asks nothing.

Invariant: only a missing flag causes a question, every answer is the value of a flag, and nothing is written here.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import typer
from attrs import evolve, frozen

from kubeocean.commands.plan import BindFlags, Plan
from kubeocean.model.crds import CLUSTER_ID_LIMIT
from vkubelet.api.names import is_dns_subdomain
from vkubelet.client.connection import known_contexts
from vkubelet.commands.terminal import Terminal, table
from vkubelet.errors import SettingsError

APPLY: Final = "apply"
MODES: Final = {
    APPLY: "show everything, ask once more, and create it in both clusters",
    "all": "print the manifests of both clusters, and write nothing",
    "worker": "print the manifests for the owner of the worker cluster",
    "hub": "print the manifests of the computing cluster",
}
"""Answers about the mode: all but the first are values of `--print`."""
_METRICS: Final = "Grant the right to read usage from the worker's kubelets, for kubectl top?"


@frozen(kw_only=True)
class Answers:
    """The flags that the dialogue asks for; an empty one was not given. `printed` is the value of `--print`.

    `cluster_id` is not asked for: by default it is the name, which has to be valid for both then.
    """

    name: str = ""
    cluster_id: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    worker_kubeconfig: Path | None = None
    worker_context: str = ""
    metrics: bool = False
    printed: str = ""

    @property
    def missing(self) -> bool:
        """Whether the command cannot run with these flags alone."""
        return not self.name or not (self.printed or self.has_worker)

    @property
    def has_worker(self) -> bool:
        return bool(self.worker_context or self.worker_kubeconfig)

    def added_to(self, before: "Answers") -> list[str]:
        """Returns the arguments that a command line with the flags `before` lacks, the name first (pure)."""
        flags = {
            "--context": (before.context, self.context),
            "--worker-kubeconfig": (before.worker_kubeconfig, self.worker_kubeconfig),
            "--worker-context": (before.worker_context, self.worker_context),
            "--print": (before.printed, self.printed),
        }
        words = [self.name] if self.name != before.name else []
        words += [word for flag, (old, new) in flags.items() if new != old for word in (flag, str(new))]
        return [*words, "--metrics"] if self.metrics and not before.metrics else words


@frozen
class Dialogue:
    """One run of the dialogue."""

    terminal: Terminal

    def complete(self, given: Answers, typed: Sequence[str]) -> Answers:
        """Asks for what is missing, and shows the complete command line; `typed` are the arguments of the given one.

        Raises SettingsError for an unreadable kubeconfig, and SystemExit with 130 when the user interrupts.
        """
        try:
            found = self._ask(given)
        except typer.Abort:
            self.terminal.write_line("\ninterrupted: nothing was changed")
            raise SystemExit(130) from None
        command, *rest = typed
        name, flags = ([], found.added_to(given)) if given.name else (found.added_to(given)[:1], found.added_to(given)[1:])
        self.terminal.write_line(f"\nThe same without questions:\n\n  {shlex.join(['kubeocean', command, *name, *rest, *flags])}\n")
        return found

    def _ask(self, given: Answers) -> Answers:
        found = given
        if not (given.printed or given.has_worker):
            found = evolve(found, printed="" if (mode := self._choose("What to do", MODES, APPLY)) == APPLY else mode)
        if not (found.printed or found.has_worker):
            found = self._ask_clusters(found)
        if not found.name:
            default = default_name(found.worker_context or (found.worker_kubeconfig.stem if found.worker_kubeconfig else ""))
            name = typer.prompt(
                "Name of the ClusterBinding", default=default or None, value_proc=lambda text: checked_name(text, found.cluster_id)
            )
            found = evolve(found, name=name)
        if not found.metrics:
            found = evolve(found, metrics=typer.confirm(_METRICS, default=False))
        return found

    def _ask_clusters(self, found: Answers) -> Answers:
        """Asks for the contexts; the computing cluster is asked for only where its kubeconfig has several."""
        known = known_contexts(found.kubeconfig)
        hub = found.context or known.current
        if not found.context and len(known.servers) > 1:
            hub = self._choose("Computing cluster", known.servers, known.current)
        found = evolve(found, context=hub if hub != known.current else found.context)
        others = {name: server for name, server in known.servers.items() if name != hub and server != known.servers.get(hub)}
        answer = self._choose("Worker cluster (also a kubeconfig file)", others, "", other=kubeconfig_file)
        return evolve(found, worker_context=answer) if answer in others else evolve(found, worker_kubeconfig=Path(answer))

    def _choose(
        self, question: str, options: Mapping[str, str], default: str, *, other: Callable[[str], str | None] = lambda text: None
    ) -> str:
        """Asks for one of the options by number or name, or for what `other` accepts."""
        rows = [(str(number), name, text) for number, (name, text) in enumerate(options.items(), 1)]
        for line in table(rows) if rows else ():
            self.terminal.write_line(f"  {line}")
        answer: str = typer.prompt(question, default=default or None, value_proc=lambda text: picked(text, list(options), other))
        self.terminal.write_line()
        return answer


def picked(text: str, names: Sequence[str], other: Callable[[str], str | None]) -> str:
    """Returns the name that was entered, or that of the number. Raises BadParameter, by which the question is asked again."""
    if text in names:
        return text
    if text.isdecimal() and 1 <= int(text) <= len(names):
        return names[int(text) - 1]
    accepted = other(text)
    if accepted is None:
        raise typer.BadParameter(f"{text!r} is none of them; enter a number from 1 to {len(names)}, or a name")
    return accepted


def kubeconfig_file(text: str) -> str | None:
    """Returns the path of an existing file, else None."""
    path = Path(text).expanduser()
    return str(path) if path.is_file() else None


def default_name(context: str) -> str:
    """Derives the name of a binding from that of a context, such as `arn:aws:eks:eu-1:42:cluster/Edge_1` (pure)."""
    last = re.split(r"[/:@]", context)[-1].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:CLUSTER_ID_LIMIT].strip("-")


def checked_name(text: str, cluster_id: str = "") -> str:
    """Returns the name. Raises BadParameter when no binding can have it."""
    if not is_dns_subdomain(text):
        raise typer.BadParameter(f"{text!r} is no name of an object; use lower-case letters, digits, '-' and '.'")
    try:
        Plan.of(BindFlags(name=text, cluster_id=cluster_id)).check()
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    return text
