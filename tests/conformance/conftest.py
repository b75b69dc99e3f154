"""What the suite found out about each provider of this project, once for all tests that ask.

Invariant: a provider is examined when the first test asks for it, and never twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.conformance import subjects
from tests.support.program import PATIENCE
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import ControlPlane, Site
from vkubelet.testing.conformance import Kubectl, Options, Report, Subject, examine, table
from vkubelet.testing.fixtures import run_apart

_ECHO = (
    "import socket, threading; s = socket.create_server(('', PORT))\n"
    "def echo(c):\n"
    "    while data := c.recv(65536): c.sendall(data)\n"
    "    c.close()\n"
    "while True: threading.Thread(target=echo, args=(s.accept()[0],)).start()"
)


def options_of(name: str, site: Site) -> Options:
    """How a provider is examined. A third of the patience goes by until a lack of ephemeral containers is believed; processes have the
    ports of this host, and its programs, of which perhaps no other listens.
    """
    if name == "process":
        return Options(patience=PATIENCE, port=site.free_port(), echo=f'exec python3 -S -c "{_ECHO}"')
    return Options(patience=PATIENCE if name != "minimal" else PATIENCE / 2)


@pytest.fixture(scope="session")
def bare_judge(bare_hub: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return subjects.judge_of(bare_hub, tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session")
def minimal_subject(bare_hub: ControlPlane, bare_judge: Kubectl) -> Subject:
    return subjects.minimal(bare_hub, bare_judge)


@pytest.fixture(scope="session")
def mock_subject(bare_hub: ControlPlane, bare_judge: Kubectl) -> Subject:
    return subjects.mock(bare_hub, bare_judge)


@pytest.fixture(scope="session")
def process_subject(bare_hub: ControlPlane, bare_judge: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with subjects.process(bare_hub, bare_judge, directory=tmp_path_factory.mktemp("vkubelet-test-process")) as subject:
        yield subject


@pytest.fixture(scope="session")
def kubeocean_subject(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    judge = subjects.judge_of(hub, tmp_path_factory.mktemp("kubectl"))
    with subjects.kubeocean(hub, worker, directory=tmp_path_factory.mktemp("kubeocean"), judge=judge) as subject:
        yield subject


@pytest.fixture(scope="session")
def report_of(request: pytest.FixtureRequest) -> Callable[[str], Report]:
    """The report of a provider by its name."""
    site: Site = request.getfixturevalue("cluster_site")

    @cache
    def report(name: str) -> Report:
        began = SystemClock().monotonic()
        made = run_apart(examine(request.getfixturevalue(f"{name}_subject"), options_of(name, site)))
        print(f"{name} was examined in {SystemClock().monotonic() - began:.1f} s\n{table(made)}")
        return made

    return report
