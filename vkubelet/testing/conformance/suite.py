"""Runs the rules against one provider, and reports the result of each.

Invariant: every rule gets a result, whatever it or the provider raises; a rule is skipped only for a capability that is missing or refused
with NotSupported, or because there is no node to test it on.
"""

import asyncio
import json
import logging
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import attrs

from vkubelet.clock import SystemClock
from vkubelet.errors import VKubeletError, first_error
from vkubelet.testing.conformance import ending, endpoints, nodes, outages, pods, streams
from vkubelet.testing.conformance.blocking import BlockingWatch
from vkubelet.testing.conformance.judge import Kubectl, PodWatch
from vkubelet.testing.conformance.observed import Recording, capabilities_of
from vkubelet.testing.conformance.rules import Broken, Inapplicable, Outcome, Phase, Report, Result, Rule
from vkubelet.testing.conformance.stand import RULE, Options, Seen, Stand, Subject

RULES: Sequence[Rule] = (
    *nodes.RULES,
    *pods.RULES,
    *ending.RULES,
    *outages.RULES,
    *streams.LOGS,
    *streams.RULES,
    *endpoints.RULES,
    *outages.ALONE,
    *ending.LAST,
    *nodes.LAST,
)
"""All rules; those that run alone, and those that judge afterwards, run in this order."""

DEFAULTS = Options()

AT_ONCE = 5
"""Rules that run concurrently."""

_LINES = 12
"""Warnings kept for the report."""

_TIMES = 5
"""Timeout of a rule in multiples of the patience: a call that never returns fails it."""

Say = Callable[[Result], None]


async def examine(subject: Subject, options: Options = DEFAULTS, *, only: Iterable[str] = (), say: Say = lambda result: None) -> Report:
    """Runs all rules, or only those of these names; `say` is called with each result. Raises SettingsError when the provider raises it."""
    wanted = set(only)
    chosen = [rule for rule in RULES if not wanted or rule.name in wanted]
    made = subject.make()
    capabilities = capabilities_of(made)
    with _Warnings() as warnings:
        try:
            async with _stand(subject, options) as stand:
                results = await _Examination(stand, capabilities, say).run(chosen)
        except* VKubeletError as problems:
            raise first_error(problems) from problems
    return Report(f"{type(made).__module__}.{type(made).__qualname__}", capabilities, results, tuple(warnings.lines))


class _Examination:
    """One pass through the rules."""

    def __init__(self, stand: Stand, capabilities: Mapping[str, bool], say: Say) -> None:
        self._stand = stand
        self._capabilities = capabilities
        self._say = say
        self._results: dict[str, Result] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, rules: Sequence[Rule]) -> list[Result]:
        """Returns the results in the order of the rules."""
        able = [rule for rule in rules if self._able(rule)]
        await self._one(nodes.node_ready)
        if self._results[nodes.node_ready.name].outcome is Outcome.FAILED:
            for rule in able:
                if rule is not nodes.node_ready:
                    self._note(Result(rule, Outcome.SKIPPED, "the provider has no node that is Ready"))
        else:
            self._stand.node = sorted(self._stand.recording.nodes)[0]
            await self._phases([rule for rule in able if rule is not nodes.node_ready])
        return [self._results[rule.name] for rule in RULES if rule.name in self._results]

    def _able(self, rule: Rule) -> bool:
        if not rule.needs or self._capabilities[rule.needs]:
            return True
        self._note(Result(rule, Outcome.SKIPPED, f"the provider has no {rule.needs}"))
        return False

    async def _phases(self, rules: Sequence[Rule]) -> None:
        async with asyncio.TaskGroup() as group:
            for rule in rules:
                if rule.phase is Phase.BESIDE:
                    group.create_task(self._in_turn(rule), name=rule.name)
        for phase in (Phase.ALONE, Phase.LAST):
            for rule in rules:
                if rule.phase is phase:
                    await self._one(rule)

    async def _in_turn(self, rule: Rule) -> None:
        async with self._slots:
            await self._one(rule)

    async def _one(self, rule: Rule) -> None:
        began = self._stand.clock.monotonic()
        RULE.set(rule.name)
        outcome, seen = await self._judge(rule)
        refusal = self._stand.refusal(rule.name) if rule.needs and outcome is Outcome.FAILED else ""
        if refusal:
            outcome, seen = Outcome.SKIPPED, f"the provider refuses it: {refusal}"
        seconds = self._stand.clock.monotonic() - began if outcome is not Outcome.SKIPPED else 0.0
        self._note(Result(rule, outcome, seen, seconds))

    async def _judge(self, rule: Rule) -> tuple[Outcome, str]:
        """Runs a rule; returns its outcome and what was observed, whatever the rule, or a provider within it, raises."""
        limit = _TIMES * self._stand.patience
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                # A rule that failed halfway may have left it stopped.
                await self._stand.start()
                return Outcome.PASSED, await rule.check(self._stand) or ""
        except Inapplicable as error:
            return Outcome.SKIPPED, f"the provider refuses it: {error}"
        except Broken as error:
            return Outcome.FAILED, str(error)
        except Exception as error:
            if scope.expired():
                return Outcome.FAILED, f"it did not end within {limit:g} s"
            where = traceback.extract_tb(error.__traceback__)[-1]
            return Outcome.FAILED, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"

    def _note(self, result: Result) -> None:
        self._results[result.rule.name] = result
        self._say(result)


class _Warnings(logging.Handler):
    """Handler that keeps the last warnings logged in its context."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        logging.getLogger().removeHandler(self)


@asynccontextmanager
async def _stand(subject: Subject, options: Options) -> AsyncIterator[Stand]:
    """Yields a stand with namespace and watch, and cleans up; the provider is not started yet."""
    clock, before = SystemClock(), await _node_names(subject.judge)
    judge = attrs.evolve(subject.judge, namespace=await _namespace(subject.judge, clock))
    recording = Recording(clock)
    try:
        with BlockingWatch(clock) as blocking:
            async with asyncio.TaskGroup() as group:
                watch = PodWatch(judge, clock)
                watching = group.create_task(watch.run(), name="pod watch")
                seen = Seen(pods=watch, recording=recording, blocking=blocking)
                stand = Stand(subject=subject, options=options, judge=judge, seen=seen, clock=clock, group=group)
                try:
                    yield stand
                finally:
                    await stand.close()
                    watching.cancel()
    finally:
        await judge.run("delete", "namespace", judge.namespace, "--wait=false", "--ignore-not-found")
        made = recording.ever_declared - before
        if made:
            await judge.run("delete", "nodes", *sorted(made), "--wait=false", "--ignore-not-found")


async def _node_names(judge: Kubectl) -> set[str]:
    return {node["metadata"]["name"] for node in await judge.items("get", "nodes")}


async def _namespace(judge: Kubectl, clock: SystemClock) -> str:
    """Creates a namespace, and waits until pods can be created in it."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "conformance-"}}
    made = json.loads(await judge.ok("create", "--filename=-", "--output=json", stdin=json.dumps(body).encode()))
    name = str(made["metadata"]["name"])
    end = clock.monotonic() + 30.0
    while not await judge.json("get", "serviceaccount", "default", f"--namespace={name}"):
        if clock.monotonic() > end:
            raise Broken(f"namespace {name} got no ServiceAccount default within 30 s; the cluster needs its controller-manager")
        await clock.sleep(0.2)
    return name
