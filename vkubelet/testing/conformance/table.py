"""Results of a test run, as text.

Invariant: pure; a rule that failed is shown with its sentence and with what was observed.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkubelet.testing.conformance.rules import Outcome, Report, Result

_WIDTH = 22


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
    if not report.passed and report.said:
        yield ""
        yield "the last warnings of the runtime and of the provider:"
        yield from (f"  {text}" for said in report.said for text in said.splitlines())
    counts = {outcome: len(report.names(outcome)) for outcome in Outcome}
    yield ""
    yield ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
