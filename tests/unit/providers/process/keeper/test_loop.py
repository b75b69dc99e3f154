"""Tests of what a keeper does to processes."""

from __future__ import annotations

import os
import signal

import pytest

from vkubelet_providers.process.keeper.loop import _kill


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user")
def test_a_program_that_became_another_user_does_not_end_the_keeper() -> None:
    other = os.fork()
    if other == 0:
        os.setresuid(65533, 65533, 65533)
        try:
            _kill(1, signal.SIGCONT)
            os._exit(0)
        except OSError:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
