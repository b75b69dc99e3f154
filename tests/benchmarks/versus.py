"""This tree beside another revision, or beside itself with another Python: the same bursts of leased pods on the same clusters, in turn.

Invariant: rounds alternate which one is first. Another revision runs from an archive of its files, by the same interpreter and libraries;
another Python runs this checkout.
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
from attrs import define, evolve, field

from tests.benchmarks.figures import Figure
from tests.benchmarks.leased import Bursts, Round, leased
from tests.support.program import Program
from vkubelet.testing.cluster import Site
from vkubelet.testing.cluster.binaries import cache_directory

REVISION = "AGAINST"
"""Environment variable with the git revision that this tree is compared with."""
SUITE = "AGAINST_PYTHON"
"""Environment variable with a Debian suite, with whose Python this tree is compared; `make check-python` has to have run before."""
NODES, ROUNDS = 50, 5
ROOT = Path(__file__).parents[2]


@define
class OfTree(Bursts):
    """Bursts by the program whose source is in `tree`, run by `python`."""

    tree: Path = ROOT
    python: Sequence[str] = ()
    rounds: list[Round] = field(factory=list)

    async def once(self) -> None:
        self.rounds.append(await self.by_kubeocean())

    def program(self) -> Program:
        made = self.lease.bound.program()
        config = Path(made.arguments[made.arguments.index("--config") + 1])
        config.write_text(self._readable(config.read_text()))
        # Without the second one the working directory would come first.
        paths = {"PYTHONPATH": str(self.tree), "PYTHONSAFEPATH": "1"}
        return Program("kubeocean", *made.arguments, log=made.log, env=paths, python=self.python)

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
    """500 pods on 50 simulated nodes by this tree and by the revision AGAINST (default HEAD), or the Python of AGAINST_PYTHON, in turn."""
    with tempfile.TemporaryDirectory() as directory:
        async with leased(site, "versus", nodes=NODES) as lease:
            if suite := os.environ.get(SUITE):
                name, other = f"Python of {suite}", OfTree(lease, python=in_suite(cache_directory().parent / f"debian-{suite}"))
            else:
                name, other = "the other revision", OfTree(lease, tree=extracted(os.environ.get(REVISION, "HEAD"), Path(directory)))
            trees = [OfTree(lease), other]
            for each in trees:
                await evolve(each, pods=100, rounds=[]).once()
            for number in range(ROUNDS):
                for each in trees if number % 2 else reversed(trees):
                    await each.once()
    _show(trees)
    return [
        Figure(name=f"versus_{figure}", value=trees[0].median(figure), unit=unit, ratio_to=name, ratio=_ratio(*trees, figure))
        for figure, unit in UNITS.items()
    ]


def in_suite(root: Path) -> Sequence[str]:
    """The command of the Python of a Debian suite, in a mount namespace that shows it this checkout and the temporary files."""
    shown = ("/proc", "/dev", "/tmp", str(ROOT))
    mounts = "".join(f'mkdir -p "$0{path}" && mount --rbind {path} "$0{path}" && ' for path in shown)
    enter = f'{mounts}exec chroot "$0" /usr/bin/env -C {ROOT} /venv/bin/python "$@"'
    return ("unshare", "--mount", "sh", "-c", enter, str(root))


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
