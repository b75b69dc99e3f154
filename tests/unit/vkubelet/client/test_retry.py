"""One call is repeated a few times, only when that can help."""

from __future__ import annotations

import pytest

from vkubelet.client.retry import with_retry
from vkubelet.errors import NotFound, ServerError, TooManyRequests, VKubeletError
from vkubelet.testing.clock import ManualClock


@pytest.fixture
def autojump() -> ManualClock:
    return ManualClock(autojump=True)


class Flaky:
    """Raises the given errors, one a call, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def failing() -> ServerError:
    return ServerError("get pods x", "broken", status=500)


async def test_retryable_errors_are_repeated_with_growing_pauses(autojump: ManualClock) -> None:
    call = Flaky(failing(), failing(), failing())
    assert await with_retry(call, clock=autojump) == "done"
    assert call.calls == 4
    assert 1.4 <= autojump.monotonic() <= 1.4 * 1.1


async def test_last_error_is_raised_when_the_attempts_are_used_up(autojump: ManualClock) -> None:
    call = Flaky(*(failing() for _ in range(9)))
    with pytest.raises(ServerError, match="broken"):
        await with_retry(call, attempts=3, clock=autojump)
    assert call.calls == 3


@pytest.mark.parametrize("error", [NotFound("get pods x", "gone"), VKubeletError("no"), ValueError("bug")])
async def test_other_errors_are_raised_at_once(autojump: ManualClock, error: Exception) -> None:
    call = Flaky(error)
    with pytest.raises(type(error)):
        await with_retry(call, clock=autojump)
    assert call.calls == 1
    assert autojump.monotonic() == 0


async def test_pause_is_never_shorter_than_the_server_asked(autojump: ManualClock) -> None:
    await with_retry(Flaky(TooManyRequests("get pods x", "slow", retry_after=7.0)), clock=autojump)
    assert autojump.monotonic() == 7.0
