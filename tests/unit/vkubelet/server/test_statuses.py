"""How a call ended, for those who understand a Status and for those who do not."""

from __future__ import annotations

import json

import pytest

from vkubelet.errors import BadRequest, NoSuchContainer, NoSuchPod, PodRejected, Unavailable
from vkubelet.server.statuses import SUCCESS, exit_code, exit_status, failure, http_status, meant, not_supported, rendered

EXECUTING = "executing command in container"


@pytest.mark.parametrize(
    ("returned", "code"), [(0, 0), (1, 1), (137, 137), (255, 255), (-9, 137), (-15, 143), (256, 255), (-1000, 255), (3221225786, 255)]
)
def test_exit_codes_are_a_shells_and_no_failure_becomes_a_success(returned: int, code: int) -> None:
    assert exit_code(returned) == code


def test_success_and_exit_codes() -> None:
    assert exit_status(0, ["true"]) == SUCCESS == {"metadata": {}, "status": "Success"}
    assert exit_status(7, ["sh", "-c", "exit 7"]) == {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code: error executing command [sh -c exit 7], exit code 7",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
    }


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (NoSuchPod("gone"), 404, "NotFound"),
        (NoSuchContainer("gone"), 404, "NotFound"),
        (BadRequest("gone"), 400, "BadRequest"),
        (Unavailable("gone"), 503, "ServiceUnavailable"),
    ],
)
def test_errors_meant_for_the_caller_keep_their_words(error: Exception, code: int, reason: str) -> None:
    assert http_status(error) == code
    assert failure(error, EXECUTING) == {"metadata": {}, "status": "Failure", "message": "gone", "reason": reason, "code": code}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PodRejected("Secret", "insides"), "error executing command in container: internal error"),
        (ValueError("insides"), "error executing command in container: internal error"),
        (NotImplementedError("insides"), "error executing command in container: not implemented by the provider of this node"),
        ("it was broken off", "error executing command in container: it was broken off"),
    ],
)
def test_of_other_errors_nothing_is_told(error: Exception | str, cause: str) -> None:
    told = failure(error, EXECUTING)
    assert (told["code"], told["reason"], told["message"]) == (500, "InternalError", f"Internal error occurred: {cause}")
    assert told["details"] == {"causes": [{"message": cause}]}


def test_old_versions_get_nothing_or_a_sentence() -> None:
    assert rendered(SUCCESS, structured=False) == b""
    assert rendered(failure(NoSuchPod("gone"), EXECUTING), structured=False) == b"gone"
    assert json.loads(rendered(SUCCESS, structured=True)) == SUCCESS


def test_an_error_is_found_inside_groups_of_its_kind_alone() -> None:
    inner = Unavailable("inner")
    assert meant(inner, (Unavailable,)) is inner
    assert meant(ExceptionGroup("a", [ExceptionGroup("b", [inner]), Unavailable("other")]), (Unavailable,)) is inner
    for mixed in (ExceptionGroup("a", [inner, ValueError()]), ExceptionGroup("a", [ValueError()])):
        with pytest.raises(ExceptionGroup):
            meant(mixed, (Unavailable,))


def test_a_missing_capability_is_a_status_object_that_client_go_reads() -> None:
    answer = not_supported("attach")
    assert (answer.status, answer.content_type) == (501, "application/json")
    assert json.loads(answer.text or "") == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "the provider of this node does not support attach",
        "reason": "NotImplemented",
        "code": 501,
    }
