"""What annotations mean, and that senseless ones are refused by name."""

from __future__ import annotations

import pytest

from vkubelet.errors import PodRejected
from vkubelet_providers.mock.script import PREFIX, Script


def test_annotations_of_others_are_not_ours() -> None:
    assert Script.of({"example.com/run-for": "x", "mock": "y"}) == Script()


def test_every_kind_of_value_is_read() -> None:
    told = {
        "run-for": "1.5", "exit-code": "7", "reject": "OutOfcpu", "exec-output": "", "exec-exit-code": "0", "exec-delay": "0.25",
        "ports": "80=http, 9000,7=discard", "cpu-usage": "250m", "memory-usage": "64Mi",
    }  # fmt: skip
    script = Script.of({PREFIX + key: value for key, value in told.items()})
    assert (script.run_for, script.exit_code, script.reject) == (1.5, 7, "OutOfcpu")
    assert (script.exec_output, script.exec_exit_code, script.exec_delay) == ("", 0, 0.25)
    assert script.ports == {80: "http", 9000: "echo", 7: "discard"}
    assert (script.cpu_usage, script.memory_usage) == (0.25, 64 << 20)
    assert Script.of({PREFIX + "ports": ""}).ports == {}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("run-fro", "1", "use one of .*run-for"),
        ("exit-code", "-1", "a number such as"),
        ("start-delay", "soon", "a number of seconds"),
        ("start-delay", "-1", "zero or more"),
        ("start-delay", "nan", "zero or more"),
        ("log-interval", "0", "more than zero"),
        ("cpu-usage", "much", "a quantity such as"),
        ("memory-usage", "-1Mi", "zero or more"),
        ("ports", "http", "a list such as"),
        ("ports", "0", "a list such as"),
        ("ports", "80=ftp", "echo, http, discard"),
    ],
)
def test_senseless_annotations_are_refused_by_name(key: str, value: str, words: str) -> None:
    with pytest.raises(PodRejected, match=f"BadScript: annotation {PREFIX}{key}.*{words}"):
        Script.of({PREFIX + key: value})
