"""Tests of fleet.cli."""

import importlib.metadata

import pytest

from fleet.cli import main


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["version"])
    assert ended.value.code == 0 and capsys.readouterr().out.strip() == importlib.metadata.version("vkubelet")


def test_a_command_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["destroy"])
    assert ended.value.code == 2 and "invalid choice" in capsys.readouterr().err
