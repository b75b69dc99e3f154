"""The program helm for the tests of the charts."""

import pytest

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.fixtures import run_apart


@pytest.fixture(scope="session")
def helm() -> str:
    return str(run_apart(Binaries(say=print, clock=SystemClock()).ensure(["helm"]))["helm"])
