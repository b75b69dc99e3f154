"""This tree beside another revision of it: the same bursts of leased pods on the same clusters, by the program of either in turn.

Invariant: rounds alternate which one is first, and both run from an archive of their revision's files or from this checkout, by the same
interpreter and libraries.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import yaml
from attrs import define, field

from tests.benchmarks.figures import Figure
from tests.benchmarks.leased import Bursts, Round, leased
from tests.support.program import Program
from vkubelet.testing.cluster import Site

REVISION = "AGAINST"
"""Environment variable with the git revision that this tree is compared with."""
NODES, ROUNDS = 50, 5
ROOT = Path(__file__).parents[2]


@define
class OfTree(Bursts):
    """Bursts by the program whose source is in `tree`."""

    tree: Path = ROOT
    rounds: list[Round] = field(factory=list)

    async def once(self) -> None:
        self.rounds.append(await self.by_kubeocean())

    def program(self) -> Program:
        made = self.lease.bound.program()
        config = Path(made.arguments[made.arguments.index("--config") + 1])
        config.write_text(self._readable(config.read_text()))
        # Without the second one the working directory would come first.
        paths = {"PYTHONPATH": str(self.tree), "PYTHONSAFEPATH": "1"}
        return Program("kubeocean", *made.arguments, log=made.log, env=paths)

    def _readable(self, text: str) -> str:
        """The settings without those of the provider that the revision does not have."""
        known = "".join(path.read_text() for path in self.tree.glob("kubeocean/**/settings.py"))
        settings = yaml.safe_load(text)
        settings["provider"] = {name: value for name, value in settings["provider"].items() if f"{name}:" in known}
        return yaml.safe_dump(settings)

    def median(self, figure: str) -> float:
        return median(_figures(each)[figure] for each in self.rounds)


def _figures(of: Round) -> Mapping[str, float]:
    assert of.removal is not None
    return {"cpu": of.cpu * 1000, "rate": of.rate, "p99": of.p99, "removal": of.removal.rate, "removal_cpu": of.removal.cpu * 1000}


UNITS = {"cpu": "ms/pod", "rate": "pods/s", "p99": "s", "removal": "pods/s", "removal_cpu": "ms/pod"}


async def measure(site: Site) -> Sequence[Figure]:
    """500 pods on 50 simulated nodes by the program of this tree and by that of the revision AGAINST (default HEAD) in turn."""
    with tempfile.TemporaryDirectory() as directory:
        other = extracted(os.environ.get(REVISION, "HEAD"), Path(directory))
        async with leased(site, "versus", nodes=NODES) as lease:
            for tree in (ROOT, other):
                await OfTree(lease, pods=100, tree=tree).once()
            trees = [OfTree(lease, tree=ROOT), OfTree(lease, tree=other)]
            for number in range(ROUNDS):
                for each in trees if number % 2 else reversed(trees):
                    await each.once()
    _show(trees)
    this, that = trees
    return [
        Figure(name=f"versus_{name}", value=this.median(name), unit=unit, ratio_to="the other revision", ratio=_ratio(this, that, name))
        for name, unit in UNITS.items()
    ]


def extracted(revision: str, directory: Path) -> Path:
    """The files of a revision."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
    return directory


def _ratio(this: OfTree, that: OfTree, name: str) -> float:
    """The median of the ratios of the rounds, each of which ran one after the other."""
    return median(_figures(one)[name] / _figures(other)[name] for one, other in zip(this.rounds, that.rounds, strict=True))


def _show(trees: Sequence[OfTree]) -> None:
    for name, unit in UNITS.items():
        this, that = (" ".join(f"{_figures(each)[name]:7.2f}" for each in tree.rounds) for tree in trees)
        print(f"    {name:12} {this}  beside {that}  {unit}")
