"""Streams through the worker's API server, as far as no server is needed."""

import pytest

from kubeocean.worker.pod_streams import Backing, container_names, log_params, translated
from tests.unit.kubeocean.builders import at, pod
from vkubelet.api.objects import Key
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.errors import ApiError, BadRequest, Forbidden, Invalid, NoSuchPod, NotFound, ServerError, Unavailable
from vkubelet.provider import LogOptions


def test_options_not_asked_for_are_not_sent() -> None:
    assert log_params("main", LogOptions()) == [("container", "main")]


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (LogOptions(follow=True), ("follow", "true")),
        (LogOptions(previous=True), ("previous", "true")),
        (LogOptions(timestamps=True), ("timestamps", "true")),
        (LogOptions(tail=0), ("tailLines", "0")),
        (LogOptions(limit_bytes=10), ("limitBytes", "10")),
        (LogOptions(since=at("2026-01-05 09:00")), ("sinceTime", "2026-01-05T09:00:00.000000Z")),
        # By a time the worker would begin up to a second too early: its API server cuts it.
        (LogOptions(since=at("2026-01-05 09:00"), since_seconds=2), ("sinceSeconds", "2")),
    ],
)
def test_every_option_is_passed_on(options: LogOptions, sent: tuple[str, str]) -> None:
    assert sent in log_params("main", options)


def test_containers_of_every_kind_have_logs() -> None:
    spec = {"initContainers": [{"name": "init"}], "ephemeralContainers": [{"name": "debug"}]}
    assert container_names(pod(spec)) == {"init", "main", "debug"}


async def test_the_workers_words_reach_the_user_with_the_users_names() -> None:
    backing = Backing(Client(Connection("https://worker.invalid")), pod(), Key("mnt", "web-0123"))
    said = 'container "main" in pod "web-0123" is waiting to start, pods "web-0123" not found in namespace "mnt"'
    assert backing.in_virtual_names(said) == (
        'container "main" in pod "web" is waiting to start, pods "web" not found in namespace "default"'
    )


KUBELET = "Internal error occurred: error executing command in container: exec: no such file"


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (NotFound("open x", 'pods "web-0123" not found', status=404), NoSuchPod, 'pods "web" not found'),
        (
            Invalid("open x", "container nope is not valid for pod web-0123", status=400),
            BadRequest,
            "container nope is not valid for pod web",
        ),
        (ServerError("open x", f"Internal error occurred: {KUBELET}", status=500, reason="InternalError"), Unavailable, KUBELET),
        (
            ServerError("open x", "error forwarding port 81 to pod 37751d, uid : refused", status=500, reason="InternalError"),
            Unavailable,
            "refused",
        ),
        (
            ServerError("open x", "etcd is gone", status=503),
            Unavailable,
            "cannot read the command from the worker cluster: etcd is gone",
        ),
        (
            Forbidden("open x", 'pods "web-0123" is forbidden', status=403),
            Unavailable,
            'the worker cluster refused the command: pods "web" is forbidden',
        ),
    ],
)
def test_errors_of_the_worker_reach_the_user_once_and_with_the_users_names(error: ApiError, expected: type[Exception], text: str) -> None:
    backing = Backing(Client(Connection("https://worker.invalid")), pod(), Key("mnt", "web-0123"))
    shown = translated(error, "the command", names=backing.in_virtual_names)
    assert (type(shown), str(shown)) == (expected, text)
