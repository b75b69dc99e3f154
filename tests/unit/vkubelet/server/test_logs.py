"""Log queries are read, and log errors worded, as a kubelet does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.objects import Pod
from vkubelet.provider import LogOptions
from vkubelet.server.logs import not_available, parse_options, stays_inside

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_no_option_means_the_whole_log() -> None:
    assert parse_options({}, now=NOW) == LogOptions()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"follow": "true", "previous": "true", "timestamps": "true"}, LogOptions(follow=True, previous=True, timestamps=True)),
        ({"follow": "false", "previous": "0", "timestamps": "False"}, LogOptions()),
        ({"follow": ""}, LogOptions(follow=True)),
        ({"tailLines": "0"}, LogOptions(tail=0)),
        ({"tailLines": "+7"}, LogOptions(tail=7)),
        ({"tail": "5", "tailLines": "9"}, LogOptions(tail=5)),
        ({"tail": "all", "tailLines": "9"}, LogOptions()),
        ({"tail": "", "tailLines": "9"}, LogOptions(tail=9)),
        ({"limitBytes": "1"}, LogOptions(limit_bytes=1)),
        ({"sinceSeconds": "60"}, LogOptions(since=NOW - timedelta(seconds=60), since_seconds=60)),
        ({"sinceSeconds": str(2**62)}, LogOptions()),
        ({"sinceTime": "2026-01-01T13:00:00+02:00"}, LogOptions(since=NOW - timedelta(hours=1))),
        ({"sinceTime": ""}, LogOptions()),
        ({"stream": "All"}, LogOptions()),
    ],
)
def test_options_are_read(query: dict[str, str], expected: LogOptions) -> None:
    assert parse_options(query, now=NOW) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "ten"},
        {"tailLines": "1_0"},
        {"tailLines": " 1"},
        {"tailLines": "1.0"},
        {"tailLines": "٣"},
        {"tailLines": str(2**63)},
        {"tailLines": ""},
        {"tail": "some"},
        {"limitBytes": "9" * 5000},
        {"sinceSeconds": "1h"},
        {"sinceTime": "yesterday"},
        {"sinceTime": "2026-01-01T12:00:00"},
    ],
)
def test_what_can_not_be_read_is_400(query: dict[str, str]) -> None:
    with pytest.raises(web.HTTPBadRequest) as error:
        parse_options(query, now=NOW)
    assert error.value.text == '{"message": "Unable to decode query."}'


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "-1"},
        {"limitBytes": "0"},
        {"sinceSeconds": "0"},
        {"sinceSeconds": "-5"},
        {"sinceSeconds": "5", "sinceTime": "2026-01-01T12:00:00Z"},
        {"stream": "Stderr"},
    ],
)
def test_what_makes_no_sense_is_422(query: dict[str, str]) -> None:
    with pytest.raises(web.HTTPUnprocessableEntity) as error:
        parse_options(query, now=NOW)
    assert error.value.text == '{"message": "Invalid request."}'


@given(st.dictionaries(st.sampled_from(["tail", "tailLines", "limitBytes", "sinceSeconds", "sinceTime", "follow", "stream"]), st.text()))
def test_no_query_is_answered_by_a_crash(query: dict[str, str]) -> None:
    try:
        parse_options(query, now=NOW)
    except (web.HTTPBadRequest, web.HTTPUnprocessableEntity):
        pass


def pod(**status: Any) -> Pod:
    body = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": "n", "containers": [{"name": "app"}], "initContainers": [{"name": "init"}]},
        "status": status,
    }
    return Pod.decode(json.dumps(body).encode())


def app(state: dict[str, Any], last: dict[str, Any] | None = None) -> Pod:
    return pod(containerStatuses=[{"name": "app", "state": state, "lastState": last or {}}])


ENDED = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("subject", "previous", "text"),
    [
        (pod(), False, 'container "app" in pod "web" is not available'),
        (app({"running": {}}), True, 'previous terminated container "app" in pod "web" not found'),
        (app({"waiting": {"reason": "ContainerCreating"}}), False, 'container "app" in pod "web" is waiting to start: ContainerCreating'),
        (app({"waiting": {"reason": "ErrImagePull"}}), False, 'container "app" in pod "web" is waiting to start: image can\'t be pulled'),
        (
            app({"waiting": {"reason": "ImagePullBackOff"}}),
            False,
            'container "app" in pod "web" is waiting to start: trying and failing to pull image',
        ),
        (
            app({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}),
            False,
            'container "app" in pod "web" is terminated',
        ),
    ],
)
def test_a_container_without_log_is_told_in_the_kubelets_words(subject: Pod, previous: bool, text: str) -> None:
    assert not_available(subject, "app", previous=previous) == text


@pytest.mark.parametrize(
    ("subject", "previous"),
    [
        (app({"running": {}}), False),
        (app(ENDED), False),
        (app({"running": {}}, ENDED), True),
        (app({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED), False),
        (app({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED), True),
    ],
)
def test_a_container_that_ran_has_a_log(subject: Pod, previous: bool) -> None:
    assert not_available(subject, "app", previous=previous) == ""


def test_init_and_ephemeral_containers_have_logs_too() -> None:
    running: dict[str, Any] = {"state": {"running": {}}}
    subject = pod(initContainerStatuses=[{"name": "init", **running}], ephemeralContainerStatuses=[{"name": "debug", **running}])
    assert not_available(subject, "init", previous=False) == ""
    assert not_available(subject, "debug", previous=False) == ""


@pytest.mark.parametrize("path", ["", "kubelet.log", "pods/", "pods/a_b_c/app/0.log", "..data", "a..b", "...", "ä/ö.log"])
def test_paths_that_only_go_down_are_passed_on(path: str) -> None:
    assert stays_inside(path)


@pytest.mark.parametrize(
    "path",
    ["..", "../passwd", "a/../b", "a/..", "./a", "a/./b", "/etc/passwd", "a//b", "//", "/", "a\\..\\b", "a\x00b", "a\nb", "a/../", "a//"],
)
def test_paths_that_could_lead_elsewhere_are_refused(path: str) -> None:
    assert not stays_inside(path)
