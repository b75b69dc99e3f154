"""Log lines are JSON, carry the fields of their task, and dump nothing."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import frozen

from vkubelet.api.objects import Key
from vkubelet.errors import SettingsError
from vkubelet.logformat import JsonFormatter, bind, change_level, configure

log = logging.getLogger("vkubelet.example")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What a fresh handler writes; loggers are put back afterwards."""
    names = ("", "vkubelet", "kubeocean", "fleet", "vkubelet_providers", "aiohttp.access")
    levels = {name: logging.getLogger(name).level for name in names}
    handlers = logging.getLogger().handlers[:]
    yield io.StringIO()
    logging.captureWarnings(False)
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_has_time_level_logger_message_and_bound_fields(stream: io.StringIO) -> None:
    configure(stream=stream)
    with bind(node="n-1", attempt=2), bind(pod=Key("default", "web")):
        log.warning("pod %s rejected", "web")
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "WARNING",
        "logger": "vkubelet.example",
        "message": "pod web rejected",
        "node": "n-1",
        "attempt": 2,
        "pod": "default/web",
    }


def test_fields_end_with_their_block_and_inner_ones_win(stream: io.StringIO) -> None:
    configure(stream=stream)
    with bind(node="outer"):
        with bind(node="inner"):
            log.info("one")
        log.info("two")
    log.info("three")
    assert [line.get("node") for line in lines(stream)] == ["inner", "outer", None]


def test_bound_field_can_not_replace_what_every_line_has(stream: io.StringIO) -> None:
    configure(stream=stream)
    with bind(message="forged", level="none"):
        log.info("true")
    assert (lines(stream)[0]["message"], lines(stream)[0]["level"]) == ("true", "INFO")


async def test_fields_follow_tasks_and_do_not_leak_between_them(stream: io.StringIO) -> None:
    configure(stream=stream)

    async def work(name: str) -> None:
        with bind(task=name):
            await asyncio.sleep(0)
            log.info("step")

    with bind(parent="p"):
        async with asyncio.TaskGroup() as group:
            group.create_task(work("a"))
            group.create_task(work("b"))
    assert [(line["parent"], line["task"]) for line in lines(stream)] == [("p", "a"), ("p", "b")]


@frozen
class Credentials:
    token: str


@pytest.mark.parametrize("value", [{"token": "s3cret"}, ["s3cret"], b"s3cret", Credentials("s3cret"), ("s3cret",)])
def test_objects_appear_as_the_name_of_their_class(stream: io.StringIO, value: object) -> None:
    configure(stream=stream)
    with bind(value=value):
        log.info("event")
    assert "s3cret" not in stream.getvalue()
    assert lines(stream)[0]["value"] == type(value).__name__


def test_infinite_numbers_stay_valid_json(stream: io.StringIO) -> None:
    configure(stream=stream)
    with bind(value=float("inf"), other=float("nan"), flag=True, nothing=None):
        log.info("event")
    line = json.loads(stream.getvalue(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert (line["value"], line["other"], line["flag"], line["nothing"]) == ("inf", "nan", True, None)


def test_exception_is_one_string_on_the_same_line(stream: io.StringIO) -> None:
    configure(stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    (line,) = lines(stream)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: broken")


def test_other_packages_are_never_at_debug(stream: io.StringIO) -> None:
    configure("debug", stream)
    logging.getLogger("elsewhere.client").debug("response body: s3cret")
    logging.getLogger("elsewhere").info("shown")
    log.debug("ours")
    assert [line["message"] for line in lines(stream)] == ["shown", "ours"]


def test_lines_go_to_stderr_by_default(stream: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    configure("WARNING")
    log.info("hidden")
    log.error("shown")
    assert json.loads(capsys.readouterr().err)["message"] == "shown"


def test_unknown_level_is_a_settings_error_that_names_the_setting() -> None:
    with pytest.raises(SettingsError, match="log.level"):
        configure("LOUD")


def test_text_that_can_not_be_encoded_does_not_break_a_line() -> None:
    record = logging.LogRecord("vkubelet", logging.INFO, "", 0, "odd %s", ("\ud800\n",), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "odd \ud800\n"


def test_a_change_of_the_level_counts_at_once_and_is_told(stream: io.StringIO) -> None:
    configure(stream=stream)
    change_level("DEBUG")
    assert logging.getLogger("vkubelet").level == logging.getLogger("kubeocean").level == logging.DEBUG
    assert [(line["message"], line["to"]) for line in lines(stream)] == [("log level changed", "DEBUG")]


def test_no_field_of_a_line_is_lost(stream: io.StringIO) -> None:
    configure(stream=stream)
    with bind(node="n-1", uid="bound", level="never"):
        log.warning("keeper gone", extra={"uid": "u1", "container": "main", "count": 3})
    (line,) = lines(stream)
    assert {key: line[key] for key in ("node", "uid", "container", "count", "level")} == {
        "node": "n-1",
        "uid": "u1",
        "container": "main",
        "count": 3,
        "level": "WARNING",
    }
    assert set(line) == {"time", "level", "logger", "message", "node", "uid", "container", "count"}
