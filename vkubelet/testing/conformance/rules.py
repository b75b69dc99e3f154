"""Rules of the suite, and their results.

Invariant: a rule has a name, a sentence that can be read without the code, and at most one capability that it needs.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from vkubelet.testing.conformance.stand import Stand

Check = Callable[["Stand"], Awaitable[str | None]]
"""Raises Broken; what it returns is shown beside "passed"."""


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
    said: Sequence[str] = ()
    """The last warnings of the runtime and of the provider."""

    def names(self, outcome: Outcome) -> list[str]:
        return [result.rule.name for result in self.results if result.outcome is outcome]

    @property
    def passed(self) -> bool:
        return not self.names(Outcome.FAILED)

    def result(self, name: str) -> Result:
        """Returns the result of the rule of that name. Raises LookupError."""
        return next(result for result in self.results if result.rule.name == name)
