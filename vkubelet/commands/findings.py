"""Results of the checks of a command `doctor`, and their text.

Invariant: a finding states the fact, the object and field, and the remedy; its commands can be copied as they are, or have names in upper
case that the user replaces.
"""

import enum
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from attrs import frozen

OK: Final = "ok"
SKIPPED: Final = "skipped"
_LONG: Final = 400


class Level(enum.StrEnum):
    """How much a finding matters: with an error, something does not work."""

    WARNING = "warning"
    ERROR = "error"


@frozen
class Finding:
    """One problem, and the commands that correct it or show its cause."""

    level: Level
    problem: str
    commands: Sequence[str] = ()


@frozen(kw_only=True)
class Checked:
    """Result of one check of a subject, such as `cluster demo`; `skipped` is why it was not performed."""

    subject: str
    check: str
    findings: Sequence[Finding] = ()
    skipped: str = ""

    @property
    def failed(self) -> bool:
        return any(each.level is Level.ERROR for each in self.findings)


def error(problem: str, *commands: str) -> Finding:
    return Finding(Level.ERROR, problem, commands)


def warning(problem: str, *commands: str) -> Finding:
    return Finding(Level.WARNING, problem, commands)


def result(checked: Checked) -> str:
    """Returns the result as a name (pure)."""
    if checked.skipped:
        return SKIPPED
    return max((each.level for each in checked.findings), key=lambda level: level.value == "error", default=OK)


def blocks(done: Sequence[Checked], *, wide: bool) -> Iterator[str]:
    """Renders the results by subject; without `wide`, the checks that found nothing are one line (pure)."""
    for subject, group in groupby(done, key=lambda each: each.subject):
        results = list(group)
        yield subject
        passed = [each.check for each in results if result(each) == OK]
        if passed:
            yield f"  ok       {', '.join(passed)}"
        for each in results:
            for finding in each.findings:
                yield f"  {finding.level:<8} {each.check}: {finding.problem}"
                yield from (f"           $ {command}" for command in finding.commands)
            if each.skipped:
                yield f"  {SKIPPED:<8} {each.check}" + (f": {each.skipped}" if wide or len(each.skipped) < _LONG else "")
        yield ""
    counted = [level for each in done for level in (finding.level.value for finding in each.findings)]
    skipped = sum(bool(each.skipped) for each in done)
    yield f"{counted.count('error')} errors, {counted.count('warning')} warnings, {skipped} checks skipped"
