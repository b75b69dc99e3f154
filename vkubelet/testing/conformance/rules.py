"""Rules of the suite, how they are broken, their results, and the report of them as text.

Invariant: a rule has a name, a sentence that can be read without the code, and at most one capability that it needs; a rule that failed is
shown with its sentence and with what was observed.
"""

import enum
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from vkubelet.errors import VKubeletError

if TYPE_CHECKING:
    from vkubelet.testing.conformance.stand import Stand

_WIDTH = 22
Check = Callable[["Stand"], Awaitable[str | None]]
"""Raises Broken; what it returns is shown beside "passed"."""


class Broken(VKubeletError):
    """A rule is broken; the text describes what was observed."""


class Inapplicable(VKubeletError):
    """The provider refuses the operation of the rule; the text is its own."""


def expect(holds: object, seen: str) -> None:
    """Raises Broken with what was observed unless the condition is true."""
    if not holds:
        raise Broken(seen)


class Phase(enum.Enum):
    """Phase in which a rule runs."""

    BESIDE = "beside others"
    ALONE = "alone"
    """It stops and starts the provider."""
    LAST = "last"
    """It judges everything that was recorded before."""


@frozen
class Rule:
    """One rule; `needs` is the Protocol of a capability, or empty."""

    name: str
    sentence: str
    check: Check = field(repr=False)
    needs: str = ""
    phase: Phase = Phase.BESIDE


def rule(*, needs: type | None = None, phase: Phase = Phase.BESIDE) -> Callable[[Check], Rule]:
    """Makes a rule of a function: its name with hyphens, its docstring as the sentence."""

    def made(check: Check) -> Rule:
        name = check.__name__.replace("_", "-")
        return Rule(name, " ".join(inspect.cleandoc(check.__doc__ or "").split()), check, needs.__name__ if needs else "", phase)

    return made


class Outcome(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@frozen
class Result:
    """Result of one rule; `seen` is why it failed or was skipped, or more about how it passed."""

    rule: Rule
    outcome: Outcome
    seen: str = ""
    seconds: float = 0.0


@frozen
class Report:
    """Results of all rules, in their order; `capabilities` are all known ones, and whether the provider has them."""

    provider: str
    capabilities: Mapping[str, bool]
    results: Sequence[Result]
    warnings: Sequence[str] = ()
    """The last warnings of the runtime and of the provider."""

    def names(self, outcome: Outcome) -> list[str]:
        return [result.rule.name for result in self.results if result.outcome is outcome]

    @property
    def passed(self) -> bool:
        return not self.names(Outcome.FAILED)

    def result(self, name: str) -> Result:
        """Returns the result of the rule of that name. Raises LookupError."""
        return next(result for result in self.results if result.rule.name == name)


# --- as text ---------------------------------------------------------------------------------------------------------------------------


def line(result: Result) -> str:
    """Renders one row: name, result, seconds, and a short message."""
    seconds = f"{result.seconds:6.1f} s" if result.outcome is not Outcome.SKIPPED else " " * 8
    seen = result.seen if result.outcome is not Outcome.FAILED else "see below"
    return f"{result.rule.name:<{_WIDTH}} {result.outcome.value:<8}{seconds}  {seen}".rstrip()


def capabilities(report: Report) -> str:
    """Renders the capabilities in two lines."""
    rows = (("has", True), ("has not", False))
    found = {word: [name.removeprefix("Supports") for name, has in report.capabilities.items() if has is wanted] for word, wanted in rows}
    return "\n".join(f"  {word + ':':<9}{', '.join(names) or 'nothing'}" for word, names in found.items())


def table(report: Report) -> str:
    """Renders everything."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"provider {report.provider}"
    yield capabilities(report)
    yield ""
    yield from (line(result) for result in report.results)
    for result in report.results:
        if result.outcome is Outcome.FAILED:
            yield ""
            yield f"{result.rule.name}: {result.rule.sentence}"
            yield f"  seen: {result.seen}"
    if not report.passed and report.warnings:
        yield ""
        yield "the last warnings of the runtime and of the provider:"
        yield from (f"  {text}" for warning in report.warnings for text in warning.splitlines())
    counts = {outcome: len(report.names(outcome)) for outcome in Outcome}
    yield ""
    yield ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
