"""The pytest plugin: fixtures for the tests of a provider. A conftest loads it: `pytest_plugins = ["vkubelet.testing.plugin"]`.

Invariant: every name has the prefix `vkubelet_`; what starts clusters is imported when a test requests a fixture that needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from vkubelet.provider import ContainerProvider, Provider
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

if TYPE_CHECKING:
    from vkubelet.testing.cluster import ControlPlane
    from vkubelet.testing.conformance import Options, Report


Make = Callable[[], Provider | ContainerProvider]


class Examine(Protocol):
    """What `vkubelet_conformance` gives: `make` gives the provider as a new process would."""

    def __call__(self, make: Make, options: Options | None = None, *, only: Iterable[str] = ()) -> Report: ...


@pytest.fixture
def vkubelet_clock() -> ManualClock:
    """Provides a clock that stands still until the test advances it."""
    return ManualClock()


@pytest.fixture
def vkubelet_host(vkubelet_clock: ManualClock) -> RecordingHost:
    """Provides a Host that records the calls of a provider; its clock is `vkubelet_clock`."""
    return RecordingHost(clock=vkubelet_clock)


@pytest.fixture(scope="session")
def vkubelet_cluster() -> Iterator[ControlPlane]:
    """Provides a real API server with controllers, for the entire session; it has no nodes, and accepts any kubelet certificate."""
    from vkubelet.testing.cluster import ControlPlane, Options
    from vkubelet.testing.fixtures import run_apart

    plane = ControlPlane("vkubelet", options=Options(scheduler=False, verify_kubelets=False))
    try:
        run_apart(plane.start())
        yield plane
    finally:
        run_apart(plane.stop())


@pytest.fixture(scope="session")
def vkubelet_conformance(vkubelet_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Examine:
    """Provides a function that tests all rules on a provider.

    `report = vkubelet_conformance(lambda: Mine(settings))`; then `assert report.passed, table(report)`.
    """
    from vkubelet.testing.conformance import Kubectl, Options, Subject, examination_settings, examine
    from vkubelet.testing.fixtures import run_apart

    plane = vkubelet_cluster
    program = run_apart(plane.site.binaries.ensure(["kubectl"]))["kubectl"]
    judge = Kubectl(program=program, kubeconfig=plane.kubeconfig, cache=tmp_path_factory.mktemp("kubectl"))

    def examined(make: Make, options: Options | None = None, *, only: Iterable[str] = ()) -> Report:
        chosen = examination_settings({}, address=plane.host_address)
        subject = Subject(make=make, settings=chosen, kubeconfig=plane.kubeconfig, judge=judge)
        return run_apart(examine(subject, options or Options(), only=only))

    return examined
