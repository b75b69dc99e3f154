"""Results of the checks of `kubeocean doctor`.

Invariant: a finding states the fact, the object and field, and the remedy; its commands can be copied as they are, or have names in upper
case that the user replaces.
"""

import enum
from collections.abc import Sequence

from attrs import frozen


class Level(enum.StrEnum):
    """How much a finding matters: with an error, pods or nodes do not work."""

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
    """Result of one check of a subject, such as `ClusterBinding demo`; `skipped` is why it was not performed."""

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
