"""`kubeocean doctor [NAME]`: examines the hub and the workers of its bindings, and prints each problem with the commands that correct it.

Invariant: the exit code is 0 exactly when no check found an error; a check that the user may not perform is skipped, and names the right.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from attrs import frozen

from kubeocean.commands import clusters, reading
from kubeocean.commands.clusters import Choice, CommandFailed
from kubeocean.commands.examination import BindingExamination, HubExamination, Log
from kubeocean.commands.output import Block, Format, data, in_progress, write
from kubeocean.commands.rights import Reader
from kubeocean.commands.terminal import Terminal
from kubeocean.doctor.findings import Checked
from kubeocean.model import keys
from vkubelet.clock import Clock, SystemClock

OK, SKIPPED = "ok", "skipped"


@frozen(kw_only=True)
class Doctor:
    """One run of the command; `worker` is the worker cluster as named by flags, None to use the Secret of each binding."""

    hub: Choice
    worker: Choice | None
    binding: str
    terminal: Terminal
    output: Format
    namespace: str = keys.NAMESPACE
    clock: Clock = SystemClock()

    async def run(self) -> None:
        """Prints the results of all checks. Raises CommandFailed for an unknown binding, SystemExit with 1 after an error was found."""
        with in_progress("examining the clusters"):
            done = await self.examine()
        if self.output.is_data:
            self.terminal.write_line(data(done, self.output))
        else:
            write(self.terminal, list(blocks(done, wide=self.output is Format.WIDE)))
        if any(each.failed for each in done):
            raise SystemExit(1)

    async def examine(self) -> Sequence[Checked]:
        """Performs all checks. Raises CommandFailed."""
        log = Log()
        async with clusters.opened(self.hub) as client:
            reader = Reader(client, self.hub)
            await HubExamination(reader, log, clock=self.clock).run()
            await self._bindings(reader, log)
        return log.done

    async def _bindings(self, hub: Reader, log: Log) -> None:
        try:
            found = await reading.bindings(hub)
        except CommandFailed as error:
            log.done.append(Checked(subject=self.hub.title, check="bindings", skipped=str(error)))
            return
        chosen = [each for each in found if self.binding in ("", each.name)] or await reading.bindings(hub, self.binding)
        for binding in chosen:
            examined = BindingExamination(
                hub, log, binding=binding, bindings=found, worker=self.worker, namespace=self.namespace, clock=self.clock
            )
            await examined.run()


def result(checked: Checked) -> str:
    """Returns the result as a name (pure)."""
    if checked.skipped:
        return SKIPPED
    return max((each.level for each in checked.findings), key=lambda level: level.value == "error", default=OK)


def blocks(done: Sequence[Checked], *, wide: bool) -> Iterator[Block]:
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
                yield f"  {SKIPPED:<8} {each.check}" + (f": {each.skipped}" if wide or len(each.skipped) < 400 else "")
        yield ""
    counted = [level for each in done for level in (finding.level.value for finding in each.findings)]
    skipped = sum(bool(each.skipped) for each in done)
    yield f"{counted.count('error')} errors, {counted.count('warning')} warnings, {skipped} checks skipped"
